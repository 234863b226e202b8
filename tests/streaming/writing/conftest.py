"""Modules here are imported by processes that write; golden_shards is beside the tests of the formats."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "formats"), str(Path(__file__).parent)]

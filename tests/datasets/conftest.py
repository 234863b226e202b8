"""Modules here can be imported by spawned workers, which search the trainer's sys.path."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "files")]

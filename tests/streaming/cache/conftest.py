"""Modules here are imported by the tests, and by the programs that they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

"""Modules here can be imported by spawned workers, which search the trainer's sys.path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

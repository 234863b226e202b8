"""Modules here are imported by the tests of other folders, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

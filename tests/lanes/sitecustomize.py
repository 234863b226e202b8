"""What every program of a test imports first: its PYTHONPATH is the sys.path of the tests."""

import quick_import  # noqa: F401 - its import does it

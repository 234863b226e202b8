"""Lets the tests of this folder import its examples."""

import logging
import sys
from pathlib import Path

import urllib3  # noqa: F401 - Lightning imports it, and it binds a socket then, which the fast lane does not permit

sys.path.insert(0, str(Path(__file__).parent))

for _package in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
    logging.getLogger(_package).setLevel(logging.WARNING)

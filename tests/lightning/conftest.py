"""Lets the tests of this folder import its examples."""

import logging
import sys
from pathlib import Path

import pytest
import urllib3  # noqa: F401 - Lightning imports it, and it binds a socket then, which the fast lane does not permit

from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def streamed(tmp_path_factory):
    """Return a function that makes a loader of a small dataset of shards."""
    folder = str(tmp_path_factory.mktemp("stored"))
    with MDSWriter(out=folder, columns={"x": "int"}, size_limit=64) as writer:
        for index in range(20):
            writer.write({"x": index})
    return lambda: StreamingDataLoader(StreamingDataset(local=folder, batch_size=4, shuffle=True))


for _package in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
    logging.getLogger(_package).setLevel(logging.WARNING)

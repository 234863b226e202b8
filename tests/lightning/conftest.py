"""A stream, and frameworks that say little."""

import logging

import pytest
import urllib3  # noqa: F401 - Lightning imports it, and it binds a socket then, which the fast lane does not permit

from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset


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

"""Datasets in shards, on disk or in a store, in a computed order. Needs the extra ``streaming``.

The packages ``cache``, ``formats``, ``order`` and ``store`` have public names too.
"""

import fkat_data.runtime.needs_posix  # noqa: F401  # pyright: ignore[reportUnusedImport] - refuses Windows
from fkat_data.streaming.dataloader import StreamingDataLoader
from fkat_data.streaming.dataset import StreamingDataset, open_epoch
from fkat_data.streaming.epoch.world import World
from fkat_data.streaming.reading.stream import Stream
from fkat_data.streaming.sample_access import LocalDataset
from fkat_data.streaming.writing.merge import merge_index
from fkat_data.streaming.writing.parallel import write_parallel
from fkat_data.streaming.writing.writer import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "World",
    "XSVWriter",
    "merge_index",
    "open_epoch",
    "write_parallel",
]

"""Write datasets of shards, here or in a store.

A writer (``writer``) groups samples into shards, and hands their files to a ``Destination``, which uploads them and
publishes the index last (``destination``, ``directories``). ``write_parallel`` runs many writers, and ``merge_index``
makes one dataset of theirs. Begin with ``ShardWriter``.
"""

from fkat_data.streaming.writing.merge import IndexLocation, merge_index, natural_key
from fkat_data.streaming.writing.parallel import write_parallel
from fkat_data.streaming.writing.writer import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    TSVWriter,
    WriterSettings,
    XSVWriter,
)

__all__ = [
    "CSVWriter",
    "IndexLocation",
    "JSONWriter",
    "MDSWriter",
    "TSVWriter",
    "WriterSettings",
    "XSVWriter",
    "merge_index",
    "natural_key",
    "write_parallel",
]

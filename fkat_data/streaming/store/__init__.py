"""Download files of a dataset from any store that fsspec opens: complete and verified, or an error in bounded time."""

from fkat_data.streaming.store.open_store import open_store
from fkat_data.streaming.store.store import Store

__all__ = ["Store", "open_store"]

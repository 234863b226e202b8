"""Download files of a dataset from any store that fsspec opens: complete and verified, or an error in bounded time.

A ``Store`` asks the ``Client`` of a process (``bucket``, ``web``, ``hub``, ``directory_client``, ``remote``) for bytes;
a ``Transfer`` writes them to a local file, attempt by attempt (``attempts``). Begin with ``Store.download``.
"""

from fkat_data.files.shard import Origin
from fkat_data.storage.attempts import ChangedError, ContentError, Redaction, StatusError, TransferError
from fkat_data.streaming.store.client import Body, Client, ListedFile
from fkat_data.streaming.store.store import Store, open_store, register_store

__all__ = [
    "Body",
    "ChangedError",
    "Client",
    "ContentError",
    "ListedFile",
    "Origin",
    "Redaction",
    "StatusError",
    "Store",
    "TransferError",
    "open_store",
    "register_store",
]

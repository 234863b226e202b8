"""Add encodings, shuffles, stores and movers of your own: register each by a name, in the process that makes the loader.

What is registered reaches every process that the library starts, and every process that unpickles a dataset of shards.
``fkat_data.testing.contracts`` has tests for yours.
"""

from fkat_data.device.accelerator import register_mover
from fkat_data.device.host import Mover
from fkat_data.files.encoding import Encoding, EncodingError
from fkat_data.files.encodings import register_encoding
from fkat_data.runtime.registry import registered
from fkat_data.streaming.order import MakeShuffle, Shuffle, register_shuffle
from fkat_data.streaming.store import Body, ChangedError, Client, ListedFile, StatusError, TransferError, register_store

__all__ = [
    "Body",
    "ChangedError",
    "Client",
    "Encoding",
    "EncodingError",
    "ListedFile",
    "MakeShuffle",
    "Mover",
    "Shuffle",
    "StatusError",
    "TransferError",
    "register_encoding",
    "register_mover",
    "register_shuffle",
    "register_store",
    "registered",
]

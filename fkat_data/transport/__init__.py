"""Microbatches across the process boundary: bytes in shared memory, envelopes on a pipe.

A worker's ``codec`` takes the tensors out of a microbatch and writes them into a ``segment``; the rest is an envelope, which
goes through the ``channel``: a pipe, and a ``ring`` of shared memory for small messages. The trainer decodes views of the
segment; when the last one dies, a credit goes back. Begin with ``encode`` and ``channel.Channel``.
What needs no worker process is exported here; ``channel`` and ``segment`` are imported by who starts processes.
"""

from fkat_data.transport.codec import ALIGNMENT, copied, copied_size, decode, dumps, encode, lies_at, loads, write
from fkat_data.transport.definitions import dump_shipment, is_importable
from fkat_data.transport.digest import digest_of
from fkat_data.transport.memory_limit import available_bytes, default_limit_bytes, group_bytes

__all__ = [
    "ALIGNMENT",
    "available_bytes",
    "copied",
    "copied_size",
    "decode",
    "default_limit_bytes",
    "digest_of",
    "dump_shipment",
    "dumps",
    "encode",
    "group_bytes",
    "is_importable",
    "lies_at",
    "loads",
    "write",
]

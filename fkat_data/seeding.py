"""Random streams: every random draw of a dataset is a function of its position in the order.

Before each microbatch, the worker seeds the three global generators (python, numpy, torch on the CPU) from
(seed, data-parallel rank, epoch, shard, microbatch). So the draws depend neither on the number of workers nor on the
prefetch depth or the mode. A state holds no generator's state, and a resume skips delivered microbatches without
producing them.
"""

import hashlib
import random
import struct
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

__all__ = ["ShardStreams", "preserved_generators", "seed_global_generators"]

# Draws for the whole shard: opening it, and the order of its batches.
_OPENING = 2**64 - 1
_BATCH_ORDER = 2**63


class ShardStreams(NamedTuple):
    """The random streams of one shard in one epoch on one data-parallel rank.

    Attributes:
        key: 32 bytes that identify the shard's streams.
    """

    key: bytes

    @classmethod
    def of(cls, seed: int, dp_rank: int, epoch: int, shard_index: int) -> "ShardStreams":
        """Return the streams of the shard at an index of the order; ranks of equal ``dp_rank`` share them."""
        name = f"{seed}/{dp_rank}/{epoch}/{shard_index}".encode()
        return cls(hashlib.blake2b(name, digest_size=32, person=b"fkat_data stream").digest())

    def seed_of(self, stream: int) -> int:
        """Return the 64-bit seed of a stream; microbatch *i* uses stream *i*."""
        digest = hashlib.blake2b(struct.pack("<Q", stream), digest_size=8, key=self.key).digest()
        return int.from_bytes(digest, "little")

    def seed_opening(self) -> None:
        """Seed the global generators before the shard is opened."""
        seed_global_generators(self.seed_of(_OPENING))

    def seed_batch_order(self, chunk: int) -> None:
        """Seed the global generators before a chunk of the shard's index batches is drawn."""
        seed_global_generators(self.seed_of(_BATCH_ORDER + chunk))

    def seed_microbatch(self, index: int) -> None:
        """Seed the global generators before the microbatch at ``index`` is produced."""
        seed_global_generators(self.seed_of(index))


def seed_global_generators(seed: int) -> None:
    """Seed python's, numpy's and torch's global CPU generators.

    It takes 6 µs. ``torch.manual_seed`` alone takes 76 µs, because it also seeds every accelerator.

    Args:
        seed: From 0 to 2**64 - 1.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


@contextmanager
def preserved_generators() -> Generator[None]:
    """Restore the global generators and torch's number of threads at the end of the block.

    Wraps production in the caller's own thread. The block uses one torch thread, as a worker does: a parallel
    reduction adds in another order, and both modes must yield the same bits.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.default_generator.get_state()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)

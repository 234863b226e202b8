"""Random streams: every draw a dataset makes is a function of where in the order it is made.

Before a microbatch is made, the three global generators (python, numpy, torch on the CPU) are seeded from
(seed, data-parallel rank, epoch, shard, microbatch). So the number of workers, the prefetch depth and the mode
change nothing, a resume needs no generator's state, and what was delivered can be stepped over without being made.
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

# Draws that belong to the shard as a whole and not to a microbatch: opening it, and the order of its batches.
_OPENING = 2**64 - 1
_BATCH_ORDER = 2**63


class ShardStreams(NamedTuple):
    """The random streams of one shard in one epoch on one data-parallel rank.

    Attributes:
        key: 32 bytes that name the shard's streams.
    """

    key: bytes

    @classmethod
    def of(cls, seed: int, dp_rank: int, epoch: int, shard_index: int) -> "ShardStreams":
        """Return the streams of the shard at a place in the order; ranks with equal ``dp_rank`` draw alike."""
        name = f"{seed}/{dp_rank}/{epoch}/{shard_index}".encode()
        return cls(hashlib.blake2b(name, digest_size=32, person=b"fkat_data stream").digest())

    def seed_of(self, stream: int) -> int:
        """Return the 64-bit seed of a stream; microbatch *i* has stream *i*."""
        digest = hashlib.blake2b(struct.pack("<Q", stream), digest_size=8, key=self.key).digest()
        return int.from_bytes(digest, "little")

    def seed_opening(self) -> None:
        """Seed the global generators for opening the shard."""
        seed_global_generators(self.seed_of(_OPENING))

    def seed_batch_order(self, chunk: int) -> None:
        """Seed the global generators for drawing a chunk of the shard's batches of indices."""
        seed_global_generators(self.seed_of(_BATCH_ORDER + chunk))

    def seed_microbatch(self, index: int) -> None:
        """Seed the global generators for making the microbatch at ``index``."""
        seed_global_generators(self.seed_of(index))


def seed_global_generators(seed: int) -> None:
    """Seed python's, numpy's and torch's global CPU generators.

    This is the cheap way, 6 µs together: ``torch.manual_seed`` alone takes 76, as it also visits every accelerator.

    Args:
        seed: 0 to 2**64 - 1.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


@contextmanager
def preserved_generators() -> Generator[None]:
    """Give the caller its generators back as they were, and its number of threads.

    For producing in the caller's own thread. One thread while it lasts, as in a worker: a parallel reduction adds
    in another order, and both modes must yield the same bits.
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

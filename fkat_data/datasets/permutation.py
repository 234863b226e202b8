"""Permutations that are computed and not drawn: functions of a few integers, the same for ever and everywhere."""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["drawn_seed", "draws", "permutation"]

# The finalizer of splitmix64 (Steele, Lea, Flood 2014): every bit of the input moves every bit of the output.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def permutation(count: int, purpose: bytes, *place: int) -> npt.NDArray[np.int64]:
    """Return the numbers from 0 to ``count - 1`` in an order that depends on the other arguments alone.

    Args:
        count: How many.
        purpose: Up to 16 bytes that keep orders with the same place apart.
        place: Integers of any size, such as seed, epoch and buffer.
    """
    return np.argsort(draws(count, purpose, *place), kind="stable")


def draws(count: int, purpose: bytes, *place: int) -> npt.NDArray[np.uint64]:
    """Return ``count`` numbers of 64 bits that depend on ``purpose`` and ``place`` alone, as ``permutation`` says.

    A longer row of them begins with the shorter one.
    """
    # In hexadecimal an integer of any size has a text.
    name = "/".join(f"{number:x}" for number in place).encode()
    key = np.frombuffer(blake2b(name, digest_size=16, person=purpose).digest(), "<u8").astype(np.uint64)
    return _mixed(_mixed(np.arange(1, count + 1, dtype=np.uint64) * _GAMMA + key[0]) ^ key[1])


def drawn_seed() -> int:
    """Return a seed for who was given none, drawn from torch's global CPU generator as torch's samplers do.

    So a program that seeds torch gets the same one again; and what a ``DataLoaderFactory`` makes gets another one
    for each shard and epoch, and the same one after a resume.
    """
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))

"""Permutations that are computed and not drawn: functions of a few integers, the same for ever and everywhere."""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["drawn_seed", "draws", "keys_of", "permutation", "permuted"]

# The finalizer of splitmix64 (Steele, Lea, Flood 2014): every bit of the input moves every bit of the output.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

# Every other round changes the same half, so each half is changed twice.
_NUM_ROUNDS = 4


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
    return keys_of(np.arange(count), purpose, *place)


def keys_of(numbers: npt.NDArray[np.int64], purpose: bytes, *place: int) -> npt.NDArray[np.uint64]:
    """Return what ``draws`` gives at some places of its row, from 0 on."""
    # In hexadecimal an integer of any size has a text.
    name = "/".join(f"{number:x}" for number in place).encode()
    key = np.frombuffer(blake2b(name, digest_size=16, person=purpose).digest(), "<u8").astype(np.uint64)
    return _mixed(_mixed((numbers.astype(np.uint64) + np.uint64(1)) * _GAMMA + key[0]) ^ key[1])


def permuted(
    numbers: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Return where a permutation takes each number, at a cost that does not depend on the permutation's size.

    Each pair of a size and a key names one permutation of the numbers below that size: a Feistel network over a
    grid of two digits that is a little larger, walked until it comes back below the size (Black, Rogaway 2002).

    Args:
        numbers: Each from 0 to its size - 1.
        sizes: Up to 2^62, one a number.
        keys: One a number.
    """
    found = numbers.astype(np.uint64)
    bounds = sizes.astype(np.uint64)
    columns = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    rows = (bounds + columns - np.uint64(1)) // columns
    found = _network(found, rows, columns, keys)
    outside = np.flatnonzero(found >= bounds)
    while len(outside):
        found[outside] = _network(found[outside], rows[outside], columns[outside], keys[outside])
        outside = outside[found[outside] >= bounds[outside]]
    return found.astype(np.int64)


def _network(
    numbers: npt.NDArray[np.uint64],
    rows: npt.NDArray[np.uint64],
    columns: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint64]:
    left = numbers // columns
    right = numbers - left * columns
    for round_index in range(_NUM_ROUNDS):
        keys = keys + _GAMMA
        if round_index % 2:
            left = _turned(left, right, rows, keys)
        else:
            right = _turned(right, left, columns, keys)
    return left * columns + right


def _turned(
    digits: npt.NDArray[np.uint64],
    others: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint64]:
    """Turn a digit by an angle that depends on the other digit and the key."""
    angles = (others + keys) * _FIRST
    angles = (angles ^ (angles >> np.uint64(29))) * _SECOND
    # The upper half of the bits as a fraction of the size.
    digits = digits + (((angles >> np.uint64(32)) * sizes) >> np.uint64(32))
    return np.where(digits >= sizes, digits - sizes, digits)


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

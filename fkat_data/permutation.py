"""Permutations as pure functions of a few integers: the same on every platform and in every version."""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

# The finalizer of splitmix64 (Steele, Lea, Flood 2014): every input bit affects every output bit.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

# Every other round changes the same half, so each half is changed twice.
_NUM_ROUNDS = 4
_ROUND_KEYS = [np.uint64(int(_GAMMA) * number % 2**64) for number in range(1, _NUM_ROUNDS + 1)]


def permutation(count: int, purpose: bytes, *coordinates: int) -> npt.NDArray[np.int64]:
    """Return the numbers from 0 to ``count - 1`` in an order that depends only on the arguments.

    Args:
        count: Number of elements.
        purpose: Up to 16 bytes that separate orders with the same ``coordinates``.
        coordinates: Integers of any size, such as seed, epoch and buffer.
    """
    keys = draws(count, purpose, *coordinates)
    # Some processors sort faster where equal keys, which hardly ever occur, need not stay in order.
    order = np.argsort(keys)
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def draws(count: int, purpose: bytes, *coordinates: int) -> npt.NDArray[np.uint64]:
    """Return ``count`` random 64-bit numbers that depend only on ``purpose`` and ``coordinates``, as in ``permutation``.

    A shorter result is a prefix of a longer one.
    """
    return keys_of(np.arange(count), purpose, *coordinates)


def keys_of(numbers: npt.NDArray[np.int64], purpose: bytes, *coordinates: int) -> npt.NDArray[np.uint64]:
    """Return the elements of ``draws`` at the indices ``numbers``."""
    # Python limits the digits of a decimal integer, but not of a hexadecimal one.
    name = "/".join(f"{number:x}" for number in coordinates).encode()
    key = np.frombuffer(blake2b(name, digest_size=16, person=purpose).digest(), "<u8").astype(np.uint64)
    return _mixed(_mixed((numbers.astype(np.uint64) + np.uint64(1)) * _GAMMA + key[0]) ^ key[1])


def permuted(
    numbers: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    keys: npt.NDArray[np.uint64],
    *,
    is_inverse: bool = False,
) -> npt.NDArray[np.int64]:
    """Return the image of each number under a permutation, at a cost independent of the permutation's size.

    Each pair of a size and a key defines one permutation of the numbers below that size: a Feistel network over a
    slightly larger grid of two digits, applied until the result is below the size (Black, Rogaway 2002).

    Args:
        numbers: Each from 0 to its size - 1.
        sizes: Size of each number's permutation, at most 2^62.
        keys: Key of each number's permutation.
        is_inverse: Whether to return the number that each one is the image of instead.
    """
    found = numbers.astype(np.uint64)
    bounds = sizes.astype(np.uint64)
    columns = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    rows = (bounds + columns - np.uint64(1)) // columns
    found = _network(found, rows, columns, keys, is_inverse=is_inverse)
    outside = np.flatnonzero(found >= bounds)
    while len(outside):
        of_outside = found[outside], rows[outside], columns[outside], keys[outside]
        found[outside] = _network(*of_outside, is_inverse=is_inverse)
        outside = outside[found[outside] >= bounds[outside]]
    return found.astype(np.int64)


def _network(
    numbers: npt.NDArray[np.uint64],
    rows: npt.NDArray[np.uint64],
    columns: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.uint64],
    *,
    is_inverse: bool = False,
) -> npt.NDArray[np.uint64]:
    left = numbers // columns
    right = numbers - left * columns
    for round_index in range(_NUM_ROUNDS)[:: -1 if is_inverse else 1]:
        round_keys = keys + _ROUND_KEYS[round_index]
        if round_index % 2:
            left = _rotated(left, right, rows, round_keys, is_back=is_inverse)
        else:
            right = _rotated(right, left, columns, round_keys, is_back=is_inverse)
    return left * columns + right


def _rotated(
    digits: npt.NDArray[np.uint64],
    others: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.uint64],
    *,
    is_back: bool,
) -> npt.NDArray[np.uint64]:
    """Rotate each digit by an offset that depends on the other digit and the key."""
    hashes = (others + keys) * _FIRST
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _SECOND
    # The upper 32 bits, as a fraction of the size, are the offset.
    offsets = ((hashes >> np.uint64(32)) * sizes) >> np.uint64(32)
    digits = digits + (sizes - offsets if is_back else offsets)
    return np.where(digits >= sizes, digits - sizes, digits)


def drawn_seed() -> int:
    """Draw a default seed from torch's global CPU generator, as torch's samplers do.

    A program that seeds torch gets the same seed again. Under a ``DataLoaderFactory``, each shard and epoch gets
    another seed, and the same one after a resume.
    """
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))

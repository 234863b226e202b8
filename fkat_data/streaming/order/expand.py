"""``py1e``: move each sample of a shard by a random distance, and thus spread the shard over a block's length.

For each node, the reference first draws all numbers that shuffle its pieces, then all that move the samples. Here two
generators draw both sequences in parallel, and a sliding window sorts the samples. A node of any size needs the
memory of a few blocks.
"""

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["chunks_of_py1e"]

_Integers = npt.NDArray[np.int64]

# A window's unfinished samples are sorted again with the next ones. This size keeps that to a fifth of the sorting.
_WINDOW_BLOCKS = 4


def chunks_of_py1e(
    pieces: Sequence[tuple[int, int]], generator: np.random.Generator, block_size: int, *, is_wanted: bool
) -> Iterator[_Integers]:
    """Yield a canonical node's samples in chunks, in order, and advance the generator to the next node.

    Args:
        pieces: The node's pieces in order, as ``(start, stop)`` of sample numbers.
        generator: The epoch's generator, at the node's first draw.
        block_size: Number of places over which a piece is spread.
        is_wanted: Whether to yield the samples, or only to advance the generator.
    """
    lengths = [stop - start for start, stop in pieces]
    inner = copy.deepcopy(generator) if is_wanted else None
    scratch = np.empty(max(lengths, default=0), np.int64)
    for length in lengths:
        generator.shuffle(scratch[:length])
    if inner is None:
        _draw_moves(lengths, generator, block_size)
    else:
        yield from _expanded(pieces, inner, generator, block_size)


def _draw_moves(lengths: Sequence[int], generator: np.random.Generator, block_size: int) -> None:
    lowest, highest = _bounds(block_size)
    scratch = np.empty(max(lengths, default=0), np.float64)
    for length in lengths:
        generator.integers(lowest, highest)
        generator.random(out=scratch[:length])


def _expanded(
    pieces: Sequence[tuple[int, int]], inner: np.random.Generator, outer: np.random.Generator, block_size: int
) -> Iterator[_Integers]:
    lowest, highest = _bounds(block_size)
    size = sum(stop - start for start, stop in pieces)
    limit = max(_WINDOW_BLOCKS * block_size, 1 << 16)
    keys: list[npt.NDArray[np.float64]] = []
    samples: list[_Integers] = []
    place, num_held = 0, 0
    for start, stop in pieces:
        length = stop - start
        ids = np.arange(start, stop, dtype=np.int64)
        inner.shuffle(ids)
        reach = max((int(outer.integers(lowest, highest)) - length) / 2, 0)
        moves = outer.uniform(max(-reach, -place), min(reach, size - place - length), length)
        keys.append(np.arange(place, place + length, dtype=np.float64) + moves)
        samples.append(ids)
        place, num_held = place + length, num_held + length
        if num_held >= limit:
            # Later samples come after this key: a piece reaches back by at most half of the largest block.
            ordered_keys, ordered = _ordered(keys, samples)
            num_ready = int(np.searchsorted(ordered_keys, place - highest / 2))
            yield ordered[:num_ready]
            keys, samples = [ordered_keys[num_ready:]], [ordered[num_ready:]]
            num_held -= num_ready
    if samples:
        yield _ordered(keys, samples)[1]


def _ordered(
    keys: list[npt.NDArray[np.float64]], samples: list[_Integers]
) -> tuple[npt.NDArray[np.float64], _Integers]:
    all_keys = np.concatenate(keys)
    order = np.argsort(all_keys)
    ordered_keys = all_keys[order]
    if bool((ordered_keys[1:] == ordered_keys[:-1]).any()):
        # Equal keys are rare. Only a stable sort gives them the same order on every CPU.
        order = np.argsort(all_keys, kind="stable")
    return ordered_keys, np.concatenate(samples)[order]


def _bounds(block_size: int) -> tuple[int, int]:
    lowest, highest = int(0.75 * block_size), int(1.25 * block_size)
    return lowest, max(highest, lowest + 1)

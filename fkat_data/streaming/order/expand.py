"""``py1e``: move each sample of a shard by a random distance, and thus spread the shard over a block's length.

For each node, the reference first draws all numbers that shuffle its pieces, then all that move the samples. Here two
generators draw both sequences in parallel. Samples wait in buckets of neighbouring places, and a bucket is sorted once
no later sample can reach it. A node of any size needs the memory of a block.
"""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[Any]
_Keys = npt.NDArray[np.float64]

#: Places in a bucket, at least: a bucket's arrays fit into the processor's cache.
_LEAST_WIDTH = 1 << 16
#: Buckets of a node, at most: their indices have 16 bits, which NumPy sorts fastest.
_MOST_BUCKETS = 1 << 15
#: Samples to distribute among buckets at a time.
_TOGETHER = 1 << 18


def chunks_of_py1e(
    pieces: Sequence[tuple[int, int]],
    generator: np.random.Generator,
    block_size: int,
    dtype: type[np.signedinteger[Any]],
    *,
    is_wanted: bool,
) -> Iterator[_Integers]:
    """Yield a canonical node's samples in chunks, in order, and advance the generator to the next node.

    Args:
        pieces: The node's pieces in order, as ``(start, stop)`` of sample numbers.
        generator: The epoch's generator, at the node's first draw.
        block_size: Number of places over which a piece is spread.
        dtype: Type of the chunks; it holds every sample number.
        is_wanted: Whether to yield the samples, or only to advance the generator.
    """
    lengths = [stop - start for start, stop in pieces]
    inner = copy.deepcopy(generator) if is_wanted else None
    scratch = np.empty(max(lengths, default=0), dtype)
    for length in lengths:
        generator.shuffle(scratch[:length])
    if inner is None:
        _draw_moves(lengths, generator, block_size)
    else:
        yield from _expanded(pieces, inner, generator, block_size, dtype)


def _draw_moves(lengths: Sequence[int], generator: np.random.Generator, block_size: int) -> None:
    lowest, highest = _bounds(block_size)
    scratch = np.empty(max(lengths, default=0), np.float64)
    for length in lengths:
        generator.integers(lowest, highest)
        generator.random(out=scratch[:length])


def _expanded(
    pieces: Sequence[tuple[int, int]],
    inner: np.random.Generator,
    outer: np.random.Generator,
    block_size: int,
    dtype: type[np.signedinteger[Any]],
) -> Iterator[_Integers]:
    lowest, highest = _bounds(block_size)
    size = sum(stop - start for start, stop in pieces)
    buckets = _Buckets(max(_LEAST_WIDTH, 1 << (size // _MOST_BUCKETS).bit_length()))
    place = 0
    for start, stop in pieces:
        length = stop - start
        ids = np.arange(start, stop, dtype=dtype)
        inner.shuffle(ids)
        reach = max((int(outer.integers(lowest, highest)) - length) / 2, 0)
        least, most = max(-reach, -place), min(reach, size - place - length)
        for first in range(0, length, _TOGETHER):
            part = ids[first : first + _TOGETHER]
            begin = place + first
            keys = np.arange(begin, begin + len(part), dtype=np.float64)
            keys += outer.uniform(least, most, len(part))
            buckets.add(keys, part)
        place += length
        # Later samples come after this key: a piece reaches back by at most half of the largest block.
        yield from buckets.taken_before(place - highest / 2)
    yield from buckets.taken()


class _Buckets:
    """Samples by their keys: bucket ``i`` has the keys from ``i * width`` on. ``width`` is a power of two."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._first = 0
        self._open: deque[list[tuple[_Keys, _Integers]]] = deque()
        self._added: list[tuple[_Keys, _Integers]] = []
        self._num_added = 0

    def add(self, keys: _Keys, samples: _Integers) -> None:
        """Add samples; none may belong to a bucket that was taken."""
        self._added.append((keys, samples))
        self._num_added += len(keys)
        if self._num_added >= _TOGETHER:
            self._distribute()

    def taken_before(self, key: float) -> Iterator[_Integers]:
        """Take the samples of the buckets that end before a key, in the order of their keys."""
        end = int(key // self._width)
        if end > self._first:
            yield from self.taken(end - self._first)

    def taken(self, num_buckets: int | None = None) -> Iterator[_Integers]:
        """Take the samples of the first buckets, or of all, in the order of their keys."""
        self._distribute()
        for _ in range(len(self._open) if num_buckets is None else num_buckets):
            parts = self._open.popleft() if self._open else []
            self._first += 1
            if parts:
                yield _ordered(parts)

    def _distribute(self) -> None:
        if not self._num_added:
            return
        keys = np.concatenate([keys for keys, _ in self._added])
        samples = np.concatenate([samples for _, samples in self._added])
        self._added, self._num_added = [], 0
        indices = (keys // self._width - self._first).astype(np.uint16)
        order = np.argsort(indices, kind="stable")
        keys, samples = keys[order], samples[order]
        stops = np.cumsum(np.bincount(indices)).tolist()
        self._open.extend([] for _ in range(len(stops) - len(self._open)))
        for bucket, start, stop in zip(self._open, [0, *stops[:-1]], stops, strict=False):
            if start < stop:
                # Copies: a view would keep all samples that were distributed together.
                bucket.append((keys[start:stop].copy(), samples[start:stop].copy()))


def _ordered(parts: Sequence[tuple[_Keys, _Integers]]) -> _Integers:
    keys = np.concatenate([keys for keys, _ in parts])
    order = np.argsort(keys)
    ordered = keys[order]
    if bool((ordered[1:] == ordered[:-1]).any()):
        # Equal keys are rare. Only a stable sort gives them the same order on every CPU.
        order = np.argsort(keys, kind="stable")
    return np.concatenate([samples for _, samples in parts])[order]


def _bounds(block_size: int) -> tuple[int, int]:
    lowest, highest = int(0.75 * block_size), int(1.25 * block_size)
    return lowest, max(highest, lowest + 1)

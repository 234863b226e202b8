"""The reference's shuffles: an epoch's order, drawn node by node up to the last one that is read."""

import copy
import functools
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order.spans import SpanLine, canonical_bounds, divided

_Integers = npt.NDArray[Any]
_Keys = npt.NDArray[np.float64]

#: Positions in a bucket, at least: a bucket's arrays fit into the processor's cache.
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
        block_size: Number of positions over which a piece is spread.
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
    position = 0
    for start, stop in pieces:
        length = stop - start
        ids = np.arange(start, stop, dtype=dtype)
        inner.shuffle(ids)
        reach = max((int(outer.integers(lowest, highest)) - length) / 2, 0)
        least, most = max(-reach, -position), min(reach, size - position - length)
        for first in range(0, length, _TOGETHER):
            part = ids[first : first + _TOGETHER]
            begin = position + first
            keys = np.arange(begin, begin + len(part), dtype=np.float64)
            keys += outer.uniform(least, most, len(part))
            buckets.add(keys, part)
        position += length
        # Later samples come after this key: a piece reaches back by at most half of the largest block.
        yield from buckets.taken_before(position - highest / 2)
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
        # Exact, because the width is a power of two, and faster than a division.
        indices = ((keys * (1 / self._width)).astype(np.int64) - self._first).astype(np.uint16)
        if indices.any():  # a small dataset has one bucket
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


class OrderPart(Protocol):
    """The samples of consecutive positions of an order. An array is one."""

    def __getitem__(self, positions: Any, /) -> _Integers:
        """Return the samples at an array of positions, counted from the part's first."""
        ...


class OrderCache(Protocol):
    """A cache of the computed parts of an order: in memory, or in files that the processes of a node share."""

    def __call__(
        self, key: str, size: int, dtype: type[np.signedinteger[Any]], make: Callable[[], Iterator[_Integers]]
    ) -> OrderPart:
        """Return a part, which is computed unless it is there already.

        Args:
            key: What determines the part's samples.
            size: Number of positions.
            dtype: Type of the samples.
            make: Computes the samples in chunks, in order. It may be called again.
        """
        ...


def in_memory(
    key: str,  # noqa: ARG001 - part of the protocol
    size: int,
    dtype: type[np.signedinteger[Any]],
    make: Callable[[], Iterator[_Integers]],
) -> OrderPart:
    """Return a part as an array of this process: an ``OrderCache`` that shares nothing."""
    order = np.empty(size, dtype)
    end = 0
    for samples in make():
        order[end : end + len(samples)] = samples
        end += len(samples)
    return order


_T = TypeVar("_T")

_MOST_INT32 = 2**31 - 1
_MOST_UINT16 = 2**16 - 1


ReferenceShuffleName: TypeAlias = Literal["naive", "py1b", "py1br", "py1e", "py1s", "py2s"]
REFERENCE_SHUFFLES: tuple[ReferenceShuffleName, ...] = get_args(ReferenceShuffleName)


@dataclass(eq=False)
class ReferenceShuffle:
    """An epoch's order by one of the reference's algorithms.

    Args:
        algorithm: One of ``REFERENCE_SHUFFLES``.
        unit_sizes: Samples in each unit of the shuffle: a shard, or the part of one that the epoch takes.
        num_canonical_nodes: Parts of the order. Each is shuffled separately.
        seed: Seed of the run.
        epoch: Index of the epoch, from 0.
        block_size: Number of positions over which a unit is spread.
        order_cache: Where the computed parts of the order are held.

    Raises:
        ConfigurationError: The algorithm does not work with these numbers.
    """

    algorithm: str
    unit_sizes: _Integers
    num_canonical_nodes: int
    seed: int
    epoch: int
    block_size: int
    order_cache: OrderCache = in_memory

    def __post_init__(self) -> None:
        self.size: int = int(self.unit_sizes.sum())
        # These two are computed as a whole.
        self._num_parts = 1 if self.algorithm in ("naive", "py2s") else self.num_canonical_nodes
        self._bounds = canonical_bounds(self.size, self._num_parts)
        self._dtype: type[np.signedinteger[Any]] = np.int32 if self.size <= _MOST_INT32 else np.int64
        self._parts: dict[int, OrderPart] = {}
        self._generators: list[np.random.Generator] = []
        check_shuffle(self.algorithm, self.size, self.num_canonical_nodes, self.block_size)

    def samples_at(self, positions: _Integers) -> _Integers:
        """Return the number of the sample at each position: same shape, int64."""
        if self._num_parts == 1 and len(positions):
            return self._part(0)[positions].astype(np.int64)
        parts = np.searchsorted(self._bounds[1:], positions, side="right")
        # A stable sort of small numbers takes time in proportion to their number, however many parts there are.
        order = np.argsort(parts.astype(np.uint16) if self._num_parts <= _MOST_UINT16 else parts, kind="stable")
        edges = np.searchsorted(parts[order], np.arange(self._num_parts + 1))
        found = np.empty(len(positions), np.int64)
        for part in np.flatnonzero(np.diff(edges)).tolist():
            where = order[edges[part] : edges[part + 1]]
            found[where] = self._part(part)[positions[where] - self._bounds[part]]
        return found

    def whole(self) -> _Integers:
        """Return the whole order: shape (size,), int64."""
        return self.samples_at(np.arange(self.size, dtype=np.int64))

    def _part(self, part: int) -> OrderPart:
        if part not in self._parts:
            size = int(self._bounds[part + 1] - self._bounds[part])
            self._parts[part] = self.order_cache(f"{self._key}-{part}", size, self._dtype, lambda: self._computed(part))
        return self._parts[part]

    @functools.cached_property
    def _key(self) -> str:
        made = hashlib.blake2s(np.ascontiguousarray(self.unit_sizes, "<i8").tobytes(), digest_size=16)
        values = (self.algorithm, self.num_canonical_nodes, self.seed, self.epoch, self.block_size, np.__version__)
        made.update(repr(values).encode())
        return made.hexdigest()

    def _computed(self, part: int) -> Iterator[_Integers]:
        if self.algorithm == "naive":
            return iter([np.random.default_rng(self.seed + self.epoch).permutation(self.size)])
        return self._py2s() if self.algorithm == "py2s" else self._by_node(part)

    @functools.cached_property
    def _layout(self) -> tuple[list[list[tuple[int, int]]], list[int]]:
        """Each node's pieces, and where ``py1br`` begins its blocks."""
        stops = np.cumsum(self.unit_sizes)
        # The reference shuffles a list of spans. Its draws depend only on the length.
        units = np.random.default_rng(self.seed).permutation(len(stops))
        spans = list(zip((stops - self.unit_sizes)[units].tolist(), stops[units].tolist(), strict=True))
        nodes = divided(spans, self._num_parts)
        generator = np.random.default_rng(self.seed + self.epoch)
        nodes = [_shuffled(pieces, generator) for pieces in nodes]
        staggers = [0] * len(nodes)
        if self.algorithm == "py1br":
            staggers = generator.integers(0, int(0.75 * self.block_size), len(nodes)).tolist()
        self._generators = [generator]
        return nodes, staggers

    def _by_node(self, wanted: int) -> Iterator[_Integers]:
        nodes, staggers = self._layout
        # A node's first draw comes after the last one of the node before it.
        for node in range(min(len(self._generators) - 1, wanted), wanted + 1):
            generator = copy.deepcopy(self._generators[node])
            yield from self._node(nodes[node], generator, staggers[node], node == wanted)
            if node + 1 == len(self._generators):
                self._generators.append(generator)

    def _node(
        self, pieces: list[tuple[int, int]], generator: np.random.Generator, stagger: int, is_wanted: bool
    ) -> Iterator[_Integers]:
        if self.algorithm == "py1s":
            return _py1s(pieces, generator, is_wanted)
        if self.algorithm == "py1b":
            return _py1b(pieces, generator, self.block_size, is_wanted)
        if self.algorithm == "py1br":
            return _py1br(pieces, generator, self.block_size, stagger, is_wanted)
        return chunks_of_py1e(pieces, generator, self.block_size, self._dtype, is_wanted=is_wanted)

    def _py2s(self) -> Iterator[_Integers]:
        stops = np.cumsum(self.unit_sizes).tolist()
        fixed = np.random.default_rng(self.seed)
        order = _shuffled(list(range(len(stops))), fixed)
        generator = np.random.default_rng(self.seed + self.epoch)
        # The bounds of the pieces are known in advance. Each unit's samples are shuffled once.
        bounds = np.cumsum([0, *(int(self.unit_sizes[unit]) for unit in order)]).tolist()
        nodes = divided(list(itertools.pairwise(bounds)), self.num_canonical_nodes)
        units = iter(order)
        unit_samples, unit_start, unit_stop = np.empty(0, np.int64), 0, -1
        for pieces in nodes:
            held: list[_Integers] = []
            for start, stop in pieces:
                # An empty unit is a piece too, and the next one may start at the same position.
                if start >= unit_stop or (start == stop):
                    unit = next(units)
                    size = int(self.unit_sizes[unit])
                    unit_samples = np.arange(stops[unit] - size, stops[unit], dtype=np.int64)
                    fixed.shuffle(unit_samples)
                    unit_start, unit_stop = start, start + size
                held.append(unit_samples[start - unit_start : stop - unit_start].copy())
            held = _shuffled(held, generator)
            for samples in held:
                generator.shuffle(samples)
                yield samples


def check_shuffle(algorithm: str, size: int, num_canonical_nodes: int, block_size: int) -> None:
    """Check that an algorithm works with these numbers.

    Raises:
        ConfigurationError: ``py1e`` has fewer samples than canonical nodes, or the block is too small.
    """
    if algorithm == "py1e" and 0 < size < num_canonical_nodes:
        raise ConfigurationError(
            "num_canonical_nodes", num_canonical_nodes, f"at most {size}, the number of samples to shuffle with py1e"
        )
    smallest = {"py1e": 1, "py1b": 1, "py1br": 2}.get(algorithm, 0)
    if block_size < smallest:
        raise ConfigurationError("shuffle_block_size", block_size, f"at least {smallest} for {algorithm}")


def _shuffled(items: list[_T], generator: np.random.Generator) -> list[_T]:
    # The same draws and the same order as generator.shuffle(items).
    return [items[index] for index in generator.permutation(len(items)).tolist()]


def _py1s(pieces: list[tuple[int, int]], generator: np.random.Generator, is_wanted: bool) -> Iterator[_Integers]:
    for start, stop in pieces:
        samples = np.arange(start, stop, dtype=np.int64)
        generator.shuffle(samples)
        if is_wanted:
            yield samples


def _py1b(
    pieces: list[tuple[int, int]], generator: np.random.Generator, block_size: int, is_wanted: bool
) -> Iterator[_Integers]:
    line = SpanLine(pieces)
    for start in range(0, line.size, block_size):
        samples = line.stretch(start, min(start + block_size, line.size))
        generator.shuffle(samples)
        if is_wanted:
            yield samples


def _py1br(
    pieces: list[tuple[int, int]], generator: np.random.Generator, block_size: int, stagger: int, is_wanted: bool
) -> Iterator[_Integers]:
    line = SpanLine(pieces)
    lowest, highest = int(0.75 * block_size), int(1.25 * block_size)
    blocks: list[tuple[int, int]] = []
    current = 0
    while current < line.size:
        size = int(generator.integers(lowest, highest))
        start, stop = max(current - stagger, 0), min(current + size - stagger, line.size)
        blocks.append((start, stop))
        current += stop - start
    # The first blocks may overlap, so build the whole node before shuffling.
    samples = np.empty(line.size, np.int64)
    for start in range(0, line.size if is_wanted else 0, _TOGETHER):
        stop = min(start + _TOGETHER, line.size)
        samples[start:stop] = line.stretch(start, stop)
    for start, stop in blocks:
        generator.shuffle(samples[start:stop])
    if is_wanted:
        yield samples

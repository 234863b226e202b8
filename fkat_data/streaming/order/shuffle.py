"""The reference's shuffles, with the same random numbers, one canonical node at a time.

The random numbers of a node follow those of the node before it. So a rank also draws the numbers of earlier nodes, but
builds the samples only of the nodes that it reads. ``py1e`` sorts in a sliding window, and needs the memory of a few
blocks instead of an epoch.
"""

import itertools
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.order.expand import chunks_of_py1e
from fkat_data.streaming.order.spans import SpanLine, canonical_bounds, divided

__all__ = ["REFERENCE_SHUFFLES", "ReferenceShuffle", "check_shuffle"]

_Integers = npt.NDArray[np.int64]
_T = TypeVar("_T")

REFERENCE_SHUFFLES = ("naive", "py1b", "py1br", "py1e", "py1s", "py2s")


class ReferenceShuffle:
    """An epoch's order by one of the reference's algorithms.

    Args:
        algorithm: One of ``REFERENCE_SHUFFLES``.
        unit_sizes: Samples in each unit of the shuffle: a shard, or the part of one that the epoch takes.
        num_canonical_nodes: Parts of the order. Each is shuffled separately.
        seed: Seed of the run.
        epoch: Index of the epoch, from 0.
        block_size: Number of places over which a unit is spread.

    Raises:
        ConfigurationError: The algorithm does not work with these numbers.
    """

    def __init__(
        self, algorithm: str, unit_sizes: _Integers, num_canonical_nodes: int, seed: int, epoch: int, block_size: int
    ) -> None:
        self._algorithm = algorithm
        self._unit_sizes = unit_sizes
        self._seed = seed
        self._epoch = epoch
        self._block_size = block_size
        self.size = int(unit_sizes.sum())
        self._bounds = canonical_bounds(self.size, num_canonical_nodes)
        check_shuffle(algorithm, self.size, num_canonical_nodes, block_size)

    def samples_at(self, places: _Integers) -> _Integers:
        """Return the number of the sample at each place: same shape, int64. Walk through the epoch once."""
        if bool((places[1:] >= places[:-1]).all()):
            return self._samples_at_ascending(places)
        order = np.argsort(places, kind="stable")
        found = np.empty(len(places), np.int64)
        found[order] = self._samples_at_ascending(places[order])
        return found

    def _samples_at_ascending(self, places: _Integers) -> _Integers:
        found = np.empty(len(places), np.int64)
        for start, samples in self._chunks(places):
            first, last = np.searchsorted(places, (start, start + len(samples)))
            found[first:last] = samples[places[first:last] - start]
        return found

    def whole(self) -> _Integers:
        """Return the whole order: shape (size,), int64."""
        return self.samples_at(np.arange(self.size, dtype=np.int64))

    def _chunks(self, ascending: _Integers) -> Iterator[tuple[int, _Integers]]:
        """Yield chunks of the order and the places where they start, among them all chunks with the given places."""
        if self._algorithm == "naive":
            yield 0, np.random.default_rng(self._seed + self._epoch).permutation(self.size)
            return
        counts = np.diff(np.searchsorted(ascending, self._bounds))
        wanted = np.flatnonzero(counts).tolist()
        nodes = self._py2s(set(wanted)) if self._algorithm == "py2s" else self._by_node(set(wanted))
        for node, place, samples in nodes:
            yield place, samples
            if not wanted or node > wanted[-1]:
                return

    def _by_node(self, wanted: set[int]) -> Iterator[tuple[int, int, _Integers]]:
        stops = np.cumsum(self._unit_sizes)
        # The reference shuffles a list of spans. Its draws depend only on the length.
        units = np.random.default_rng(self._seed).permutation(len(stops))
        spans = list(zip((stops - self._unit_sizes)[units].tolist(), stops[units].tolist(), strict=True))
        nodes = divided(spans, len(self._bounds) - 1)
        generator = np.random.default_rng(self._seed + self._epoch)
        nodes = [_shuffled(pieces, generator) for pieces in nodes]
        staggers = [0] * len(nodes)
        if self._algorithm == "py1br":
            staggers = generator.integers(0, int(0.75 * self._block_size), len(nodes)).tolist()
        last = max(wanted, default=-1)
        for node, pieces in enumerate(nodes[: last + 1]):
            place = int(self._bounds[node])
            is_wanted = node in wanted
            for samples in self._node(pieces, generator, staggers[node], is_wanted):
                yield node, place, samples
                place += len(samples)

    def _node(
        self, pieces: list[tuple[int, int]], generator: np.random.Generator, stagger: int, is_wanted: bool
    ) -> Iterator[_Integers]:
        if self._algorithm == "py1s":
            return _py1s(pieces, generator, is_wanted)
        if self._algorithm == "py1b":
            return _py1b(pieces, generator, self._block_size, is_wanted)
        if self._algorithm == "py1br":
            return _py1br(pieces, generator, self._block_size, stagger, is_wanted)
        return chunks_of_py1e(pieces, generator, self._block_size, is_wanted=is_wanted)

    def _py2s(self, wanted: set[int]) -> Iterator[tuple[int, int, _Integers]]:
        stops = np.cumsum(self._unit_sizes).tolist()
        fixed = np.random.default_rng(self._seed)
        order = _shuffled(list(range(len(stops))), fixed)
        generator = np.random.default_rng(self._seed + self._epoch)
        # The bounds of the pieces are known in advance. Each unit's samples are shuffled once.
        places = np.cumsum([0, *(int(self._unit_sizes[unit]) for unit in order)]).tolist()
        nodes = divided(list(itertools.pairwise(places)), len(self._bounds) - 1)
        units = iter(order)
        unit_samples, unit_start, unit_stop = np.empty(0, np.int64), 0, -1
        for node, pieces in enumerate(nodes[: max(wanted, default=-1) + 1]):
            held: list[_Integers] = []
            for start, stop in pieces:
                # An empty unit is a piece too, and the next one may start at the same place.
                if start >= unit_stop or (start == stop):
                    unit = next(units)
                    size = int(self._unit_sizes[unit])
                    unit_samples = np.arange(stops[unit] - size, stops[unit], dtype=np.int64)
                    fixed.shuffle(unit_samples)
                    unit_start, unit_stop = start, start + size
                held.append(unit_samples[start - unit_start : stop - unit_start].copy())
            held = _shuffled(held, generator)
            for samples in held:
                generator.shuffle(samples)
            if node in wanted:
                yield node, int(self._bounds[node]), np.concatenate([*held, np.empty(0, np.int64)])


def check_shuffle(algorithm: str, size: int, num_canonical_nodes: int, block_size: int) -> None:
    """Check that an algorithm works with these numbers.

    Raises:
        ConfigurationError: ``py1e`` has fewer samples than canonical nodes, or the block is too small.
    """
    if algorithm == "py1e" and size < num_canonical_nodes:
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
    samples = line.stretch(0, line.size) if is_wanted else np.empty(line.size, np.int64)
    for start, stop in blocks:
        generator.shuffle(samples[start:stop])
    if is_wanted:
        yield samples

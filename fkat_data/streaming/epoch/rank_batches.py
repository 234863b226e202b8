"""A rank's batches of an epoch, by the numbers of their samples, without those that are to be skipped."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import integer
from fkat_data.seeding import samples_seed
from fkat_data.streaming.epoch.shared_resume import ResumePoint
from fkat_data.streaming.order.epoch_order import EpochPlan

_EXPECTED = "a list of {'epoch': e, 'batches': [first, stop]} and {'samples': [id, ...]}"


_MOST_COUNTS = 7


class SampleSkips:
    """Global batches and samples to skip. All others stay in the batch where they would be without skips.

    Args:
        given: A list of ``{"epoch": 0, "batches": [100, 120]}``, which skips the global batches 100 to 119 of epoch 0,
            and ``{"samples": [17, 4]}``, which skips the samples with these ids in every epoch. Of what a loader has
            excluded, ``{"samples": [17], "from": [1, 640]}`` skips them from there on: all ranks had read 640 samples of
            epoch 1 then. ``{"epoch": 0, "span": [640, 1280]}`` skips what ranks read between 640 and 1280 samples, in
            batches of any size.

    Raises:
        ConfigurationError: ``given`` has another form.
    """

    def __init__(self, given: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._batches: set[tuple[int, int, int]] = set()
        self._spans: set[tuple[int, int, int]] = set()
        # By the epoch, and the samples of it that were read before.
        self._samples: dict[tuple[int, int], set[int]] = {}
        if given is not None and (isinstance(given, (str, Mapping)) or not isinstance(given, Sequence)):
            raise ConfigurationError("skip", given, _EXPECTED)
        for item in given or ():
            self._add(item)
        self._counts: dict[Hashable, int] = {}

    def counted(self, what: Hashable, count: Callable[[], int]) -> int:
        """Return what a function counts, which is called once for each of the newest things to count."""
        if what not in self._counts:
            self._counts = {**dict([*self._counts.items()][-_MOST_COUNTS:]), what: count()}
        return self._counts[what]

    def _add(self, item: object) -> None:
        values = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else dict[str, Any]()
        lists = [values[name] for name in ("samples", "batches", "span", "from") if name in values]
        if not lists or any(isinstance(numbers, str) or not isinstance(numbers, Sequence) for numbers in lists):
            raise ConfigurationError("skip", cast("object", item), _EXPECTED)
        found, *begin = ([integer("skip", number, minimum=0) for number in numbers] for numbers in lists)
        if set(values) in ({"samples"}, {"samples", "from"}) and all(len(pair) == 2 for pair in begin):
            epoch, sample_in_epoch = begin[0] if begin else (0, 0)
            self._samples.setdefault((epoch, sample_in_epoch), set()).update(found)
        elif set(values) in ({"epoch", "batches"}, {"epoch", "span"}) and len(found) == 2:
            ranges = self._batches if "batches" in values else self._spans
            ranges.add((integer("skip", values["epoch"], minimum=0), found[0], found[1]))
        else:
            raise ConfigurationError("skip", cast("object", item), _EXPECTED)

    def __bool__(self) -> bool:
        return bool(self._batches or self._spans or self._samples)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleSkips) and self.plain() == other.plain()

    def __hash__(self) -> int:
        return hash((frozenset(self._batches), frozenset(self._spans), frozenset(self._samples)))

    @property
    def has_samples(self) -> bool:
        """Whether samples within global batches are skipped."""
        return bool(self._samples or self._spans)

    def plain(self) -> list[dict[str, Any]]:
        """Return the skips as a state keeps them and a dataset takes them as ``skip``."""
        found: list[dict[str, Any]] = [
            {"epoch": epoch, name: [first, stop]}
            for name, ranges in (("batches", self._batches), ("span", self._spans))
            for epoch, first, stop in sorted(ranges)
        ]
        for begin, samples in sorted(self._samples.items()):
            found.append({"samples": sorted(samples), **({"from": [*begin]} if begin != (0, 0) else {})})
        return found

    def also(self, other: "SampleSkips") -> "SampleSkips":
        """Return the union of both skips."""
        return SampleSkips([*self.plain(), *other.plain()])

    def check(self, num_samples: int) -> None:
        """Check that every sample to skip exists.

        Raises:
            ConfigurationError: A sample does not exist.
        """
        largest = max((max(samples, default=0) for samples in self._samples.values()), default=-1)
        if largest >= num_samples:
            raise ConfigurationError("skip", largest, f"sample ids below {num_samples}")

    def is_skipped(self, epoch: int, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which global batches of an epoch are skipped as such: shape (len(batches),), bool."""
        found = np.zeros(len(batches), bool)
        for of_epoch, first, stop in self._batches:
            if of_epoch == epoch:
                found |= (first <= batches) & (batches < stop)
        return found

    def without(
        self, plan: EpochPlan, point: ResumePoint, indices: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the samples of global batches of a plan, with -1 for each skipped sample: same shape, int64.

        Args:
            plan: The rest of an epoch.
            point: Where it starts.
            indices: The global batches, counted from there.
            ids: Their samples: shape (len(indices), ranks, batch size).
        """
        if not self.has_samples or not len(indices):
            return ids
        grid, found = plan.grid, np.zeros(ids.shape, bool)
        # What all ranks have read of the epoch before each sample, in an order that is the same for any number of them.
        read = [plan.batching.num_rank_samples(index) * grid.num_ranks for index in indices.tolist()]
        starts = (point.sample_in_epoch + np.array(read, np.int64))[:, None, None]
        for begin, samples in self._samples.items():
            if begin[0] <= point.epoch:
                is_listed = np.isin(ids, [*samples])
                found |= is_listed & (starts >= begin[1]) if begin[0] == point.epoch else is_listed
        nodes, of_node = np.divmod(np.arange(grid.num_ranks)[:, None], grid.ranks_per_node)
        read_at = starts + np.arange(grid.batch_size) * grid.num_ranks + nodes + grid.num_nodes * of_node
        for epoch, first, stop in self._spans:
            if epoch == point.epoch:
                found |= (first <= read_at) & (read_at < stop)
        return np.where(found, -1, ids)


_Integers = npt.NDArray[np.int64]

#: Samples to plan at a time: the arrays fit into the processor's cache.
_CHUNK = 8192


class PickedSamples(NamedTuple):
    """The samples of a batch.

    Attributes:
        ids: Number of each sample: int64.
        positions: Each sample's position in the epoch's order, the same in every world: int64; None where no user's code
            makes the samples.
        seed: Of the epoch's random streams.
    """

    ids: _Integers
    positions: _Integers | None = None
    seed: int = 0

    def split(self, count: int) -> tuple["PickedSamples", "PickedSamples"]:
        """Return the first ``count`` samples, and the rest."""
        parts = slice(None, count), slice(count, None)
        first, rest = (
            PickedSamples(self.ids[part], None if self.positions is None else self.positions[part], self.seed)
            for part in parts
        )
        return first, rest


BatchGroup: TypeAlias = tuple[list[int], list[PickedSamples]]
"""Batches of the plan: their indices, and their samples."""


class RankBatches:
    """The batches that a rank reads in the rest of an epoch.

    If skips leave a rank with no sample of a global batch, every rank skips it. All ranks have equally many batches.

    Args:
        plan: The rest of the epoch.
        point: Where the plan starts.
        rank: Index of the rank.
        skips: Batches and samples to skip.

    Attributes:
        point: The same.
    """

    def __init__(self, plan: EpochPlan, point: ResumePoint, rank: int, skips: SampleSkips) -> None:
        self._plan = plan
        self.point = point
        self._rank = rank
        self._skips = skips
        self.first_batch: int = point.sample_in_epoch // plan.grid.global_batch_size
        """The number of the plan's first global batch, counted from the start of the epoch."""

    def picks(
        self, first: int = 0, part: int = 0, num_parts: int = 1, *, with_positions: bool = False
    ) -> Iterator[tuple[_Integers, list[PickedSamples]]]:
        """Yield what ``chunks`` does, with the samples' positions if they are wanted."""
        if not with_positions:
            for indices, chunk in self.chunks(first, part, num_parts):
                yield indices, [PickedSamples(ids) for ids in chunk]
            return
        seed = samples_seed(self.point.shuffle_seed or 0, self.point.epoch)
        for indices, own in self._planned(first, part, num_parts):
            positions = self._plan.rank_positions(self._rank, indices)
            yield (
                indices,
                [PickedSamples(ids[ids >= 0], at[ids >= 0], seed) for ids, at in zip(own, positions, strict=True)],
            )

    def chunks(self, first: int = 0, part: int = 0, num_parts: int = 1) -> Iterator[tuple[_Integers, list[_Integers]]]:
        """Yield batches in chunks: their indices in the plan, and the sample ids of each batch.

        Delivered batches are numbered 0, 1, 2, ... from the plan's start.

        Args:
            first: Number of the first batch to yield.
            part: Yield the batches whose number modulo ``num_parts`` is ``part``.
            num_parts: Number of parts that share the batches.
        """
        for indices, own in self._planned(first, part, num_parts):
            is_full = not own.size or own.min() >= 0
            yield indices, list(own) if is_full else [batch[batch >= 0] for batch in own]

    def _planned(self, first: int, part: int, num_parts: int) -> Iterator[tuple[_Integers, _Integers]]:
        num_batches = self._plan.batching.num_even_batches
        together = max(1, _CHUNK // self._plan.grid.batch_size)
        step = together * num_parts
        # Without skips, start at `first` right away.
        index = delivered = 0 if self._skips else min(first, num_batches)
        while index < num_batches:
            indices = np.arange(index, min(index + step, num_batches))
            index += step
            indices, ids = self._kept(indices)
            ordinals = delivered + np.arange(len(indices))
            delivered += len(indices)
            mine = (ordinals >= first) & (ordinals % num_parts == part)
            indices = indices[mine]
            own = self._plan.rank_batches(self._rank, indices) if ids is None else ids[mine]
            for start in range(0, len(indices), together):
                stop = start + together
                yield indices[start:stop], own[start:stop]

    def is_short(self, index: int) -> bool:
        """Return whether a batch of the plan is shorter than the batch size on every rank; only the last can be."""
        batching = self._plan.batching
        return batching.num_rank_samples(index + 1) - batching.num_rank_samples(index) < self._plan.grid.batch_size

    def sample_in_epoch_after(self, index: int) -> int:
        """Return ``sample_in_epoch`` after the delivery of a batch of the plan."""
        return self.point.sample_in_epoch + self._plan.batching.num_rank_samples(index + 1) * self._plan.grid.num_ranks

    def of_all_ranks(self, step: int) -> _Integers | None:
        """Return the samples of each rank's batch, by its number from the plan's start on, -1 for none; None: there is none.

        One row for each rank.
        """
        for indices, _ in self._planned(step, 0, 1):
            return self._left_in(indices[:1])[0] if len(indices) else None
        return None

    def span(self, first: int, last: int) -> tuple[int, int] | None:
        """Return what all ranks have read before a batch, and behind a later one; None: there is no such batch."""
        found = [index for indices, _ in self._planned(first, 0, 1) for index in indices[: last + 1 - first].tolist()]
        found = found[: last + 1 - first]
        return (self.sample_in_epoch_after(found[0] - 1), self.sample_in_epoch_after(found[-1])) if found else None

    def _left_in(self, indices: _Integers) -> _Integers:
        return self._skips.without(self._plan, self.point, indices, self._plan.global_batches(indices))

    def _kept(self, indices: _Integers) -> tuple[_Integers, _Integers | None]:
        """Return the batches to deliver, and this rank's sample ids if samples are skipped; else None."""
        indices = indices[~self._skips.is_skipped(self.point.epoch, self.first_batch + indices)]
        if not self._skips.has_samples:
            return indices, None
        ids = self._left_in(indices)
        is_kept = (ids >= 0).sum(axis=2).min(axis=1, initial=1) > 0
        return indices[is_kept], ids[is_kept, self._rank]


def joined(batches: Sequence[PickedSamples]) -> PickedSamples:
    """Return the samples of batches of one epoch, in order."""
    if not batches:
        return PickedSamples(np.empty(0, np.int64))
    positions = [batch.positions for batch in batches if batch.positions is not None]
    ids = np.concatenate([batch.ids for batch in batches])
    return PickedSamples(ids, np.concatenate(positions) if positions else None, batches[0].seed)


def in_groups(
    wanted: Iterable[BatchGroup],
    first: int,
    most: int,
    num_together: Callable[[_Integers], int] | None = None,
) -> Iterator[BatchGroup]:
    """Yield the same batches in groups: ``first`` of them, then twice as many each time, up to ``most``.

    A group has fewer batches where ``num_together`` returns that fewer of its samples may be read together.
    """
    together = first
    for numbers, chunk in wanted:
        start = 0
        while start < len(numbers):
            stop = start + together
            if num_together is not None and together > 1:
                group = chunk[start:stop]
                ends = np.cumsum([len(picks.ids) for picks in group])
                count = np.searchsorted(ends, num_together(ids_of(([], group))), side="right")
                stop = start + max(1, int(count))
            yield numbers[start:stop], chunk[start:stop]
            start = stop
            together = min(2 * together, most)


def ids_of(group: BatchGroup) -> _Integers:
    """Return the numbers of a group's samples."""
    return np.concatenate([picks.ids for picks in group[1]])

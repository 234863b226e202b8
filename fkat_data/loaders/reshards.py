"""An epoch that goes on with another number of ranks, or in batches of another size: how far the ranks before had come.

A *reshard* records how many microbatches each rank had when the number of ranks changed. What they had left, in the order
of the epoch, is dealt out to the next ranks from its beginning, as if it were an epoch of its own. So every rank computes
its part from the reshards; a state has nothing else of the ranks before. Saved, they are the field ``resplits``::

    [{"split_batches": False, "batch_size": 4, "step": 3, "epochs": [0, 0], "counts": [3, 3]}]
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, cycle, islice
from typing import Any, NamedTuple, cast

from torch.utils.data import BatchSampler, DistributedSampler

from fkat_data.errors import StateMismatchError
from fkat_data.errors.arguments import saved_integer
from fkat_data.runtime.interruption import genuine


class Remainder:
    """The remainder of a sequence: the items that ranks have left, by their offsets in it.

    Args:
        length: Items of the sequence.
        part_size: Items of a rank's part of a round; those that the last round lacks are at its end.
        counts: Parts that each rank has had.
    """

    def __init__(self, length: int, part_size: int, counts: Sequence[int]) -> None:
        self._sequence_length = length
        self._part_size = part_size
        self._counts = tuple(counts)

    def __len__(self) -> int:
        return self._length

    @property
    def _round_size(self) -> int:
        return self._part_size * len(self._counts)

    @cached_property
    def _stretches(self) -> list[tuple[int, int, int]]:
        """Rounds that the same ranks lack: what is left before them, their first round, and how many ranks it are."""
        found: list[tuple[int, int, int]] = []
        first = num_ranks = 0
        before = 0
        for count in sorted(self._counts):
            if num_ranks and count > before:
                found.append((first, before, num_ranks))
                first += (count - before) * num_ranks * self._part_size
            before = count
            num_ranks += 1
        return [*found, (first, before, num_ranks)]

    @cached_property
    def _ranks(self) -> list[int]:
        """The ranks, those that have had the fewest parts first."""
        return sorted(range(len(self._counts)), key=self._counts.__getitem__)

    @cached_property
    def _length(self) -> int:
        """What is left: only the last round of the sequence can lack something."""
        round_index, rest = divmod(self._sequence_length, self._round_size)
        first, first_round, num_ranks = self._stretches[self._stretch_of_round(round_index)]
        if round_index < first_round:  # every rank had it
            return 0
        whole = first + (round_index - first_round) * num_ranks * self._part_size
        lacking = self._ranks[:num_ranks]
        return whole + sum(min(self._part_size, max(0, rest - rank * self._part_size)) for rank in lacking)

    def _stretch_of_round(self, round_index: int) -> int:
        rounds = [first_round for _, first_round, _ in self._stretches]
        return max(0, bisect_right(rounds, round_index) - 1)

    def runs(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where the items from ``first`` to ``end`` of what is left are in the sequence, as ranges."""
        while first < end:
            begin, stop = self._run(first, end)
            yield begin, stop
            first += stop - begin

    def _run(self, first: int, end: int) -> tuple[int, int]:
        index = bisect_right(self._stretches, first, key=lambda stretch: stretch[0]) - 1
        before, first_round, num_ranks = self._stretches[index]
        if num_ranks == len(self._counts):
            begin = first_round * self._round_size + first - before
            return begin, begin + end - first
        rounds, within = divmod(first - before, num_ranks * self._part_size)
        part, offset = divmod(within, self._part_size)
        rank = self._lacking(num_ranks)[part]
        begin = (first_round + rounds) * self._round_size + rank * self._part_size + offset
        return begin, begin + min(end - first, self._part_size - offset)

    def _lacking(self, num_ranks: int) -> list[int]:
        if num_ranks not in self._sorted_ranks:
            self._sorted_ranks.clear()
            self._sorted_ranks[num_ranks] = sorted(self._ranks[:num_ranks])
        return self._sorted_ranks[num_ranks]

    @cached_property
    def _sorted_ranks(self) -> dict[int, list[int]]:
        return {}

    def __reduce__(self) -> tuple[type["Remainder"], tuple[int, int, tuple[int, ...]]]:
        return Remainder, (self._sequence_length, self._part_size, self._counts)


def in_epoch_order(remainders: Sequence[Remainder], first: int, end: int) -> list[tuple[int, int]]:
    """Return where items of what is left in the end are in the first sequence, as ranges.

    Args:
        remainders: What was left, each time of what was left before.
        first: The first item.
        end: The end of the items.
    """
    runs = [(first, end)]
    for rest in reversed(remainders):
        runs = [run for begin, stop in runs for run in rest.runs(begin, stop)]
    return runs


_NOT_A_RESHARD = "this is not a state of a fkat_data.DataLoader"


class Reshard(NamedTuple):
    """How far ranks had come when their number changed, or the size of their batches.

    Attributes:
        is_split: Whether each of them got a part of every batch.
        batch_size: Samples of a batch; 1 where they were single samples, or batches of any size.
        step: Where all ranks after them begin, in the earliest epoch of theirs.
        epochs: The epoch of each rank.
        counts: Microbatches of it that each rank had, of what the reshard before had left.
        is_by_order: Whether the dataset or the batch sampler dealt out, and deals out what is left.
    """

    is_split: bool
    batch_size: int
    step: int
    epochs: tuple[int, ...]
    counts: tuple[int, ...]
    is_by_order: bool = False

    def counts_in(self, epoch: int) -> list[int | None]:
        """Return how many microbatches of an epoch each rank had; None: all."""
        positions = zip(self.epochs, self.counts, strict=True)
        return [None if own > epoch else count if own == epoch else 0 for own, count in positions]


def of_epoch(reshards: Sequence[Reshard], epoch: int) -> list[Reshard]:
    """Return the reshards that decide on an epoch: those at which a rank had something of it."""
    return [reshard for reshard in reshards if any(count != 0 for count in reshard.counts_in(epoch))]


def first_step(reshards: Sequence[Reshard], epoch: int) -> int:
    """Return the ``step`` at which every rank begins its part of an epoch: 0, except in the epoch of the last reshard.

    There, it is the largest one of the ranks before: no number of a microbatch, and so no random stream, comes twice on
    a rank.
    """
    return reshards[-1].step if reshards and min(reshards[-1].epochs) == epoch else 0


def with_reshard(
    reshards: Sequence[Reshard],
    positions: Sequence[tuple[int, int]],
    batch_size: int | None,
    *,
    is_split: bool,
    is_by_order: bool,
) -> tuple[tuple[Reshard, ...], int, int]:
    """Append a reshard. Return those that still matter, and the epoch and step at which the next ranks begin.

    Args:
        reshards: All reshards so far.
        positions: The epoch and the step of each rank now.
        batch_size: Samples of their batches; None: they are single samples, or of any size.
        is_split: Whether each of these ranks got a part of every batch.
        is_by_order: Whether the dataset or the batch sampler deals out.
    """
    epoch = min(own for own, _ in positions)
    step = max(step for own, step in positions if own == epoch)
    counts = tuple(step - first_step(reshards, own) for own, step in positions)
    added = Reshard(is_split, batch_size or 1, step, tuple(own for own, _ in positions), counts, is_by_order)
    matter = tuple(
        reshard
        for reshard in (*reshards, added)
        if any((own, count) > (epoch, 0) for own, count in zip(reshard.epochs, reshard.counts, strict=True))
    )
    return matter, epoch, step


def remainders_of(reshards: Sequence[Reshard], epoch: int, length: int, *, drop_last: bool) -> list[Remainder]:
    """Return what each reshard has left of an epoch, each time of what the one before has left.

    Args:
        reshards: All reshards so far.
        epoch: The epoch.
        length: Its samples.
        drop_last: Whether ranks leave out a last round that is smaller.
    """
    remainders: list[Remainder] = []
    for reshard in of_epoch(reshards, epoch):
        counts = reshard.counts_in(epoch)
        part_size = reshard.batch_size // len(counts) if reshard.is_split else reshard.batch_size
        num_whole, rest = divmod(length, part_size * len(counts))
        num_rounds = num_whole + (rest > 0 and not drop_last)
        remainders.append(Remainder(length, part_size, [num_rounds if count is None else count for count in counts]))
        length = len(remainders[-1])
    return remainders


def remaining_batches(
    batches: Iterator[Any], reshard: Reshard, epoch: int, batch_size: int | None, *, drop_last: bool
) -> Iterator[Any]:
    """Yield the batches of an epoch that the ranks of a reshard have left.

    Args:
        batches: What was dealt out to them.
        reshard: How far they had come.
        epoch: The epoch.
        batch_size: Samples of each batch but the last; None: they are of any size.
        drop_last: Whether ranks leave out a last round that is smaller.
    """
    counts = reshard.counts_in(epoch)
    if not reshard.is_split:
        return _remaining_batches(batches, counts, batch_size, drop_last=drop_last)
    size = cast("int", batch_size)
    if len(set(counts)) == 1:
        return islice(batches, counts[0], None)
    return _in_batches(_remaining_parts(batches, counts, size, drop_last=drop_last), size)


def _remaining_batches(
    batches: Iterator[Any], counts: Sequence[int | None], batch_size: int | None, *, drop_last: bool
) -> Iterator[Any]:
    num_common, num_most = _bounds(counts)
    yield from islice(batches, num_common * len(counts), num_common * len(counts))  # those that all ranks have had
    number = num_common
    while num_most is None or number < num_most:
        drawn = list(islice(batches, len(counts)))
        if not drawn:
            return
        is_short = len(drawn) < len(counts) or (batch_size is not None and len(drawn[-1]) < batch_size)
        for batch, count in zip(drawn, counts, strict=False):
            if (count is not None and count <= number) or (is_short and drop_last):
                yield batch
        number += 1
    yield from batches


def _remaining_parts(
    batches: Iterator[Any], counts: Sequence[int | None], batch_size: int, *, drop_last: bool
) -> Iterator[list[Any]]:
    size = batch_size // len(counts)
    for number, batch in enumerate(batches):
        is_short = len(batch) < batch_size
        lacking = [
            rank
            for rank, count in enumerate(counts)
            if (count is not None and count <= number) or (is_short and drop_last)
        ]
        yield [sample for rank in lacking for sample in batch[size * rank : size * (rank + 1)]]


def _in_batches(parts: Iterator[list[Any]], batch_size: int) -> Iterator[list[Any]]:
    samples = chain.from_iterable(parts)
    while batch := list(islice(samples, batch_size)):
        yield batch


def _bounds(counts: Sequence[int | None]) -> tuple[int, int | None]:
    """Return how many rounds all ranks have had, and how many at least one of them; None: all."""
    known = [count for count in counts if count is not None]
    return min(known), None if len(known) < len(counts) else max(known)


def reshards_field(reshards: Sequence[Reshard], epoch: int) -> dict[str, Any]:
    """Return the field of a state for the reshards that matter to an epoch or a later one; no field for none."""
    plain = [
        {
            "split_batches": reshard.is_split,
            "batch_size": reshard.batch_size,
            "step": reshard.step,
            "epochs": list(reshard.epochs),
            "counts": list(reshard.counts),
            **({"by_order": True} if reshard.is_by_order else {}),
        }
        for reshard in reshards
        if any((own, count) > (epoch, 0) for own, count in zip(reshard.epochs, reshard.counts, strict=True))
    ]
    return {"resplits": plain} if plain else {}


def reshards_in(state: Mapping[str, Any]) -> tuple[Reshard, ...]:
    """Return the reshards of a state.

    Raises:
        StateMismatchError: The field is damaged.
    """
    found: Any = state.get("resplits", ())
    if not isinstance(found, (list, tuple)):
        raise StateMismatchError("resplits", found, "<a list>", _NOT_A_RESHARD)
    return tuple(_reshard(each) for each in cast("Sequence[object]", found))


def _reshard(found: Any) -> Reshard:
    try:
        is_split, step = bool(found["split_batches"]), _count(found["step"])
        epochs, counts = (tuple(_count(number) for number in found[name]) for name in ("epochs", "counts"))
        is_by_order = bool(found.get("by_order"))
        batch_size = _count(found["batch_size"])
    except genuine(AttributeError, TypeError, KeyError):
        raise StateMismatchError("resplits", found, "<a position for each rank>", _NOT_A_RESHARD) from None
    if not epochs or len(epochs) != len(counts):
        raise StateMismatchError("resplits", found, "<a position for each rank>", _NOT_A_RESHARD)
    return Reshard(is_split, batch_size, step, epochs, counts, is_by_order)


def _count(number: object) -> int:
    return saved_integer("resplits", number, minimum=0, hint=_NOT_A_RESHARD)


def distributed_sampler_of(order: object) -> "DistributedSampler[Any] | None":
    """Return the ``DistributedSampler`` that a sampler is, or that a batch sampler of torch's takes its indices from.

    One of a subclass only if its order is torch's: it follows from arguments then, for any rank.
    """
    sampler: object = order.sampler if type(order) is BatchSampler else order
    if not isinstance(sampler, DistributedSampler):
        return None
    kind, torchs = cast("Any", type(cast("object", sampler))), cast("Any", DistributedSampler)
    has_own_order = hasattr(kind, "state_dict") or (kind.__iter__, kind.__len__) != (torchs.__iter__, torchs.__len__)
    return None if has_own_order else cast("DistributedSampler[Any]", sampler)


_INNER = ("batch_sampler", "sampler", "base_sampler")
_DEEPEST = 4


def rank_in(order: object, depth: int = 0) -> tuple[int, int | None] | None:
    """Return the rank that a sampler, or one that it takes its indices from, says it is of, and of how many; None: none."""
    rank: Any = getattr(order, "rank", getattr(order, "process_index", None))
    if type(rank) is int:
        sizes = (getattr(order, name, None) for name in ("num_replicas", "num_processes", "world_size", "num_ranks"))
        return rank, next((size for size in sizes if type(size) is int), None)
    inner = [getattr(order, name, None) for name in _INNER]
    of_sources = getattr(order, "samplers", None)  # of a mixture's batch sampler
    inner += of_sources.values() if isinstance(of_sources, Mapping) else ()
    found = (rank_in(each, depth + 1) for each in inner if each is not None and each is not order and depth < _DEEPEST)
    return next(filter(None, found), None)


def distributed_settings(sampler: "DistributedSampler[Any]") -> dict[str, Any]:
    """Return what a sampler's order depends on, and which rank's it is, as plain values."""
    return {
        "num_samples": len(cast("Any", sampler.dataset)),
        "shuffle": bool(sampler.shuffle),
        "seed": int(sampler.seed),
        "epoch": int(sampler.epoch),
        "drop_last": bool(sampler.drop_last),
        "num_replicas": int(sampler.num_replicas),
        "rank": int(sampler.rank),
    }


class DistributedRemainder:
    """A rank's part of an epoch that other ranks have begun, by a ``DistributedSampler``.

    Args:
        sampler: This rank's.
        reshards: How far ranks had come when their number changed.
        epoch: The loader's epoch.
        batch_size: Samples of a batch; None: single indices, not batches.
        drop_last: Whether the rank's last batch is left out if it is smaller.
    """

    def __init__(
        self,
        sampler: "DistributedSampler[Any]",
        reshards: Sequence[Reshard],
        epoch: int,
        batch_size: int | None,
        *,
        drop_last: bool,
    ) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._first_step = first_step(reshards, epoch)
        self._remainders: list[Remainder] = []
        length = len(cast("Any", sampler.dataset))
        for reshard in of_epoch(reshards, epoch):
            counts = reshard.counts_in(epoch)
            whole = self._num_own(length, len(counts))
            whole -= whole % reshard.batch_size if drop_last else 0
            had = [whole if count is None else count * reshard.batch_size for count in counts]
            self._remainders.append(Remainder(length, 1, had))
            length = len(self._remainders[-1])
        self._num_left = length

    @property
    def _size(self) -> int:
        return self._batch_size or 1

    def _num_own(self, length: int, num_ranks: int) -> int:
        return length // num_ranks if self._sampler.drop_last else -(-length // num_ranks)

    def __len__(self) -> int:
        """Return the rank's batches of the epoch, with those before."""
        whole, rest = divmod(self._num_own(self._num_left, self._sampler.num_replicas), self._size)
        return self._first_step + whole + (rest > 0 and not self._drop_last)

    def batches(self) -> list[Any]:
        """Return what the rank gets, in order."""
        sampler = self._sampler
        # One replica has every sample once.
        whole: DistributedSampler[Any] = DistributedSampler(
            cast("Any", sampler.dataset), 1, 0, shuffle=sampler.shuffle, seed=sampler.seed
        )
        whole.set_epoch(sampler.epoch)
        indices: list[int] = list(whole)
        left = [
            *chain.from_iterable(indices[slice(*run)] for run in in_epoch_order(self._remainders, 0, self._num_left))
        ]
        num_ranks = sampler.num_replicas
        total = self._num_own(self._num_left, num_ranks) * num_ranks
        own = list(islice(chain(left, cycle(indices)), sampler.rank, total, num_ranks))
        if self._batch_size is None:
            return own
        firsts = range(0, len(own), self._batch_size)
        batches = [own[first : first + self._batch_size] for first in firsts]
        return batches[: len(self) - self._first_step]

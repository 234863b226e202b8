"""Reshards of an epoch that is dealt out in batches: their form in a state, and what each rank gets of the remainder.

What ranks had left, in the order of the epoch, is dealt out to the next ranks from its beginning, as if it were an epoch of
its own. So every rank computes its part from the reshards; a state has nothing else of the ranks before. Saved, they are
the field ``resplits``::

    [{"split_batches": False, "batch_size": 4, "step": 3, "epochs": [0, 0], "counts": [3, 3]}]

Where samples were left out from then on, an entry says so, ``"excluded": [17, 20]`` and ``"excluded_steps": [5, 9]``. What
was left in the order without them is dealt out again, to as many ranks as before.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from typing import Any, NamedTuple, cast

from torch.utils.data import BatchSampler, DistributedSampler

from fkat_data.errors import StateMismatchError
from fkat_data.errors.arguments import saved_integer
from fkat_data.plan.position import Dealing, Exclusion, Position, Reshard
from fkat_data.plan.resharding import Remainder, excluded_before, first_step, kept_in_state, of_epoch
from fkat_data.runtime.interruption import genuine

_NOT_A_RESHARD = "this is not a state of a fkat_data.DataLoader"


class EpochRemainder(NamedTuple):
    """What of an epoch's samples is there for ranks.

    Attributes:
        left: What ranks before have left.
        whole: All that was not left out before it came: what a last round is filled up with.
    """

    left: Remainder
    whole: Remainder


def remainder_of(
    reshards: Sequence[Reshard],
    epoch: int,
    length: int,
    *,
    drop_last: bool,
    numbers_of: Callable[[Collection[int]], list[int]] = sorted,
) -> EpochRemainder:
    """Return what ranks have left of an epoch's samples.

    Args:
        reshards: All reshards so far.
        epoch: The epoch.
        length: Its samples.
        drop_last: Whether ranks leave out a last round that is smaller.
        numbers_of: Returns the numbers, in the epoch's order, of samples.
    """

    def without(remainder: Remainder, numbers: Iterable[int]) -> Remainder:
        return remainder.without((offset, offset + 1) for offset in remainder.offsets_of(numbers))

    left = whole = without(Remainder(length), numbers_of(excluded_before(reshards, epoch)))
    for reshard in of_epoch(reshards, epoch):
        (size, is_split, _), counts, exclusion = reshard.dealing, reshard.counts_in(epoch), reshard.exclusion
        part_size = size // len(counts) if is_split else size
        num_whole, rest = divmod(len(left), part_size * len(counts))
        left = left.after(part_size, all_known(counts, num_whole + (rest > 0 and not drop_last)))
        if exclusion is None or reshard.epoch != epoch:
            continue
        if exclusion.steps is not None:
            first, last = (step - reshard.step for step in exclusion.steps)
            begin, stop = (min(step * part_size * len(counts), len(left)) for step in (first, last + 1))
            excluded = [number for run in left.runs(begin, stop) for number in range(*run)]
            left, whole = left.without([(begin, stop)]), without(whole, excluded)
        numbers = numbers_of(exclusion.samples)
        left, whole = without(left, numbers), without(whole, numbers)
    return EpochRemainder(left, whole)


def all_known(counts: Sequence[int | None], num_rounds: int) -> list[int]:
    """Return how many parts each rank had; one that had all had ``num_rounds``."""
    return [num_rounds if count is None else count for count in counts]


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
    if not reshard.dealing.is_split:
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
            "split_batches": reshard.dealing.is_split,
            "batch_size": reshard.dealing.batch_size,
            "step": reshard.step,
            "epochs": [position.epoch for position in reshard.positions],
            "counts": [position.microbatch for position in reshard.positions],
            **({"by_order": True} if reshard.dealing.is_by_order else {}),
            **_exclusion_fields(reshard.exclusion),
        }
        for reshard in kept_in_state(reshards, epoch)
    ]
    return {"resplits": plain} if plain else {}


def _exclusion_fields(exclusion: Exclusion | None) -> dict[str, list[int]]:
    samples, steps = Exclusion() if exclusion is None else exclusion
    return {**({"excluded": [*samples]} if samples else {}), **({"excluded_steps": [*steps]} if steps else {})}


def reshards_in(state: Mapping[str, Any]) -> tuple[Reshard, ...]:
    """Return the reshards of a state.

    Raises:
        StateMismatchError: The field is damaged.
    """
    found: Any = state.get("resplits", ())
    if not isinstance(found, (list, tuple)):
        raise StateMismatchError("resplits", found, "<a list>", _NOT_A_RESHARD)
    reshards: list[Reshard] = []
    for each in cast("Sequence[object]", found):
        reshards.append(_reshard(each, reshards))
    return tuple(reshards)


def _reshard(found: Any, before: Sequence[Reshard]) -> Reshard:
    try:
        is_split, step = bool(found["split_batches"]), _count(found["step"])
        epochs, counts = (tuple(_count(number) for number in found[name]) for name in ("epochs", "counts"))
        is_by_order = bool(found.get("by_order"))
        batch_size = _count(found["batch_size"])
        samples, steps = (
            tuple(_count(number) for number in found.get(name, ())) for name in ("excluded", "excluded_steps")
        )
    except genuine(AttributeError, TypeError, KeyError):
        raise StateMismatchError("resplits", found, "<a position for each rank>", _NOT_A_RESHARD) from None
    if not epochs or len(epochs) != len(counts) or len(steps) not in (0, 2):
        raise StateMismatchError("resplits", found, "<a position for each rank>", _NOT_A_RESHARD)
    saved = zip(epochs, counts, strict=True)
    positions = tuple(position_at(before, epoch, first_step(before, epoch) + count) for epoch, count in saved)
    exclusion = Exclusion(samples, cast("tuple[int, int]", steps) or None) if samples or steps else None
    return Reshard(positions, step, Dealing(batch_size, is_split, is_by_order), exclusion)


def position_at(reshards: Sequence[Reshard], epoch: int, step: int) -> Position:
    """Return the position of a rank in what the last reshard has given it."""
    return Position(epoch, 0, step - first_step(reshards, epoch), step)


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
    """What a ``DistributedSampler`` deals out of an epoch, which other ranks may have begun.

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
        self._left = Remainder(len(cast("Any", sampler.dataset)))
        for reshard in of_epoch(reshards, epoch):
            counts, size = reshard.counts_in(epoch), reshard.dealing.batch_size
            whole = self._num_own(len(counts))
            whole -= whole % size if drop_last else 0
            self._left = self._left.after(1, [whole if count is None else count * size for count in counts])

    @property
    def _size(self) -> int:
        return self._batch_size or 1

    def _num_own(self, num_ranks: int) -> int:
        return len(self._left) // num_ranks if self._sampler.drop_last else -(-len(self._left) // num_ranks)

    def __len__(self) -> int:
        """Return the rank's batches of the epoch, with those before."""
        whole, rest = divmod(self._num_own(self._sampler.num_replicas), self._size)
        return self._first_step + whole + (rest > 0 and not self._drop_last)

    def batches(self) -> list[Any]:
        """Return what the rank gets, in order."""
        own = self._dealt(0, None)[self._sampler.rank]
        if self._batch_size is None:
            return own
        firsts = range(0, len(own), self._batch_size)
        batches = [own[first : first + self._batch_size] for first in firsts]
        return batches[: len(self) - self._first_step]

    def round_at(self, step: int) -> list[list[Any]]:
        """Return the indices of each rank's batch at a step; none where the epoch has no such step, or others had it."""
        if not self._first_step <= step < len(self):
            return []
        first = (step - self._first_step) * self._size
        return self._dealt(first, first + self._size)

    def _dealt(self, first: int, stop: int | None) -> list[list[Any]]:
        """Return what each rank gets from one of its indices to another."""
        sampler = self._sampler
        # One replica has every sample once.
        whole: DistributedSampler[Any] = DistributedSampler(
            cast("Any", sampler.dataset), 1, 0, shuffle=sampler.shuffle, seed=sampler.seed
        )
        whole.set_epoch(sampler.epoch)
        indices: list[int] = list(whole)
        left = chain.from_iterable(indices[slice(*run)] for run in self._left.runs(0, len(self._left)))
        num_ranks, num_own = sampler.num_replicas, self._num_own(sampler.num_replicas)
        stop = num_own if stop is None else min(stop, num_own)
        dealt = list(islice(chain(left, cycle(indices)), first * num_ranks, stop * num_ranks))
        return [dealt[rank::num_ranks] for rank in range(num_ranks)]

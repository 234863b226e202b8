"""Orders that are planned window by window and dealt out to ranks, and what a loader needs to deal the rest out again."""

import copy
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fkat_data.datasets.equal_cost import WINDOWS_OF_A_HORIZON, CostBalance
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.arguments import boolean, integer, saved_integer
from fkat_data.permutation import drawn_seed, permutation

RankCounts: TypeAlias = Sequence[int | None]
"""The number of batches that each rank had since the number of ranks changed; None: all that were left."""


class PlannedBatch(NamedTuple):
    """A batch of a plan, or what is left of one.

    Attributes:
        position: Where the batch stands in the plan: numbers in the order of one rank.
        members: Indices of the samples.
        width: Padded length of a sample; batches of one width take about the same time.
        first: How many of the plan's members come before these.
    """

    position: int
    members: list[int]
    width: int
    first: int = 0


def split_largest(sizes: Sequence[int], count: int) -> list[tuple[int, int, int]] | None:
    """Return ``count`` parts of some groups, of which the largest are halved again and again; None if there are too few members for that.

    Args:
        sizes: Number of members of each group, at least 1.
        count: Number of parts, at least that of the groups.

    Returns:
        Parts as group, start and stop, in the order of groups and members: parts of one group stand side by side.
    """
    if sum(sizes) < count:
        return None
    parts = [(-size, group, 0) for group, size in enumerate(sizes)]
    heapq.heapify(parts)
    for _ in range(count - len(sizes)):
        size, group, start = parts[0]
        half = -size // 2
        heapq.heapreplace(parts, (-half, group, start))
        heapq.heappush(parts, (size + half, group, start + half))
    return sorted((group, start, start - size) for size, group, start in parts)


def balanced_rounds(
    num_windows: int,
    plan: Callable[[int], list[PlannedBatch]],
    num_ranks: int,
    earlier: Iterable[RankCounts] = (),
    balance: CostBalance | None = None,
) -> Iterator[list[list[int]]]:
    """Yield the rounds of an epoch, or of what the ranks before have left of it.

    In each round, all ranks have batches of about one width, because neighbours in the order of widths are dealt
    together. Batches that make no whole round stay for the next window. In the last window, the fullest batches are
    halved until all rounds are whole. If there are too few samples for that, up to ``num_ranks - 1`` batches are left
    out. One rank gets the plan as it is.

    Args:
        num_windows: Number of windows in the epoch.
        plan: Called with a window; returns its batches.
        num_ranks: Number of ranks.
        earlier: The ranks before, at each change of their number.
        balance: Deals neighbours by cost instead, of several windows; None: by width, of each window.

    Yields:
        A batch for each rank.
    """
    left: list[PlannedBatch] = []  # of the windows before ``window``
    window = 0

    def deal(num_ranks: int, num_dealt: int) -> tuple[list[list[PlannedBatch]], list[PlannedBatch]]:
        is_last = window == num_windows
        return _dealt(left, num_ranks, balance, window=window, is_last=is_last, num_dealt=num_dealt)

    for counts in earlier:
        most = None if None in counts else max(count for count in counts if count is not None)
        num_dealt = 0
        undelivered: list[PlannedBatch] = []
        while True:
            dealt, left = deal(len(counts), num_dealt)
            for each in dealt:
                had = [count is None or count > num_dealt for count in counts]
                undelivered += [batch for batch, is_had in zip(each, had, strict=True) if not is_had]
                num_dealt += 1
            if window == num_windows or (most is not None and num_dealt >= most):
                break
            left = left + plan(window)
            window += 1
        left = _joined([*left, *undelivered])
    num_dealt = 0
    while True:
        dealt, left = deal(num_ranks, num_dealt)
        num_dealt += len(dealt)
        for each in dealt:
            yield [batch.members for batch in each]
        if window == num_windows:
            return
        left = left + plan(window)
        window += 1


def _dealt(
    batches: list[PlannedBatch],
    num_ranks: int,
    balance: CostBalance | None,
    *,
    window: int,
    is_last: bool,
    num_dealt: int,
) -> tuple[list[list[PlannedBatch]], list[PlannedBatch]]:
    """Return rounds in the order of their first batches, and the batches that make no whole round."""
    if num_ranks == 1:
        return [[batch] for batch in sorted(batches)], []
    horizon = 1 if balance is None else WINDOWS_OF_A_HORIZON
    if balance is not None and not is_last and (window % horizon or not balance.is_enough(len(batches), num_ranks)):
        return [], batches

    def cost(batch: PlannedBatch) -> float:
        return batch.width if balance is None else len(batch.members) * balance.of([batch.width])

    batches = sorted(batches, key=cost)
    rest: list[PlannedBatch] = []
    spare = len(batches) % num_ranks
    if spare and is_last:
        parts = split_largest([len(batch.members) for batch in batches], len(batches) + num_ranks - spare)
        if parts is not None:
            batches = [_part(batches[index], start, stop) for index, start, stop in parts]
            spare = 0
    if spare:
        is_odd = window // horizon % 2 == 1
        # In turn the longest and the shortest, so that none stays from window to window.
        kept = len(batches) - spare
        batches, rest = (batches[:kept], batches[kept:]) if is_odd or is_last else (batches[spare:], batches[:spare])
    if balance is not None:
        batches.sort()
        rounds = balance.rounds([cost(batch) for batch in batches], num_ranks, num_dealt)
        return [[batches[index] for index in each] for each in rounds.tolist()], rest
    found: list[list[PlannedBatch]] = []
    for step, start in enumerate(range(0, len(batches), num_ranks)):
        # Ranks take turns, so that the longest batch of each round goes to a different one.
        turn = start + step % num_ranks
        found.append(batches[turn : start + num_ranks] + batches[start:turn])
    found.sort(key=min)
    return found, rest


def _part(batch: PlannedBatch, start: int, stop: int) -> PlannedBatch:
    return batch._replace(members=batch.members[start:stop], first=batch.first + start)


def _joined(batches: list[PlannedBatch]) -> list[PlannedBatch]:
    """Return what is left of each of the plan's batches as one batch."""
    found: dict[int, PlannedBatch] = {}
    for batch in sorted(batches, key=lambda batch: (batch.position, batch.first)):
        before = found.get(batch.position)
        found[batch.position] = batch if before is None else before._replace(members=before.members + batch.members)
    return list(found.values())


class Windows:
    """An epoch's order of some items, in windows of at least ``window_size`` and less than twice that.

    Args:
        items: Indices of a dataset.
        window_size: Minimum number of items in a window, at least ``world_size``. Fewer items form one window.
        rank: Index of this rank, from 0 to ``world_size - 1``.
        world_size: Number of ranks.
        shuffle: Whether to shuffle the items in each epoch.
        seed: Any integer. None, for one rank only: draw one from torch's global CPU generator.

    Raises:
        ConfigurationError: An argument is invalid, or there are fewer items than ranks.
    """

    def __init__(
        self,
        items: npt.NDArray[np.int64],
        window_size: int,
        *,
        rank: int,
        world_size: int,
        shuffle: bool,
        seed: int | None,
    ) -> None:
        self.window_size: int = integer("window_size", window_size, minimum=1)
        self.shuffle: bool = boolean("shuffle", shuffle)
        self.is_seed_given: bool = seed is not None
        self._items = items
        self._check_ranks(world_size)
        self.world_size: int = int(world_size)
        self.rank: int = integer("rank", rank, minimum=0, maximum=self.world_size - 1)
        if seed is None and self.shuffle and world_size > 1:
            # Each rank would draw a different seed, and compute a different plan.
            raise ConfigurationError("seed", seed, f"an integer, the same on all {world_size} ranks")
        self.seed: int = drawn_seed() if seed is None else integer("seed", seed)
        self.num_windows: int = max(1, len(items) // self.window_size)
        self._last: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None

    def for_rank(self, dp_size: int, dp_rank: int) -> "Windows":
        """Return these windows for rank ``dp_rank`` of ``dp_size``.

        Raises:
            ConfigurationError: The rank does not exist, or there are fewer items than ranks.
        """
        self._check_ranks(dp_size)
        other = copy.copy(self)
        other.world_size, other.rank = int(dp_size), integer("dp_rank", dp_rank, minimum=0, maximum=dp_size - 1)
        return other

    def saved_seed(self, seed: object) -> int:
        """Return the seed of a state.

        Raises:
            StateMismatchError: It is none, or the caller has given another one.
        """
        saved = saved_integer("seed", seed)
        if self.is_seed_given and saved != self.seed:
            raise StateMismatchError("seed", saved, self.seed, "pass seed=None to use the saved seed")
        return saved

    def _check_ranks(self, world_size: int) -> None:
        integer("window_size", self.window_size, minimum=integer("world_size", world_size, minimum=1))
        if len(self._items) < world_size:
            raise ConfigurationError("world_size", world_size, f"at most {len(self._items)}, the number of items")

    def items(self, epoch: int, window: int) -> npt.NDArray[np.int64]:
        """Return the items of a window, in the epoch's order."""
        name = (self.seed, epoch)
        last = self._last
        if last is None or last[0] != name:
            order = self._items
            if self.shuffle:
                order = order[permutation(len(order), b"fkat_data window", self.seed, epoch)]
            self._last = last = (name, order)
        start, stop = (edge * len(self._items) // self.num_windows for edge in (window, window + 1))
        return last[1][start:stop]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

"""A node: its ranks fetch shards into one cache, over one line."""

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from fkat_data.tools.simulation.costs import ShardCosts
from fkat_data.tools.simulation.link import Link
from fkat_data.tools.simulation.needs import StepGroup
from fkat_data.tools.simulation.setup import Setup
from fkat_data.tools.simulation.simulated_cache import SimulatedCache
from fkat_data.tools.simulation.simulated_rank import SimulatedRank

__all__ = ["SimulatedNode", "next_look_s"]


#: So long, on average, a shard is ready before a rank that has left it to another looks again.
_LEFT_S = 0.01
#: Whoever cannot go on without a shard that another makes ready looks after this time, then after twice that, ...
_FIRST_LOOK_S = 0.001
#: ... and at last as often as this.
_LOOK_S = 0.05


class _Work(NamedTuple):
    """A shard that is being made ready.

    Attributes:
        rank: Who does it.
        is_ahead: Whether it is one of its threads that reads ahead; else it cannot go on without the shard.
        left: Ranks that have left it to this one.
        waiting: Ranks that cannot go on without it, and since when they look for it.
    """

    rank: SimulatedRank
    is_ahead: bool
    left: list[SimulatedRank]
    waiting: list[tuple[SimulatedRank, float]]


class SimulatedNode:
    """A node, as a queue of events.

    A rank's threads take what it wants in the order of need. What is in the cache is ready; what another rank is
    making ready is left to it, and looked at again when that is done; anything else is fetched: a request for each
    file, the transfer, the decompression. Whoever reads a part opens its shards one after the other, and fetches for
    itself what is neither ready nor begun.

    Args:
        num_ranks: Its ranks.
        costs: What each shard costs.
        setup: The run.

    Attributes:
        link: Its transfers.
        cache: Its shards.
        fetched_bytes: What has come, of files that are whole.
        fetched: Shards that have been begun at least once.
        num_fetches: Shards that were begun, again and again counted.
        num_fetched_again: Of these, shards that had been begun in the same epoch.
        num_hits: Times that a rank found a shard in the cache.
        num_shared: Times that a rank waited for a shard that another was making ready.
    """

    def __init__(self, num_ranks: int, costs: Sequence[ShardCosts], setup: Setup) -> None:
        self.link = Link()
        self.cache = SimulatedCache(setup.cache_limit_bytes)
        self.fetched_bytes = self.num_fetches = self.num_fetched_again = self.num_hits = self.num_shared = 0
        self.fetched: set[int] = set()
        self._fetched_in_epoch: set[int] = set()
        self._ranks = [SimulatedRank(setup, self.cache) for _ in range(num_ranks)]
        self._costs = costs
        self._raw_bytes = [cost.raw_bytes for cost in costs]
        self._setup = setup
        self._works: dict[int, _Work] = {}
        # What happens by itself: (when, which was planned first, what).
        self._timed: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_timed = self._num_reading = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a rank lacks a shard of the part that it is reading."""
        return self._num_reading > 0

    def begin_epoch(self) -> None:
        """Begin an epoch."""
        self._fetched_in_epoch.clear()
        for rank in self._ranks:
            rank.begin_epoch()

    def ask(
        self, at_s: float, place: int, rank_of_order: int, parts: Sequence[StepGroup], num_wanted: int, num_asked: int
    ) -> int:
        """Let a rank ask for its next parts: those that follow are read ahead.

        Args:
            at_s: When.
            place: The rank's place in the node.
            rank_of_order: Its number in the order.
            parts: Those of the epoch.
            num_wanted: How many of them it has looked at.
            num_asked: How many of them it asks for.

        Returns:
            How many it has looked at now.
        """
        rank = self._ranks[place]
        while num_wanted < len(parts) and rank.is_missing_ahead(num_asked):
            part = parts[num_wanted]
            rank.want(at_s, part.shards[rank_of_order].tolist(), part.num_samples, self._raw_bytes)
            num_wanted += 1
        return num_wanted

    def begin(self, at_s: float) -> None:
        """Let the ranks' idle threads begin what they want, in turn: they all ask at the same time."""
        begun = list(self._ranks)
        while begun:
            begun = [rank for rank in begun if self._scan(at_s, rank, 1)]

    def read(self, at_s: float, place: int, number: int, shards: Sequence[int]) -> None:
        """Let a rank read a part."""
        self._ranks[place].begin_part(number, shards)
        self._num_reading += 1
        self._read_on(at_s, self._ranks[place])

    def next_s(self) -> float:
        """Return when something happens next, if nothing changes; infinite if nothing is under way."""
        return min(self._timed[0][0] if self._timed else math.inf, self.link.next_s())

    def happen(self, at_s: float) -> None:
        """Let happen what happens next."""
        if self._timed and self._timed[0][0] <= self.link.next_s():
            heapq.heappop(self._timed)[2](at_s)
            return
        shard = self.link.pop(at_s)
        cost = self._costs[shard]
        self.fetched_bytes += cost.fetched_bytes
        if cost.is_compressed:
            self._later(at_s + cost.raw_bytes / self._setup.decompress_bytes_per_s, partial(self._finish, shard))
        else:
            self._finish(shard, at_s)

    def _scan(self, at_s: float, rank: SimulatedRank, most: int | None = None) -> bool:
        """Let a rank's idle threads look at what it wants, at so many shards at most; return whether it was as many."""
        num_seen = 0
        while rank.queue and rank.num_busy < self._setup.num_threads and num_seen != most:
            shard = next(iter(rank.queue))
            if not rank.may_begin(shard):
                break
            num_seen += 1
            del rank.queue[shard]
            if shard in self.cache:
                self.num_hits += 1
                self.cache.touch(shard)
                rank.settle(shard)
            elif shard in self._works:
                self.num_shared += 1
                rank.left.add(shard)
                self._works[shard].left.append(rank)
            else:
                rank.in_work.add(shard)
                self._begin(at_s, shard, rank, is_ahead=True)
        return num_seen == most

    def _read_on(self, at_s: float, rank: SimulatedRank) -> None:
        """Let a rank open what it reads, until it has to wait."""
        reader = rank.reader
        while rank.unread:
            shard = rank.unread[-1]
            if shard in reader:
                reader.read(at_s, shard)
            elif shard in rank.ready:
                rank.ready.remove(shard)
                reader.open(at_s, shard)
            elif (shard in rank.in_work and rank.is_opened_ahead) or not self._is_opened(at_s, at_s, shard, rank):
                return
            rank.unread.pop()
        self._num_reading -= 1

    def _is_opened(self, at_s: float, since_s: float, shard: int, rank: SimulatedRank) -> bool:
        """Open a shard if it is there; else begin it, or wait for whoever has begun it."""
        rank.forgo(shard)
        if shard in self.cache:
            self.num_hits += 1
            self.cache.touch(shard)
            rank.reader.open(at_s, shard)
            return True
        if shard in self._works:
            self.num_shared += since_s == at_s
            self._works[shard].waiting.append((rank, since_s))
        else:
            self._begin(at_s, shard, rank, is_ahead=False)
        return False

    def _begin(self, at_s: float, shard: int, rank: SimulatedRank, *, is_ahead: bool) -> None:
        rank.num_busy += is_ahead
        cost = self._costs[shard]
        self.num_fetches += 1
        self.num_fetched_again += shard in self._fetched_in_epoch
        self.fetched.add(shard)
        self._fetched_in_epoch.add(shard)
        self._works[shard] = _Work(rank, is_ahead, [], [])
        self.cache.reserve(cost.making_bytes)
        self._later(at_s + cost.num_requests * self._setup.latency_s, partial(self._transfer, shard))

    def _transfer(self, shard: int, at_s: float) -> None:
        self.link.add(at_s, shard, self._costs[shard].fetched_bytes)

    def _finish(self, shard: int, at_s: float) -> None:
        cost = self._costs[shard]
        self.cache.keep(shard, cost.making_bytes, cost.kept_bytes)
        work = self._works.pop(shard)
        for rank, since_s in work.waiting:
            self._later(next_look_s(since_s, at_s), partial(self._look, shard, rank, since_s))
        for rank in work.left:
            self._later(at_s + _LEFT_S, partial(self._look_ahead, shard, rank))
        rank = work.rank
        if work.is_ahead:
            rank.num_busy -= 1
            rank.settle(shard)
            if rank.unread and rank.unread[-1] == shard and shard in rank.ready:
                self._read_on(at_s, rank)
            self._scan(at_s, rank)
        else:
            rank.reader.open(at_s, shard)
            rank.unread.pop()
            self._read_on(at_s, rank)

    def _look(self, shard: int, rank: SimulatedRank, since_s: float, at_s: float) -> None:
        """Let a rank that waits look for a shard that was ready: it may have been evicted since."""
        if self._is_opened(at_s, since_s, shard, rank):
            rank.unread.pop()
            self._read_on(at_s, rank)

    def _look_ahead(self, shard: int, rank: SimulatedRank, at_s: float) -> None:
        """Let a rank look again at a shard that it had left to another."""
        if shard in rank.left:
            rank.left.remove(shard)
            rank.queue.setdefault(shard)
            self._scan(at_s, rank)

    def _later(self, at_s: float, event: Callable[[float], None]) -> None:
        self._num_timed += 1
        heapq.heappush(self._timed, (at_s, self._num_timed, event))


def next_look_s(since_s: float, at_s: float) -> float:
    """Return when whoever waits for a shard looks for it next.

    Args:
        since_s: Since when it waits.
        at_s: What time it is.
    """
    look_s, pause_s = since_s, _FIRST_LOOK_S
    while look_s < at_s:
        if pause_s >= _LOOK_S:
            return look_s + math.ceil((at_s - look_s) / _LOOK_S) * _LOOK_S
        look_s += pause_s
        pause_s = min(2 * pause_s, _LOOK_S)
    return look_s

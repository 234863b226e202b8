"""A node: its ranks fetch shards into one cache, over one line."""

import heapq
import math
from collections.abc import Sequence
from enum import IntEnum

from fkat_data.streaming.simulation.cache import SimulatedCache
from fkat_data.streaming.simulation.costs import ShardCosts
from fkat_data.streaming.simulation.link import Link
from fkat_data.streaming.simulation.needs import Part
from fkat_data.streaming.simulation.rank import SimulatedRank
from fkat_data.streaming.simulation.setup import Setup

__all__ = ["SimulatedNode"]


class _By(IntEnum):
    """Who asked for a shard that is in work."""

    THREAD = 0  # reads ahead, and is busy with it
    LEFT = 1  # reads ahead, and has left it to another rank
    READER = 2  # cannot go on without it


class SimulatedNode:
    """A node, as a queue of events.

    A rank's threads take what it wants in the order of need. What is in the cache is ready; what another rank is
    making ready is left to it; anything else is fetched: a request for each file, the transfer, the decompression.
    Whoever reads a part opens its shards one after the other, and fetches for itself what is neither ready nor begun.

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
        # Who makes a shard ready, and who else waits for it.
        self._in_work: dict[int, list[tuple[SimulatedRank, _By]]] = {}
        # What ends by itself: (when, which came first, shard, whether it is ready then).
        self._timed: list[tuple[float, int, int, bool]] = []
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
        self, at_s: float, place: int, rank_of_order: int, parts: Sequence[Part], num_wanted: int, num_asked: int
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
        self._scan(at_s, rank)
        return num_wanted

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
            _, _, shard, is_ready = heapq.heappop(self._timed)
            if is_ready:
                self._finish(at_s, shard)
            else:
                self.link.add(at_s, shard, self._costs[shard].fetched_bytes)
            return
        shard = self.link.pop(at_s)
        cost = self._costs[shard]
        self.fetched_bytes += cost.fetched_bytes
        if cost.is_compressed:
            self._later(at_s + cost.raw_bytes / self._setup.decompress_bytes_per_s, shard, is_ready=True)
        else:
            self._finish(at_s, shard)

    def _scan(self, at_s: float, rank: SimulatedRank) -> None:
        """Let a rank's idle threads begin what it wants."""
        while rank.queue and rank.num_busy < self._setup.num_threads:
            shard = next(iter(rank.queue))
            del rank.queue[shard]
            if shard in self.cache:
                self.num_hits += 1
                self.cache.touch(shard)
                rank.settle(shard)
            else:
                rank.in_work.add(shard)
                self._get(at_s, shard, rank, _By.THREAD)

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
            elif shard in rank.in_work and not self._setup.workers_per_rank:
                return
            elif shard in self.cache:
                rank.queue.pop(shard, None)
                self.num_hits += 1
                self.cache.touch(shard)
                reader.open(at_s, shard)
            else:
                rank.queue.pop(shard, None)
                self._get(at_s, shard, rank, _By.READER)
                return
            rank.unread.pop()
        self._num_reading -= 1

    def _get(self, at_s: float, shard: int, rank: SimulatedRank, by: _By) -> None:
        """Begin a shard that is not there, or wait for whoever has begun it."""
        if shard in self._in_work:
            self.num_shared += 1
            self._in_work[shard].append((rank, _By.LEFT if by is _By.THREAD else by))
            return
        rank.num_busy += by is _By.THREAD
        cost = self._costs[shard]
        self.num_fetches += 1
        self.num_fetched_again += shard in self._fetched_in_epoch
        self.fetched.add(shard)
        self._fetched_in_epoch.add(shard)
        self._in_work[shard] = [(rank, by)]
        self.cache.reserve(cost.making_bytes)
        self._later(at_s + cost.num_requests * self._setup.latency_s, shard, is_ready=False)

    def _finish(self, at_s: float, shard: int) -> None:
        cost = self._costs[shard]
        self.cache.keep(shard, cost.making_bytes, cost.kept_bytes)
        for rank, by in self._in_work.pop(shard):
            if by is _By.READER:
                rank.reader.open(at_s, shard)
                rank.unread.pop()
                self._read_on(at_s, rank)
                continue
            rank.num_busy -= by is _By.THREAD
            rank.settle(shard)
            if rank.unread and rank.unread[-1] == shard and shard in rank.ready:
                self._read_on(at_s, rank)
            self._scan(at_s, rank)

    def _later(self, at_s: float, shard: int, *, is_ready: bool) -> None:
        self._num_timed += 1
        heapq.heappush(self._timed, (at_s, self._num_timed, shard, is_ready))

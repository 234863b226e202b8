"""A node: its ranks fetch shards into one cache, over one line."""

import heapq
import math
from collections.abc import Iterable, Sequence

from fkat_data.streaming.simulation.cache import SimulatedCache
from fkat_data.streaming.simulation.costs import ShardCosts
from fkat_data.streaming.simulation.link import Link
from fkat_data.streaming.simulation.rank import SimulatedRank
from fkat_data.streaming.simulation.reuse import Use
from fkat_data.streaming.simulation.setup import Setup

__all__ = ["SimulatedNode"]


class SimulatedNode:
    """A node, as a queue of events.

    A rank's threads take what it wants in the order of need. What is in the cache is ready; what another rank is
    making ready is left to it; anything else is fetched: a request for each file, the transfer, the decompression.

    Args:
        num_ranks: Its ranks.
        costs: What each shard costs.
        setup: The run.

    Attributes:
        link: Its transfers.
        cache: Its shards.
        uses: When shards were begun, ready and asked for, in that order.
        fetched_bytes: What has come, of shards that are whole.
        fetched: Shards that have been begun at least once.
        num_fetches: Shards that were begun, again and again counted.
        num_hits: Times that a rank found a shard in the cache.
        num_shared: Times that a rank waited for a shard that another was making ready.
    """

    def __init__(self, num_ranks: int, costs: Sequence[ShardCosts], setup: Setup) -> None:
        self.link = Link()
        self.cache = SimulatedCache(setup.cache_limit_bytes)
        self.uses: list[tuple[Use, int]] = []
        self.fetched_bytes = self.num_fetches = self.num_hits = self.num_shared = 0
        self.fetched: set[int] = set()
        self._ranks = [SimulatedRank() for _ in range(num_ranks)]
        self._costs = costs
        self._setup = setup
        # Who makes a shard ready, and who else waits for it.
        self._in_work: dict[int, list[SimulatedRank]] = {}
        # What ends by itself: (when, which came first, shard, whether it is ready then).
        self._timed: list[tuple[float, int, int, bool]] = []
        self._num_timed = 0
        self._awaited = -1
        self._unready: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether a rank lacks something for the part that is awaited."""
        return bool(self._unready)

    def want(self, at_s: float, wanted: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """Let ranks want shards: (rank of the node, part, shards)."""
        ranks: dict[int, None] = {}
        for rank, part, shards in wanted:
            self._ranks[rank].want(part, shards)
            ranks[rank] = None
        for rank in ranks:
            self._scan(at_s, self._ranks[rank])

    def wait_for(self, part: int) -> None:
        """Let the node wait until all its ranks have what they need for a part."""
        self._awaited = part
        self._unready = {index for index, rank in enumerate(self._ranks) if not rank.is_ready(part)}

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
        if cost.decompressed_bytes:
            self._later(at_s + cost.decompressed_bytes / self._setup.decompress_bytes_per_s, shard, is_ready=True)
        else:
            self._finish(at_s, shard)

    def _scan(self, at_s: float, rank: SimulatedRank) -> None:
        while rank.queue and rank.num_busy < self._setup.num_threads:
            shard = rank.queue.popleft()
            if shard in self.cache:
                self.num_hits += 1
                self.cache.touch(shard)
                self.uses.append((Use.ASKED, shard))
                rank.settle(shard)
            elif shard in self._in_work:
                self.num_shared += 1
                self._in_work[shard].append(rank)
            else:
                rank.num_busy += 1
                self._begin(at_s, shard, rank)
        self._check_ready()

    def _begin(self, at_s: float, shard: int, rank: SimulatedRank) -> None:
        cost = self._costs[shard]
        self.num_fetches += 1
        self.fetched.add(shard)
        self._in_work[shard] = [rank]
        self.cache.reserve(cost.making_bytes)
        self.uses.append((Use.BEGUN, shard))
        self._later(at_s + cost.num_requests * self._setup.latency_s, shard, is_ready=False)

    def _finish(self, at_s: float, shard: int) -> None:
        cost = self._costs[shard]
        self.cache.keep(shard, cost.making_bytes, cost.kept_bytes)
        self.uses.append((Use.READY, shard))
        owner, *others = self._in_work.pop(shard)
        for rank in (owner, *others):
            rank.settle(shard)
        owner.num_busy -= 1
        self._scan(at_s, owner)

    def _check_ready(self) -> None:
        if self._unready:
            self._unready = {index for index in self._unready if not self._ranks[index].is_ready(self._awaited)}

    def _later(self, at_s: float, shard: int, *, is_ready: bool) -> None:
        self._num_timed += 1
        heapq.heappush(self._timed, (at_s, self._num_timed, shard, is_ready))

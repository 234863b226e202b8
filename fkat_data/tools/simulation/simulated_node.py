"""A node: its ranks fetch shards into one cache and share its bandwidth."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from fkat_data.tools.simulation.link import Link
from fkat_data.tools.simulation.needs import StepGroup
from fkat_data.tools.simulation.setup import Setup, ShardCosts
from fkat_data.tools.simulation.simulated_cache import SimulatedCache
from fkat_data.tools.simulation.simulated_rank import SimulatedRank

#: The average time from the end of a fetch until the ranks that left it to another look again.
_DELEGATED_POLL_S = 0.01
#: A rank that waits for a shard that another rank is fetching polls after this time, then doubles it each time ...
_FIRST_POLL_S = 0.001
#: ... up to this.
_POLL_S = 0.05


class _Fetch(NamedTuple):
    """A shard that is being fetched and decompressed.

    Attributes:
        rank: The rank that fetches it.
        is_ahead: Whether one of the rank's threads reads ahead; else the rank waits for the shard.
        delegating: Ranks that left the shard to this one.
        waiting: Ranks that wait for the shard, and since when.
    """

    rank: SimulatedRank
    is_ahead: bool
    delegating: list[SimulatedRank]
    waiting: list[tuple[SimulatedRank, float]]


class SimulatedNode:
    """A node, as a queue of events.

    A rank's threads take the shards that it needs, in the order of need. A shard in the cache is ready. A shard that
    another rank is fetching is left to that rank, and looked at again afterwards. Any other shard is fetched: a
    request for each file, the transfer, the decompression. A reader opens the shards of a part one after the other,
    and fetches a shard itself if it is neither ready nor being fetched.

    Args:
        num_ranks: The number of its ranks.
        costs: The costs of each shard.
        raw_bytes: The size of each shard after decompression, in bytes.
        setup: The run.

    Attributes:
        link: Its transfers.
        cache: Its shards.
        fetched_bytes: Bytes of the finished transfers.
        fetched: Shards fetched at least once.
        num_fetches: The number of fetches begun.
        num_fetched_again: The number of fetches of a shard that was already fetched in the same epoch.
        num_hits: Times that a rank found a shard in the cache.
        num_shared: Times that a rank waited for a shard that another rank was fetching.
    """

    def __init__(self, num_ranks: int, costs: Sequence[ShardCosts], raw_bytes: Sequence[int], setup: Setup) -> None:
        self.link: Link = Link()
        self.cache: SimulatedCache = SimulatedCache(setup.cache_limit_bytes)
        self.fetched_bytes: int = 0
        self.num_fetches: int = 0
        self.num_fetched_again: int = 0
        self.num_hits: int = 0
        self.num_shared: int = 0
        self.fetched: set[int] = set()
        self._fetched_in_epoch: set[int] = set()
        self._ranks = [SimulatedRank(setup, self.cache) for _ in range(num_ranks)]
        self._costs = costs
        self._raw_bytes = raw_bytes
        self._setup = setup
        self._fetches: dict[int, _Fetch] = {}
        # Events: (time, number in the order of scheduling, action).
        self._timed: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_timed = self._num_reading = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a rank waits for a shard of the part that it is reading."""
        return self._num_reading > 0

    def add_cached(self, shards: Iterable[int]) -> None:
        """Add shards that are in the cache before the run starts, the most recently used last."""
        for shard in shards:
            num_bytes = self._costs[shard].kept_bytes
            self.cache.reserve(num_bytes)
            self.cache.keep(shard, num_bytes, num_bytes)

    def begin_epoch(self) -> None:
        """Begin an epoch."""
        self._fetched_in_epoch.clear()
        for rank in self._ranks:
            rank.begin_epoch()

    def request(
        self,
        at_s: float,
        place: int,
        rank_of_order: int,
        parts: Sequence[StepGroup],
        num_wanted: int,
        num_requested: int,
    ) -> int:
        """Let a rank request its next parts, and queue the shards of those that it reads ahead.

        Args:
            at_s: The time.
            place: The rank's place in the node.
            rank_of_order: The rank's number in the order.
            parts: The parts of the epoch.
            num_wanted: The number of parts whose shards are already queued.
            num_requested: The number of parts that the rank requests.

        Returns:
            The new number of parts whose shards are queued.
        """
        rank = self._ranks[place]
        while num_wanted < len(parts) and rank.needs_more(num_requested):
            part = parts[num_wanted]
            rank.want(at_s, part.shards[rank_of_order].tolist(), part.num_samples, self._raw_bytes)
            num_wanted += 1
        return num_wanted

    def begin_fetches(self, at_s: float) -> None:
        """Let the ranks' idle threads take shards from their queues, in turn, because all ranks start together."""
        begun = list(self._ranks)
        while begun:
            begun = [rank for rank in begun if self._scan(at_s, rank, 1)]

    def read(self, at_s: float, place: int, number: int, shards: Sequence[int]) -> None:
        """Let a rank read a part."""
        self._ranks[place].begin_part(number, shards)
        self._num_reading += 1
        self._read_on(at_s, self._ranks[place])

    def next_s(self) -> float:
        """Return the time of the next event if nothing changes, or infinity if there is none."""
        return min(self._timed[0][0] if self._timed else math.inf, self.link.next_s())

    def handle_event(self, at_s: float) -> None:
        """Handle the next event."""
        if self._timed and self._timed[0][0] <= self.link.next_s():
            heapq.heappop(self._timed)[2](at_s)
            return
        shard = self.link.pop(at_s)
        cost = self._costs[shard]
        self.fetched_bytes += cost.fetched_bytes
        if cost.is_compressed:
            self._schedule(at_s + cost.raw_bytes / self._setup.decompress_bytes_per_s, partial(self._finish, shard))
        else:
            self._finish(shard, at_s)

    def _scan(self, at_s: float, rank: SimulatedRank, most: int | None = None) -> bool:
        """Let a rank's idle threads take shards from its queue, ``most`` at most; return whether they took that many."""
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
                rank.mark_ready(shard)
            elif shard in self._fetches:
                self.num_shared += 1
                rank.delegated.add(shard)
                self._fetches[shard].delegating.append(rank)
            else:
                rank.fetching.add(shard)
                self._begin(at_s, shard, rank, is_ahead=True)
        return num_seen == most

    def _read_on(self, at_s: float, rank: SimulatedRank) -> None:
        """Let a rank open the shards of its part, until it has to wait."""
        reader = rank.reader
        while rank.unread:
            shard = rank.unread[-1]
            if shard in reader:
                reader.read(at_s, shard)
            elif shard in rank.ready and shard in self.cache:
                rank.ready.remove(shard)
                reader.open(at_s, shard)
            elif (shard in rank.fetching and rank.is_opened_ahead) or not self._try_open(at_s, at_s, shard, rank):
                return
            rank.unread.pop()
        self._num_reading -= 1

    def _try_open(self, at_s: float, since_s: float, shard: int, rank: SimulatedRank) -> bool:
        """Open a shard if it is in the cache. Otherwise fetch it, or wait for the rank that is fetching it."""
        rank.dequeue(shard)
        if shard in self.cache:
            self.num_hits += 1
            self.cache.touch(shard)
            rank.reader.open(at_s, shard)
            return True
        if shard in self._fetches:
            self.num_shared += since_s == at_s
            self._fetches[shard].waiting.append((rank, since_s))
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
        self._fetches[shard] = _Fetch(rank, is_ahead, [], [])
        self.cache.reserve(cost.making_bytes)
        self._schedule(at_s + cost.num_requests * self._setup.latency_s, partial(self._transfer, shard))

    def _transfer(self, shard: int, at_s: float) -> None:
        self.link.add(at_s, shard, self._costs[shard].fetched_bytes)

    def _finish(self, shard: int, at_s: float) -> None:
        cost = self._costs[shard]
        self.cache.keep(shard, cost.making_bytes, cost.kept_bytes)
        fetch = self._fetches.pop(shard)
        for rank, since_s in fetch.waiting:
            self._schedule(next_poll_s(since_s, at_s), partial(self._poll, shard, rank, since_s))
        for rank in fetch.delegating:
            self._schedule(at_s + _DELEGATED_POLL_S, partial(self._poll_ahead, shard, rank))
        rank = fetch.rank
        if fetch.is_ahead:
            rank.num_busy -= 1
            rank.mark_ready(shard)
            if rank.unread and rank.unread[-1] == shard and shard in rank.ready:
                self._read_on(at_s, rank)
            self._scan(at_s, rank)
        else:
            rank.reader.open(at_s, shard)
            rank.unread.pop()
            self._read_on(at_s, rank)

    def _poll(self, shard: int, rank: SimulatedRank, since_s: float, at_s: float) -> None:
        """Let a waiting rank try to open a shard after its fetch. It may have been evicted again."""
        if self._try_open(at_s, since_s, shard, rank):
            rank.unread.pop()
            self._read_on(at_s, rank)

    def _poll_ahead(self, shard: int, rank: SimulatedRank, at_s: float) -> None:
        """Let a rank look again at a shard that it left to another rank."""
        if shard in rank.delegated:
            rank.delegated.remove(shard)
            rank.queue.setdefault(shard)
            self._scan(at_s, rank)

    def _schedule(self, at_s: float, event: Callable[[float], None]) -> None:
        self._num_timed += 1
        heapq.heappush(self._timed, (at_s, self._num_timed, event))


def next_poll_s(since_s: float, at_s: float) -> float:
    """Return when a rank that waits for a shard polls next.

    Args:
        since_s: When it began to wait.
        at_s: The time.
    """
    poll_s, pause_s = since_s, _FIRST_POLL_S
    while poll_s < at_s:
        if pause_s >= _POLL_S:
            return poll_s + math.ceil((at_s - poll_s) / _POLL_S) * _POLL_S
        poll_s += pause_s
        pause_s = min(2 * pause_s, _POLL_S)
    return poll_s

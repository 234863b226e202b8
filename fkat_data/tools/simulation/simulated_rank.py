"""A rank: what it reads, what it reads ahead, and which shards it has open."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from fkat_data.tools.simulation.setup import Setup
from fkat_data.tools.simulation.simulated_cache import SimulatedCache

#: A shard in use is marked as used at most this often.
_TOUCH_S = 1.0


class SimulatedReader:
    """A process that reads, and its open shards. It closes evicted shards when it opens the next one.

    Args:
        setup: The run.
        cache: The node's shards.
    """

    def __init__(self, setup: Setup, cache: SimulatedCache) -> None:
        self._most_open = setup.most_open
        self._is_limited = setup.cache_limit_bytes is not None
        self._cache = cache
        self._touched_s: OrderedDict[int, float] = OrderedDict()
        self._num_seen = 0

    def __contains__(self, shard: int) -> bool:
        return shard in self._touched_s

    def read(self, at_s: float, shard: int) -> None:
        """Read a shard that is open."""
        self._touched_s.move_to_end(shard)
        if at_s - self._touched_s[shard] > _TOUCH_S:
            self._touched_s[shard] = at_s
            self._cache.touch(shard)

    def open(self, at_s: float, shard: int) -> None:
        """Open a shard."""
        self._touched_s[shard] = at_s
        if self._is_limited:
            evicted = self._cache.evicted
            while self._num_seen < len(evicted):
                other = evicted[self._num_seen]
                self._num_seen += 1
                if other not in self._cache and other != shard:
                    self._touched_s.pop(other, None)
            if shard not in self._cache:
                # It was evicted before it was opened, so the next shard to open closes it.
                evicted.append(shard)
        if len(self._touched_s) > self._most_open:
            self._touched_s.popitem(last=False)


class SimulatedRank:
    """The state of a rank.

    Args:
        setup: The run.
        cache: The node's shards.

    Attributes:
        queue: Shards that it needs and its threads have not looked at, in the order of need.
        delegated: Shards that its threads left to another rank, which is fetching them.
        fetching: Shards that its threads are fetching.
        ready: Shards that its threads fetched, and that it has not opened yet.
        num_busy: The number of its threads that are fetching.
        unread: The remaining shards of the part that it is reading, in reverse order.
        reader: The reader of this part.
        is_opened_ahead: Whether a shard is opened as soon as it is ready, because the rank reads without workers.
    """

    def __init__(self, setup: Setup, cache: SimulatedCache) -> None:
        self.queue: dict[int, None] = {}
        self.delegated: set[int] = set()
        self._first: set[int] = set()
        self._has_wanted = False
        self.fetching: set[int] = set()
        self.ready: set[int] = set()
        self.num_busy = 0
        self.unread: list[int] = []
        self._setup = setup
        self._readers = [SimulatedReader(setup, cache) for _ in range(max(1, setup.workers_per_rank))]
        self.reader: SimulatedReader = self._readers[0]
        self._cache = cache
        self.is_opened_ahead: bool = setup.workers_per_rank == 0
        self._wanted_s: dict[int, float] = {}
        self._weights: deque[int] = deque()
        self._queued_weight = self._num_yielded = 0

    def begin_epoch(self) -> None:
        """Begin an epoch: drop the needs of the previous one, but let its fetches continue."""
        self.queue.clear()
        self.delegated.clear()
        self._first.clear()
        self._has_wanted = False
        self.ready.clear()
        self._weights.clear()
        self._queued_weight = self._num_yielded = 0
        if not self.is_opened_ahead:
            # A DataLoader starts new workers.
            self._readers = [SimulatedReader(self._setup, self._cache) for _ in self._readers]

    def needs_more(self, num_parts: int) -> bool:
        """Return whether the rank must look at another part before it can read ``num_parts``."""
        setup = self._setup
        while self._num_yielded < num_parts:
            weights = self._weights
            if len(weights) < 2 or self._queued_weight - weights[0] < setup.predownload:
                return True
            self._queued_weight -= weights.popleft()
            self._num_yielded += 1
        return False

    def want(self, at_s: float, shards: Sequence[int], num_samples: int, sizes_bytes: Sequence[int]) -> None:
        """Queue the shards of the next part."""
        if self.is_opened_ahead:
            wanted = [shard for shard in shards if shard not in self.reader]
        else:
            wanted = [shard for shard in shards if at_s - self._wanted_s.get(shard, -_TOUCH_S) >= _TOUCH_S]
            self._wanted_s.update(dict.fromkeys(wanted, at_s))
        if not self._has_wanted:
            self._first.update(wanted)
            self._has_wanted = True
        weight = num_samples
        limit_bytes = self._setup.cache_limit_bytes
        if limit_bytes is not None:
            # As ``OpenShards`` does: the rest of the cache is for the shards being read.
            most_bytes = max(1, limit_bytes // (4 * self._setup.ranks_per_node))
            wanted_bytes = sum(sizes_bytes[shard] for shard in wanted)
            weight = max(weight, self._setup.predownload * wanted_bytes // most_bytes)
        self._weights.append(weight)
        self._queued_weight += weight
        for shard in wanted:
            if shard not in self.fetching and shard not in self.ready and shard not in self.delegated:
                self.queue.setdefault(shard)

    def begin_part(self, number: int, shards: Sequence[int]) -> None:
        """Begin to read a part."""
        self.reader = self._readers[number % len(self._readers)]
        # One shard after the other, in the order of their numbers.
        self.unread = sorted(shards, reverse=True)

    def may_begin(self, shard: int) -> bool:
        """Return whether a thread may begin a shard. The first shards of an epoch share the bandwidth with no others."""
        return shard in self._first or self._first.isdisjoint(self.fetching)

    def dequeue(self, shard: int) -> None:
        """Remove a shard from what the threads look at, because the reader needs it now."""
        self.queue.pop(shard, None)
        self.delegated.discard(shard)

    def mark_ready(self, shard: int) -> None:
        """Record that a shard that a thread looked at is ready."""
        self.fetching.discard(shard)
        if self.is_opened_ahead:
            self.ready.add(shard)

"""Play a run: nodes step together, and each step waits until every rank has its shards."""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache import LONGEST_PAUSE_S
from fkat_data.streaming.reading import NUM_THREADS, ReadAhead

_Integers = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Steps whose samples each rank reads together.

    Attributes:
        num_steps: The number of steps.
        num_samples: The number of samples that each rank reads.
        shards: The shards of all ranks: of each rank, those that it reads, in the order of their numbers.
        edges: Where each rank's shards begin, and where the last one's end.
    """

    num_steps: int
    num_samples: int
    shards: _Integers
    edges: _Integers

    def of(self, rank: int) -> list[int]:
        """Return the shards that a rank reads."""
        return self.shards[self.edges[rank] : self.edges[rank + 1]].tolist()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The numbers that describe a run. All bandwidths are in bytes a second, and may be infinite.

    Attributes:
        num_nodes: The number of nodes.
        ranks_per_node: The number of ranks on each node.
        workers_per_rank: The number of workers that read for a rank; 0: the rank reads for itself.
        prefetch_factor: The number of batches that each worker makes ahead.
        worker_start_s: Seconds that the workers take to start, in each epoch; shards are fetched meanwhile.
        step_s: Seconds of a step, without waiting for data.
        bandwidth_bytes_per_s: The bandwidth of a node, which its transfers share equally.
        connection_bytes_per_s: The bandwidth of a single transfer, at most.
        store_bytes_per_s: The bandwidth of the store to all nodes together, at most.
        latency_s: Seconds from a request to its first byte.
        decompress_bytes_per_s: The speed at which a thread decompresses, in decompressed bytes. Default: that of zstd
            on one core of a server.
        poll_s: How often a rank that waits for another rank's fetch looks whether it is done.
        num_threads: The number of shards that a rank fetches and decompresses at a time.
        predownload: The number of samples that a rank fetches ahead of those that it reads.
        batches_together: The number of batches that a rank reads at once, at most; it waits for the shards of all of
            them. An epoch begins with one, then two, then four, ...
        batches_per_chunk: Batches of different chunks are never read at once.
        cache_limit_bytes: The limit of a node's cache; None: unlimited.
        num_steps: The number of steps, over as many epochs as needed; None: ``num_epochs`` decides.
        num_epochs: The number of epochs; None: ``num_steps`` decides.

    Raises:
        ConfigurationError: A number is invalid, or both or neither of ``num_steps`` and ``num_epochs`` are given.
    """

    num_nodes: int = 1
    ranks_per_node: int = 1
    workers_per_rank: int = 0
    prefetch_factor: int = 2
    worker_start_s: float = 0.0
    step_s: float
    bandwidth_bytes_per_s: float
    connection_bytes_per_s: float = math.inf
    store_bytes_per_s: float = math.inf
    latency_s: float = 0.0
    decompress_bytes_per_s: float = 500e6
    poll_s: float = LONGEST_PAUSE_S
    num_threads: int = NUM_THREADS
    predownload: int
    batches_together: int = 1
    batches_per_chunk: int
    cache_limit_bytes: int | None = None
    num_steps: int | None = None
    num_epochs: int | None = None

    def __post_init__(self) -> None:
        may_be_zero, may_be_none = {"workers_per_rank", "predownload"}, {"cache_limit_bytes", "num_steps", "num_epochs"}
        for name, value in vars(self).items():
            if name.endswith("bytes_per_s"):
                if not arguments.is_number(value) or not value > 0:
                    raise ConfigurationError(name, value, "bytes a second, more than 0")
            elif name.endswith("_s"):
                if not arguments.is_number(value) or not 0 <= value < math.inf:
                    raise ConfigurationError(name, value, "a number of seconds, at least 0")
            elif value is not None or name not in may_be_none:
                arguments.integer(name, value, minimum=0 if name in may_be_zero else 1)
        if (self.num_steps is None) == (self.num_epochs is None):
            given = {"num_steps": self.num_steps, "num_epochs": self.num_epochs}
            raise ConfigurationError("duration", given, "either num_steps or num_epochs")


@dataclass(frozen=True)
class ShardCosts:
    """What a shard costs.

    Attributes:
        fetched_bytes: Bytes to fetch.
        raw_bytes: Bytes after decompression.
        is_compressed: Whether the fetched files are compressed.
        keeps_zip: Whether the compressed files stay on disk after decompression.
        num_requests: Number of requests, one for each file.
    """

    fetched_bytes: int
    raw_bytes: int
    is_compressed: bool = False
    keeps_zip: bool = False
    num_requests: int = 1

    @property
    def making_bytes(self) -> int:
        """Bytes on disk during the fetch and the decompression."""
        return self.raw_bytes + self.fetched_bytes if self.is_compressed else self.raw_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes on disk afterwards."""
        return self.making_bytes if self.keeps_zip else self.raw_bytes


@dataclass
class NodeTotals:
    """A node's totals at the end of the run.

    Attributes:
        fetched_bytes: Bytes fetched.
        num_shards: The number of different shards fetched.
        num_fetches: The number of fetches.
        num_fetched_again: The number of fetches of a shard that the node had already fetched in the same epoch.
        num_hits: Times that a rank found a shard in the cache.
        num_shared: Times that a rank found that another one was fetching a shard.
        num_evictions: The number of evictions.
        most_bytes: The most bytes that shards took on its disk.
    """

    fetched_bytes: int = 0
    num_shards: int = 0
    num_fetches: int = 0
    num_fetched_again: int = 0
    num_hits: int = 0
    num_shared: int = 0
    num_evictions: int = 0
    most_bytes: int = 0


@dataclass(frozen=True)
class Simulation:
    """A simulated run.

    Attributes:
        setup: The simulated setup.
        wait_s: How long each step waited, by the rank that waited longest.
        epoch_starts: The first step of each epoch.
        duration_s: How long the run took.
        nodes: The totals of each node.
        num_shards: The number of shards that any node fetched.
        whole_bytes: The size on disk of all shards that a node used, for the node where it is largest.
    """

    setup: Setup
    wait_s: npt.NDArray[np.float64]
    epoch_starts: tuple[int, ...]
    duration_s: float
    nodes: tuple[NodeTotals, ...]
    num_shards: int
    whole_bytes: int

    @property
    def num_steps(self) -> int:
        """The number of steps in the run."""
        return len(self.wait_s)

    @property
    def num_epochs(self) -> int:
        """The number of epochs that the run started."""
        return len(self.epoch_starts)

    @property
    def first_batch_s(self) -> float:
        """How long the first step waited."""
        return float(self.wait_s[0])

    @property
    def waited_s(self) -> float:
        """How long the run waited in total."""
        return float(self.wait_s.sum())

    @property
    def waited_share(self) -> float:
        """The share of time that the run waited."""
        return self.waited_s / self.duration_s if self.duration_s else 0.0

    @property
    def later_share(self) -> float:
        """The share of time that the run waited, not counting the first step of each epoch."""
        waited_s = self.waited_s - float(self.wait_s[list(self.epoch_starts)].sum())
        total_s = waited_s + self.num_steps * self.setup.step_s
        return waited_s / total_s if total_s else 0.0

    @property
    def num_waits(self) -> int:
        """The number of steps that waited."""
        return int(np.count_nonzero(self.wait_s > 0))

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values, without the waits of single steps. Infinity becomes None."""
        named = ("num_steps", "num_epochs", "duration_s", "first_batch_s", "waited_s", "waited_share", "later_share")
        named = (*named, "num_waits", "num_shards", "whole_bytes")
        setup = {name: None if value == math.inf else value for name, value in asdict(self.setup).items()}
        numbers = {name: getattr(self, name) for name in named}
        return {"setup": setup, **numbers, "nodes": [asdict(node) for node in self.nodes]}


def play(
    epochs: Iterable[Sequence[Part]],
    costs: Sequence[ShardCosts],
    setup: Setup,
    num_ranks: int,
) -> Simulation:
    """Play a run.

    Args:
        epochs: The parts of each epoch.
        costs: What each shard costs.
        setup: The run.
        num_ranks: The number of ranks in the parts, less than the run has if several ranks read the same.
    """
    run = _Run(setup)
    nodes = [_Node(setup, costs, run, number) for number in range(setup.num_nodes)]
    wait_s: list[float] = []
    starts: list[int] = []
    # Ranks that read the same have consecutive numbers.
    alike = setup.num_nodes * setup.ranks_per_node // num_ranks
    ahead = max(1, setup.workers_per_rank * setup.prefetch_factor)
    for parts in epochs:
        starts.append(len(wait_s))
        for number, node in enumerate(nodes):
            first = number * setup.ranks_per_node
            node.begin_epoch([(first + place) // alike for place in range(setup.ranks_per_node)], parts)
        for index, part in enumerate(parts):
            began_s = run.now_s
            for node in nodes:
                node.look_ahead(ahead if index == 0 else 1)
            if index == 0 and setup.workers_per_rank:
                run.advance(setup.worker_start_s)
            for node in nodes:
                node.read(part)
            run.finish_reading()
            wait_s += [run.now_s - began_s, *[0.0] * (part.num_steps - 1)]
            run.advance(part.num_steps * setup.step_s)
    return Simulation(
        setup=setup,
        wait_s=np.array(wait_s),
        epoch_starts=tuple(starts),
        duration_s=run.now_s,
        nodes=tuple(node.totals for node in nodes),
        num_shards=len(set[int]().union(*(node.fetched for node in nodes))),
        whole_bytes=max(sum(costs[shard].kept_bytes for shard in node.fetched) for node in nodes),
    )


class _Line:
    """The transfers to a node, which all have the same rate: each ends when ``served`` has reached its mark."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, int, Callable[[], None]]] = []
        self.served = self.rate = self.since_s = 0.0
        self.version = 0


class _Run:
    """The clock of a run, the events to come, and the lines, which share what the store can send.

    Attributes:
        now_s: The time.
        num_reading: The number of ranks that wait for a shard of the part that they read.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lines = [_Line() for _ in range(setup.num_nodes)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self.now_s: float = 0.0
        self.num_reading: int = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an event."""
        self._num_events += 1
        heapq.heappush(self._events, (self.now_s + seconds, self._num_events, action))

    def advance(self, seconds: float) -> None:
        """Handle the events of a time."""
        until_s = self.now_s + seconds
        while self._events and self._events[0][0] <= until_s:
            self._handle_next()
        self.now_s = until_s

    def finish_reading(self) -> None:
        """Handle events until no rank waits for a shard."""
        while self.num_reading:
            self._handle_next()

    def transfer(self, number: int, num_bytes: int, action: Callable[[], None]) -> None:
        """Send bytes to a node, then do ``action``."""
        line = self._lines[number]
        self._move(line)
        self._num_events += 1
        heapq.heappush(line.ends, (line.served + num_bytes, self._num_events, action))
        self._share(number)

    def _handle_next(self) -> None:
        self.now_s, _, action = heapq.heappop(self._events)
        action()

    def _move(self, line: _Line) -> None:
        if line.rate < math.inf:
            line.served += line.rate * (self.now_s - line.since_s)
        line.since_s = self.now_s

    def _share(self, changed: int) -> None:
        """Share the bandwidth among the transfers, after those of a node changed."""
        setup = self._setup
        limits = setup.bandwidth_bytes_per_s, setup.connection_bytes_per_s, setup.store_bytes_per_s
        if setup.store_bytes_per_s == math.inf:
            # One node's transfers do not depend on the others'.
            self._set_rate(changed, fair_rates([len(self._lines[changed].ends)], *limits)[0])
            return
        for number, rate in enumerate(fair_rates([len(line.ends) for line in self._lines], *limits)):
            self._set_rate(number, rate)

    def _set_rate(self, number: int, rate: float) -> None:
        line = self._lines[number]
        self._move(line)
        line.rate = rate
        line.version += 1
        if line.ends:
            seconds = max(0.0, line.ends[0][0] - line.served) / rate
            self.after(seconds, partial(self._end_transfer, number, line.version))

    def _end_transfer(self, number: int, version: int) -> None:
        line = self._lines[number]
        if version != line.version:
            return  # The rate has changed since, and with it the time.
        self._move(line)
        mark, _, action = heapq.heappop(line.ends)
        # A rounding error must not leave the counter short of this transfer's end.
        line.served = max(line.served, mark)
        self._share(number)
        action()


def fair_rates(num_moving: Sequence[int], node: float, connection: float, store: float) -> list[float]:
    """Return the rate of a transfer on each node: as equal as the limits of nodes, transfers and the store allow.

    Args:
        num_moving: The number of transfers on each node.
        node: The limit of a node, in bytes a second.
        connection: The limit of a transfer.
        store: The limit of all transfers together.
    """
    rates = [min(node / count, connection) if count else 0.0 for count in num_moving]
    left, num_left = store, sum(num_moving)
    # A transfer that cannot use an equal share leaves the rest to the others.
    for rate, index in sorted((rate, index) for index, rate in enumerate(rates) if num_moving[index]):
        rates[index] = min(rate, left / num_left)
        left -= rates[index] * num_moving[index] if left < math.inf else 0.0
        num_left -= num_moving[index]
    return rates


class _Rank(ReadAhead[Any]):
    """A rank in an epoch: how far it looks ahead is what the real look-ahead says.

    Attributes:
        queue: Shards that it needs and its threads have not looked at, in the order of need.
        first: The shards that its epoch begins with; nothing else begins beside them.
        fetching: Shards that its threads are fetching.
        opened: Shards that it has read from.
        unread: The remaining shards of the part that it is reading, in reverse order.
        parts: The parts of its epoch. It looks ahead as it takes one.
    """

    def __init__(
        self, node: "_Node", number: int, parts: Sequence[Part], setup: Setup, costs: Sequence[ShardCosts]
    ) -> None:
        super().__init__(_prepare_nothing, setup.num_threads)
        self.number: int = number
        self.queue: dict[int, None] = {}
        self.first: set[int] = set()
        self.fetching: set[int] = set()
        self.opened: set[int] = set()
        self.unread: list[int] = []

        def needed(part: Part) -> tuple[list[int], int]:
            shards = part.of(number)
            wanted = [shard for shard in shards if not (shard in self.opened and shard in node.cache)]
            if setup.cache_limit_bytes is None:
                return wanted, part.num_samples
            # As ``OpenShards`` does: the rest of the cache is for the shards being read.
            most_bytes = max(1, setup.cache_limit_bytes // (4 * setup.ranks_per_node))
            wanted_bytes = sum(costs[shard].raw_bytes for shard in wanted)
            return wanted, max(part.num_samples, setup.predownload * wanted_bytes // most_bytes)

        self.parts = self.follow(parts, needed, setup.predownload)

    def want(self, shards: Iterable[int], *, is_first: bool = False) -> None:
        """Queue shards behind those that were wanted before, except those that are being fetched."""
        for shard in shards:
            if is_first:
                self.first.add(shard)
            if shard not in self.fetching:
                self.queue[shard] = None

    def next_to_fetch(self, num_threads: int) -> int | None:
        """Return the shard that an idle thread looks at next; None if there is none."""
        shard = next(iter(self.queue), None)
        if shard is None or len(self.fetching) >= num_threads:
            return None
        return shard if shard in self.first or self.first.isdisjoint(self.fetching) else None


def _prepare_nothing(shard: int, is_waiting: bool) -> Literal[True]:
    del shard, is_waiting
    return True


class _Node:
    """A node: its ranks fetch shards into one cache, which evicts the least recently used first.

    A shard that is being fetched counts at its full size and cannot be evicted. If nothing else can be evicted, the
    cache exceeds its limit.
    """

    def __init__(self, setup: Setup, costs: Sequence[ShardCosts], run: _Run, number: int) -> None:
        self._setup = setup
        self._costs = costs
        self._run = run
        self._number = number
        self._ranks: list[_Rank] = []
        self._making: dict[int, list[tuple[_Rank, float]]] = {}
        self._fetched_in_epoch: set[int] = set()
        self._used_bytes = self._kept_bytes = 0
        self.totals: NodeTotals = NodeTotals()
        self.cache: OrderedDict[int, int] = OrderedDict()
        self.fetched: set[int] = set()

    def begin_epoch(self, numbers: Sequence[int], parts: Sequence[Part]) -> None:
        """Begin an epoch: fetches of the previous one go on, but its needs are dropped."""
        for rank in self._ranks:
            rank.queue.clear()
        self._ranks = [_Rank(self, number, parts, self._setup, self._costs) for number in numbers]
        self._fetched_in_epoch.clear()

    def look_ahead(self, num_parts: int) -> None:
        """Let the ranks look ahead of their next parts, and their idle threads take shards from their queues in turn."""
        for rank in self._ranks:
            for _ in range(num_parts):
                next(rank.parts, None)
        begun = list(self._ranks)
        while begun:
            begun = [rank for rank in begun if self._fetch_ahead(rank)]

    def read(self, part: Part) -> None:
        """Let the ranks read a part."""
        for rank in self._ranks:
            rank.unread = part.of(rank.number)[::-1]
            self._run.num_reading += 1
            self._read_on(rank)

    def reserve(self, num_bytes: int) -> int:
        """Make room for a shard, and return its size."""
        self._used_bytes += num_bytes
        limit_bytes = self._setup.cache_limit_bytes
        while limit_bytes is not None and self._used_bytes > limit_bytes and self.cache:
            self._evict()
        self.totals.most_bytes = max(self.totals.most_bytes, self._used_bytes)
        return num_bytes

    def keep(self, shard: int, reserved_bytes: int) -> None:
        """Add a shard that is ready, as the most recently used."""
        kept_bytes = self.cache[shard] = self._costs[shard].kept_bytes
        self._used_bytes += kept_bytes - reserved_bytes
        self._kept_bytes += kept_bytes
        # The shards may have exceeded the limit while they were being fetched.
        while self._setup.cache_limit_bytes is not None and self._kept_bytes > self._setup.cache_limit_bytes:
            self._evict()

    def _evict(self) -> None:
        _, freed_bytes = self.cache.popitem(last=False)
        self._used_bytes -= freed_bytes
        self._kept_bytes -= freed_bytes
        self.totals.num_evictions += 1

    def _fetch_ahead(self, rank: _Rank) -> bool:
        """Let an idle thread of a rank take a shard from its queue; return whether there was one."""
        shard = rank.next_to_fetch(self._setup.num_threads)
        if shard is None:
            return False
        del rank.queue[shard]
        if not self._is_here(shard):
            rank.fetching.add(shard)
            self._fetch(shard, rank, is_ahead=True)
        return True

    def _is_here(self, shard: int) -> bool:
        """Return whether a shard is in the cache, where it is used now, or being fetched."""
        if shard in self._making:
            self.totals.num_shared += 1
            return True
        if shard not in self.cache:
            return False
        self.totals.num_hits += 1
        self.cache.move_to_end(shard)
        return True

    def _read_on(self, rank: _Rank) -> None:
        """Let a rank read the shards of its part, until it has to wait."""
        while rank.unread:
            shard = rank.unread[-1]
            if shard not in self.cache:
                rank.queue.pop(shard, None)
                if shard not in self._making:
                    self._fetch(shard, rank, is_ahead=False)
                elif shard not in rank.fetching:
                    self.totals.num_shared += 1
                self._making[shard].append((rank, self._run.now_s))
                return
            self.cache.move_to_end(shard)
            rank.opened.add(shard)
            rank.unread.pop()
        self._run.num_reading -= 1

    def _fetch(self, shard: int, owner: _Rank, *, is_ahead: bool) -> None:
        """Fetch a shard, in a thread of a rank that reads ahead, or in the rank itself, which waits for it."""
        cost = self._costs[shard]
        self.totals.num_fetches += 1
        self.totals.num_fetched_again += shard in self._fetched_in_epoch
        self.fetched.add(shard)
        self._fetched_in_epoch.add(shard)
        self._making[shard] = []
        self.totals.num_shards = len(self.fetched)
        self.reserve(cost.making_bytes)

        def transfer() -> None:
            self._run.transfer(self._number, cost.fetched_bytes, decompress)

        def decompress() -> None:
            self.totals.fetched_bytes += cost.fetched_bytes
            if cost.is_compressed:
                self._run.after(cost.raw_bytes / self._setup.decompress_bytes_per_s, finish)
            else:
                finish()

        def finish() -> None:
            self.keep(shard, cost.making_bytes)
            for waiting, since_s in self._making.pop(shard):
                if waiting is owner:
                    self._read_on(waiting)
                else:  # it looks half of the interval later, on average
                    pause_s = min(self._setup.poll_s, self._run.now_s - since_s) / 2
                    self._run.after(pause_s, partial(self._read_on, waiting))
            if is_ahead:
                owner.fetching.remove(shard)
                while self._fetch_ahead(owner):
                    pass

        self._run.after(cost.num_requests * self._setup.latency_s, transfer)

"""Play a run: the nodes step together, and each step waits for the shards of all nodes."""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fkat_data.tools.simulation.link import fair_rates
from fkat_data.tools.simulation.needs import EpochNeeds, StepGroup
from fkat_data.tools.simulation.setup import Setup, ShardCosts
from fkat_data.tools.simulation.simulated_node import SimulatedNode

_NUM_SNAPSHOTS = 2000


@dataclass(frozen=True)
class StepSnapshot:
    """The state of the nodes when a step began. All numbers are by node; counters start with the run.

    Attributes:
        step: The step.
        at_s: When it began.
        fetched_bytes: Bytes fetched.
        resident_bytes: Bytes of shards on disk.
        resident_shards: Number of shards on disk.
        num_hits: Times that a rank found a shard in the cache, or that another rank was fetching it.
        num_fetches: Fetches begun.
        num_evictions: Evictions.
    """

    step: int
    at_s: float
    fetched_bytes: tuple[int, ...]
    resident_bytes: tuple[int, ...]
    resident_shards: tuple[int, ...]
    num_hits: tuple[int, ...]
    num_fetches: tuple[int, ...]
    num_evictions: tuple[int, ...]


@dataclass(frozen=True)
class Played:
    """A run that was played.

    Attributes:
        wait_s: How long each step waited, by the rank that waited longest.
        epoch_starts: The first step of each epoch.
        duration_s: How long the run took.
        snapshots: About 2,000 snapshots over the run, and one at the end.
        nodes: The nodes at the end of the run.
    """

    wait_s: npt.NDArray[np.float64]
    epoch_starts: tuple[int, ...]
    duration_s: float
    snapshots: tuple[StepSnapshot, ...]
    nodes: tuple[SimulatedNode, ...]


def play(
    needs: Sequence[EpochNeeds],
    costs: Sequence[ShardCosts],
    setup: Setup,
    num_ranks: int,
    cached: Sequence[Collection[int]] = (),
) -> Played:
    """Play a run.

    Args:
        needs: The shards that the ranks need.
        costs: The costs of each shard.
        setup: The run.
        num_ranks: The number of ranks in ``needs``, less than the run has if several ranks read the same.
        cached: For each node from the first one on, the shards that it has when the run starts.
    """
    return _Run(costs, setup, num_ranks, cached).play(needs)


class _Run:
    def __init__(
        self, costs: Sequence[ShardCosts], setup: Setup, num_ranks: int, cached: Sequence[Collection[int]]
    ) -> None:
        self._setup = setup
        self._now_s = 0.0
        raw_bytes = [cost.raw_bytes for cost in costs]
        self._nodes = [SimulatedNode(setup.ranks_per_node, costs, raw_bytes, setup) for _ in range(setup.num_nodes)]
        for node, shards in zip(self._nodes, cached, strict=False):
            node.add_cached(shards)
        # The time of each node's next event, and a heap of (time, node) with all of them and with times that changed.
        self._next_s = [math.inf] * setup.num_nodes
        self._queue: list[tuple[float, int]] = []
        # Ranks that read the same have consecutive numbers.
        alike = setup.num_ranks // num_ranks
        self._places = [
            [divmod(rank * alike + number, setup.ranks_per_node) for number in range(alike)]
            for rank in range(num_ranks)
        ]
        self._num_waiting = 0
        self._snapshots: list[StepSnapshot] = []
        self._num_wanted: list[list[int]] = []

    def play(self, needs: Sequence[EpochNeeds]) -> Played:
        num_steps = sum(epoch.num_steps for epoch in needs)
        waits_s = np.zeros(num_steps)
        starts: list[int] = []
        step = 0
        for epoch in needs:
            starts.append(step)
            for node in self._nodes:
                node.begin_epoch()
            self._num_wanted = [[0] * len(places) for places in self._places]
            for index, part in enumerate(epoch.parts):
                began_s = self._now_s
                self._request(epoch.parts, index)
                if index == 0 and self._setup.workers_per_rank:
                    self._update_all_rates()
                    self._advance(self._setup.worker_start_s)
                self._read(index, part)
                waits_s[step] = self._now_s - began_s
                self._record(step, num_steps)
                step += part.num_steps
                self._advance(part.num_steps * self._setup.step_s)
        self._snapshots.append(self._snapshot(num_steps))
        return Played(waits_s, tuple(starts), self._now_s, tuple(self._snapshots), tuple(self._nodes))

    def _request(self, parts: Sequence[StepGroup], index: int) -> None:
        # Workers have requested the batches that they make ahead.
        num_requested = min(index + max(1, self._setup.batches_made_ahead), len(parts))
        for rank, places in enumerate(self._places):
            num_wanted = self._num_wanted[rank]
            for number, (node, place) in enumerate(places):
                num_wanted[number] = self._nodes[node].request(
                    self._now_s, place, rank, parts, num_wanted[number], num_requested
                )

        for node in self._nodes:
            node.begin_fetches(self._now_s)

    def _read(self, index: int, part: StepGroup) -> None:
        for rank, places in enumerate(self._places):
            shards = part.shards[rank].tolist()
            for node, place in places:
                self._nodes[node].read(self._now_s, place, index, shards)
        self._num_waiting = sum(node.is_waiting for node in self._nodes)
        self._update_all_rates()
        while self._num_waiting:
            self._handle_event(self._next_event_s())

    def _advance(self, seconds: float) -> None:
        until_s = self._now_s + seconds
        while (at_s := self._next_event_s()) <= until_s:
            self._handle_event(at_s)
        self._now_s = until_s

    def _next_event_s(self) -> float:
        queue = self._queue
        while queue and self._next_s[queue[0][1]] != queue[0][0]:
            heapq.heappop(queue)
        return queue[0][0] if queue else math.inf

    def _handle_event(self, at_s: float) -> None:
        if math.isinf(at_s):
            raise RuntimeError("the simulated run waits for a shard that no rank fetches")
        node = heapq.heappop(self._queue)[1]
        self._next_s[node] = math.nan  # this event is no longer to come
        # Time never goes back: the event's time was computed earlier, and rounded.
        self._now_s = max(self._now_s, at_s)
        was_waiting = self._nodes[node].is_waiting
        self._nodes[node].handle_event(self._now_s)
        self._num_waiting += self._nodes[node].is_waiting - was_waiting
        self._update_rates(node)

    def _update_all_rates(self) -> None:
        for node in range(len(self._nodes)):
            self._update_rates(node)

    def _update_rates(self, node: int) -> None:
        """Share the bandwidth among the active transfers, after those of a node changed."""
        setup = self._setup
        bandwidth, connection, store = (
            setup.bandwidth_bytes_per_s,
            setup.connection_bytes_per_s,
            setup.store_bytes_per_s,
        )
        if store == math.inf:
            # One node's transfers do not depend on the others'.
            count = self._nodes[node].link.num_moving
            self._set_rate(node, min(bandwidth / count, connection) if count else 0.0)
            return
        rates = fair_rates([other.link.num_moving for other in self._nodes], bandwidth, connection, store)
        for index, rate in enumerate(rates):
            self._set_rate(index, rate)

    def _set_rate(self, node: int, rate: float) -> None:
        self._nodes[node].link.set_rate(self._now_s, rate)
        next_s = self._nodes[node].next_s()
        if next_s != self._next_s[node]:
            self._next_s[node] = next_s
            if next_s < math.inf:
                heapq.heappush(self._queue, (next_s, node))

    def _record(self, step: int, num_steps: int) -> None:
        if not self._snapshots or step - self._snapshots[-1].step >= num_steps / _NUM_SNAPSHOTS:
            self._snapshots.append(self._snapshot(step))

    def _snapshot(self, step: int) -> StepSnapshot:
        nodes = self._nodes
        return StepSnapshot(
            step,
            self._now_s,
            tuple(node.fetched_bytes for node in nodes),
            tuple(node.cache.used_bytes for node in nodes),
            tuple(len(node.cache) for node in nodes),
            tuple(node.num_hits + node.num_shared for node in nodes),
            tuple(node.num_fetches for node in nodes),
            tuple(node.cache.num_evictions for node in nodes),
        )

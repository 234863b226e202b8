"""The run itself: nodes that step together, and wait for one another's shards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fkat_data.tools.simulation.costs import ShardCosts
from fkat_data.tools.simulation.link import fair_rates
from fkat_data.tools.simulation.needs import EpochNeeds, StepGroup
from fkat_data.tools.simulation.setup import Setup
from fkat_data.tools.simulation.simulated_node import SimulatedNode

__all__ = ["Played", "StepSnapshot", "play"]

_NUM_MOMENTS = 2000


@dataclass(frozen=True)
class StepSnapshot:
    """How things stood when a step began; numbers are by node, and counted from the run's begin.

    Attributes:
        step: The step.
        at_s: When it began.
        fetched_bytes: What had come.
        resident_bytes: What shards took on the disk.
        resident_shards: Shards on the disk.
        num_hits: Times that a rank had found a shard there, or in another rank's hands.
        num_fetches: Shards that had been begun.
        num_evictions: Shards that had been evicted.
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
        wait_s: How long each step was waited for, by the rank that waited longest.
        epoch_starts: The first step of each epoch.
        duration_s: How long the run took.
        moments: How things stood, some 2,000 times, and at the end.
        nodes: The nodes as they were at the end.
    """

    wait_s: npt.NDArray[np.float64]
    epoch_starts: tuple[int, ...]
    duration_s: float
    moments: tuple[StepSnapshot, ...]
    nodes: tuple[SimulatedNode, ...]


def play(needs: Sequence[EpochNeeds], costs: Sequence[ShardCosts], setup: Setup, num_ranks: int) -> Played:
    """Play a run.

    Args:
        needs: What the ranks open.
        costs: What each shard costs.
        setup: The run.
        num_ranks: Ranks of the needs: fewer than the run has where several read the same.
    """
    return _Run(costs, setup, num_ranks).through(needs)


class _Run:
    def __init__(self, costs: Sequence[ShardCosts], setup: Setup, num_ranks: int) -> None:
        self._setup = setup
        self._now_s = 0.0
        self._nodes = [SimulatedNode(setup.ranks_per_node, costs, setup) for _ in range(setup.num_nodes)]
        self._next_s = [math.inf] * setup.num_nodes
        # Where several ranks read the same, they follow one another.
        alike = setup.num_ranks // num_ranks
        self._places = [
            [divmod(rank * alike + number, setup.ranks_per_node) for number in range(alike)]
            for rank in range(num_ranks)
        ]
        self._moments: list[StepSnapshot] = []
        self._num_wanted: list[list[int]] = []

    def through(self, needs: Sequence[EpochNeeds]) -> Played:
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
                self._ask(epoch.parts, index)
                if index == 0 and self._setup.workers_per_rank:
                    self._settle_all()
                    self._go_on(self._setup.worker_start_s)
                self._read(index, part)
                waits_s[step] = self._now_s - began_s
                self._tell(step, num_steps)
                step += part.num_steps
                self._go_on(part.num_steps * self._setup.step_s)
        self._moments.append(self._moment(num_steps))
        return Played(waits_s, tuple(starts), self._now_s, tuple(self._moments), tuple(self._nodes))

    def _ask(self, parts: Sequence[StepGroup], index: int) -> None:
        # Workers have asked for what they make ahead.
        num_asked = min(index + max(1, self._setup.batches_made_ahead), len(parts))
        for rank, places in enumerate(self._places):
            num_wanted = self._num_wanted[rank]
            for number, (node, place) in enumerate(places):
                num_wanted[number] = self._nodes[node].ask(
                    self._now_s, place, rank, parts, num_wanted[number], num_asked
                )

        for node in self._nodes:
            node.begin(self._now_s)

    def _read(self, index: int, part: StepGroup) -> None:
        for rank, places in enumerate(self._places):
            for node, place in places:
                self._nodes[node].read(self._now_s, place, index, part.shards[rank].tolist())
        self._settle_all()
        while any(node.is_waiting for node in self._nodes):
            self._happen(min(self._next_s))

    def _go_on(self, seconds: float) -> None:
        until_s = self._now_s + seconds
        while (at_s := min(self._next_s)) <= until_s:
            self._happen(at_s)
        self._now_s = until_s

    def _happen(self, at_s: float) -> None:
        if math.isinf(at_s):
            raise RuntimeError("the simulated run waits for a shard that nobody fetches")
        node = self._next_s.index(at_s)
        # Never back: what was due was computed from another moment, and rounded.
        self._now_s = max(self._now_s, at_s)
        self._nodes[node].happen(self._now_s)
        self._settle(node)

    def _settle_all(self) -> None:
        for node in range(len(self._nodes)):
            self._settle(node)

    def _settle(self, node: int) -> None:
        """Share the line among what is under way now."""
        setup = self._setup
        limits = setup.bandwidth_bytes_per_s, setup.connection_bytes_per_s, setup.store_bytes_per_s
        changed = [node] if math.isinf(setup.store_bytes_per_s) else range(len(self._nodes))
        rates = fair_rates([self._nodes[index].link.num_moving for index in changed], *limits)
        for index, rate in zip(changed, rates, strict=True):
            self._nodes[index].link.set_rate(self._now_s, rate)
            self._next_s[index] = self._nodes[index].next_s()

    def _tell(self, step: int, num_steps: int) -> None:
        if not self._moments or step - self._moments[-1].step >= num_steps / _NUM_MOMENTS:
            self._moments.append(self._moment(step))

    def _moment(self, step: int) -> StepSnapshot:
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

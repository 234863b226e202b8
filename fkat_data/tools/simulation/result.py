"""The result of a simulated run."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fkat_data.tools.simulation.play import Played, StepSnapshot
from fkat_data.tools.simulation.setup import Setup


@dataclass(frozen=True)
class NodeTotals:
    """A node's totals at the end of the run.

    Attributes:
        fetched_bytes: Bytes fetched.
        num_shards: The number of different shards fetched.
        num_fetches: The number of fetches.
        num_fetched_again: The number of fetches of a shard that the node had already fetched in the same epoch.
        num_hits: Times that a rank found a shard in the cache.
        num_shared: Times that a rank waited for a shard that another rank was fetching.
        num_evictions: The number of evictions.
        most_bytes: The most bytes that shards took on its disk.
    """

    fetched_bytes: int
    num_shards: int
    num_fetches: int
    num_fetched_again: int
    num_hits: int
    num_shared: int
    num_evictions: int
    most_bytes: int


@dataclass(frozen=True)
class Simulation:
    """A simulated run.

    Attributes:
        setup: The simulated setup.
        wait_s: How long each step waited.
        epoch_starts: The first step of each epoch.
        duration_s: How long the run took.
        num_warm_up_steps: The number of steps after which the run waits no more than later on.
        snapshots: The state of the nodes over time.
        nodes: The totals of each node.
        cached: For each node, the shards in its cache at the end, the least recently used first.
        num_shards: The number of shards that any node fetched.
        whole_bytes: The size on disk of all shards that a node used, for the node where it is largest.
    """

    setup: Setup
    wait_s: npt.NDArray[np.float64]
    epoch_starts: tuple[int, ...]
    duration_s: float
    num_warm_up_steps: int
    snapshots: tuple[StepSnapshot, ...]
    nodes: tuple[NodeTotals, ...]
    cached: tuple[tuple[int, ...], ...]
    num_shards: int
    whole_bytes: int

    @property
    def num_steps(self) -> int:
        """The number of steps in the run."""
        return len(self.wait_s)

    @property
    def first_batch_s(self) -> float:
        """How long the first step waited."""
        return float(self.wait_s[0]) if self.num_steps else 0.0

    @property
    def waited_s(self) -> float:
        """How long the run waited in total."""
        return float(self.wait_s.sum())

    @property
    def waited_share(self) -> float:
        """The share of time that the run waited."""
        return self.waited_s / self.duration_s if self.duration_s else 0.0

    @property
    def warm_up_s(self) -> float:
        """How long the warm-up took."""
        steps = self.num_warm_up_steps
        return float(self.wait_s[:steps].sum()) + steps * self.setup.step_s

    @property
    def num_epochs(self) -> int:
        """The number of epochs that the run started."""
        return len(self.epoch_starts)

    @property
    def later_share(self) -> float:
        """The share of time that the run waited, not counting the first step of each epoch."""
        return later_share(self.wait_s, self.epoch_starts, self.setup.step_s)

    @property
    def num_waits(self) -> int:
        """The number of steps that waited."""
        return int(np.count_nonzero(self.wait_s > 0))

    @property
    def num_late_waits(self) -> int:
        """The number of steps that waited after the warm-up."""
        return int(np.count_nonzero(self.wait_s[self.num_warm_up_steps :] > 0))

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values, without the waits of single steps. Infinity becomes None."""
        numbers = {
            "setup": asdict(self.setup),
            "num_steps": self.num_steps,
            "num_epochs": self.num_epochs,
            "duration_s": self.duration_s,
            "first_batch_s": self.first_batch_s,
            "waited_s": self.waited_s,
            "waited_share": self.waited_share,
            "num_waits": self.num_waits,
            "num_warm_up_steps": self.num_warm_up_steps,
            "warm_up_s": self.warm_up_s,
            "later_share": self.later_share,
            "num_late_waits": self.num_late_waits,
            "num_shards": self.num_shards,
            "whole_bytes": self.whole_bytes,
            "nodes": [asdict(node) for node in self.nodes],
        }
        return {name: _plain(value) for name, value in numbers.items()}


def totals_of(played: Played) -> tuple[NodeTotals, ...]:
    """Return the totals of each node of a run."""
    return tuple(
        NodeTotals(
            fetched_bytes=node.fetched_bytes,
            num_shards=len(node.fetched),
            num_fetches=node.num_fetches,
            num_fetched_again=node.num_fetched_again,
            num_hits=node.num_hits,
            num_shared=node.num_shared,
            num_evictions=node.cache.num_evictions,
            most_bytes=node.cache.most_bytes,
        )
        for node in played.nodes
    )


def later_share(wait_s: npt.NDArray[np.float64], epoch_starts: Sequence[int], step_s: float) -> float:
    """Return the share of time that a run waits, not counting the first step of each epoch."""
    is_later = np.ones(len(wait_s), bool)
    is_later[list(epoch_starts)] = False
    waited_s = float(wait_s[is_later].sum())
    total_s = waited_s + len(wait_s) * step_s
    return waited_s / total_s if total_s else 0.0


def num_warm_up_steps(wait_s: npt.NDArray[np.float64], step_s: float) -> int:
    """Return the number of steps after which a run waits no more than in its second half.

    A tenth more waiting, or a thousandth of the time, does not count as more.
    """
    if not len(wait_s):
        return 0
    waited_s = np.cumsum(wait_s[::-1])[::-1]
    total_s = waited_s + step_s * np.arange(len(wait_s), 0, -1)
    shares = np.divide(waited_s, total_s, out=np.zeros_like(total_s), where=total_s > 0)
    return int(np.argmax(shares <= 1.1 * shares[len(wait_s) // 2] + 0.001))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""What a simulated run comes to."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fkat_data.tools.simulation.play import Played, StepSnapshot
from fkat_data.tools.simulation.quality import Quality
from fkat_data.tools.simulation.setup import Setup

__all__ = ["NodeTotals", "Remedies", "Simulation", "later_share", "num_warm_up_steps", "summed"]


@dataclass(frozen=True)
class NodeTotals:
    """A node at the end of the run.

    Attributes:
        fetched_bytes: What came over its line.
        num_shards: Shards that it has fetched at least once.
        num_fetches: Shards that it has fetched, again and again counted.
        num_fetched_again: Of these, shards that it had fetched in the same epoch already.
        num_hits: Times that a rank found a shard in the cache.
        num_shared: Times that a rank waited for a shard that another rank was fetching.
        num_evictions: Shards that made room for others.
        most_bytes: The most that shards took on its disk.
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
class Remedies:
    """What would do, found by playing the run again; None: not looked for, or not found.

    Where the cache is too small, the others hold for one that is not.

    Attributes:
        bandwidth_bytes_per_s: The least bandwidth of a node with which the run hardly waits once an epoch has begun.
        predownload: The least read-ahead with which it hardly waits, as often doubled as it takes.
        unbounded_share: The part of the time that it waits once an epoch has begun, had a node any bandwidth.
        cache_limit_bytes: The least limit with which no shard is fetched twice within an epoch.
    """

    bandwidth_bytes_per_s: float | None = None
    predownload: int | None = None
    unbounded_share: float | None = None
    cache_limit_bytes: int | None = None


@dataclass(frozen=True)
class Simulation:
    """A run that was played without data.

    Attributes:
        setup: What was played.
        wait_s: How long each step was waited for.
        epoch_starts: The first step of each epoch.
        duration_s: How long the run took.
        num_warm_up_steps: Steps after which it waits no more than later on.
        moments: How things stood, from time to time.
        nodes: One a node.
        num_shards: Shards that some node has fetched.
        whole_bytes: What all shards take that the node with the most of them has used.
        quality: How well the order mixes.
        remedies: What would do.
    """

    setup: Setup
    wait_s: npt.NDArray[np.float64]
    epoch_starts: tuple[int, ...]
    duration_s: float
    num_warm_up_steps: int
    moments: tuple[StepSnapshot, ...]
    nodes: tuple[NodeTotals, ...]
    num_shards: int
    whole_bytes: int
    quality: Quality
    remedies: Remedies

    @property
    def num_steps(self) -> int:
        """Steps of the run."""
        return len(self.wait_s)

    @property
    def first_batch_s(self) -> float:
        """How long the first step was waited for."""
        return float(self.wait_s[0]) if self.num_steps else 0.0

    @property
    def waited_s(self) -> float:
        """How long the run waited."""
        return float(self.wait_s.sum())

    @property
    def waited_share(self) -> float:
        """The part of the time that the run waited."""
        return self.waited_s / self.duration_s if self.duration_s else 0.0

    @property
    def warm_up_s(self) -> float:
        """How long the warm-up took."""
        steps = self.num_warm_up_steps
        return float(self.wait_s[:steps].sum()) + steps * self.setup.step_s

    @property
    def num_epochs(self) -> int:
        """Epochs that it began."""
        return len(self.epoch_starts)

    @property
    def later_share(self) -> float:
        """The part of the time that the run waited, but for the first step of each epoch."""
        return later_share(self.wait_s, self.epoch_starts, self.setup.step_s)

    @property
    def num_waits(self) -> int:
        """Steps that were waited for at all."""
        return int(np.count_nonzero(self.wait_s > 0))

    @property
    def num_late_waits(self) -> int:
        """Steps that were waited for after the warm-up."""
        return int(np.count_nonzero(self.wait_s[self.num_warm_up_steps :] > 0))

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values that JSON has; without the waits of single steps."""
        told = {
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
            "quality": asdict(self.quality) | {"spread": self.quality.spread, "mixture": self.quality.mixture},
            "remedies": asdict(self.remedies),
        }
        return {name: _plain(value) for name, value in told.items()}


def summed(played: Played) -> tuple[NodeTotals, ...]:
    """Return the nodes of a run in numbers."""
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
    """Return the part of the time that is waited, but for the first step of each epoch."""
    is_later = np.ones(len(wait_s), bool)
    is_later[list(epoch_starts)] = False
    waited_s = float(wait_s[is_later].sum())
    total_s = waited_s + len(wait_s) * step_s
    return waited_s / total_s if total_s else 0.0


def num_warm_up_steps(wait_s: npt.NDArray[np.float64], step_s: float) -> int:
    """Return after how many steps a run waits no more than later on.

    Later on is its second half, in which a tenth more waiting, or a thousandth of the time, is nothing.
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
    # JSON has no infinity.
    return None if isinstance(value, float) and not math.isfinite(value) else value

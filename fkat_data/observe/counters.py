"""The numbers of a loader, as they are counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fkat_data.observe.durations import Durations

_NONE = Durations()


class Seen(NamedTuple):
    """The microbatches and passes that a mixture has had of a source.

    Attributes:
        delivered: Microbatches.
        passes: How often it was begun.
    """

    delivered: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True)
class LoaderCounters:
    """The numbers that ``LoaderStatistics`` shows, and that a verdict judges; their meaning is said there."""

    delivered: int = 0
    delivered_bytes: int = 0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    waited_first_s: float = 0.0
    waited_behind_s: float = 0.0
    produced: int = 0
    produced_by_caller: int = 0
    queue_depth: int = 0
    store_s: float = 0.0
    build_s: float = 0.0
    produce_s: float = 0.0
    replay_s: float = 0.0
    encode_s: float = 0.0
    blocked_s: float = 0.0
    idle_s: float = 0.0
    copied_s: float = 0.0
    num_segments: int = 0
    segment_bytes: int = 0
    held_bytes: int = 0
    worker_restarts: int = 0
    skipped_shards: int = 0
    skipped_samples: int = 0
    num_workers: int = 0
    num_workers_per_shard: int = 1
    num_shard_prefetches: int = 0
    num_cpus: int = 1
    waiting: Durations = _NONE
    making: Durations = _NONE
    made_on: Mapping[str, Durations] = field(default_factory=dict[str, Durations])
    seen: Mapping[str, Seen] = field(default_factory=dict[str, Seen])
    opened_alone: str = ""

    @property
    def waited_share(self) -> float:
        """The share of the time that the caller waited, from 0 to 1."""
        return min(1.0, self.waited_s / self.elapsed_s) if self.elapsed_s else 0.0

"""The words of the library as types: what passes between its parts and its users."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

__all__ = ["Microbatch", "Profiler", "ResplittableSampler", "Shard", "Skippable", "Stateful"]

Shard: TypeAlias = str | list[str]
"""A file, or a group of files, with samples: one URI or a list of them."""

Microbatch: TypeAlias = Any
"""What a loader yields: whatever the user's DataLoader makes of its samples."""


@runtime_checkable
class Stateful(Protocol):
    """Something whose place can be saved and set."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place as plain values."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a place that ``state_dict`` gave."""
        ...


@runtime_checkable
class ResplittableSampler(Protocol):
    """A shard sampler that can be asked for the shards of any rank of any number of data-parallel ranks."""

    @property
    def dp_size(self) -> int | None:
        """Number of data-parallel ranks that the shards are split over; None if this sampler splits nothing."""
        ...

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return the sampler that a rank of ``dp_size`` ranks has; this one stays as it is."""
        ...

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return this rank's shards of an epoch in their order."""
        ...


@runtime_checkable
class Skippable(Protocol):
    """A factory's product that can start later than at its first microbatch."""

    def skip(self, count: int) -> Iterable[Microbatch]:
        """Return the same microbatches without the first ``count``, at less cost than making them."""
        ...

    def __iter__(self) -> Iterator[Microbatch]: ...


@runtime_checkable
class Profiler(Protocol):
    """What is told of the loader's actions, for example Lightning's ``Profiler``.

    ``summary()``, ``describe()`` and ``filename`` are used where the object has them.
    """

    def start(self, action_name: str) -> None:
        """An action begins."""
        ...

    def stop(self, action_name: str) -> None:
        """The action that began last under this name ends."""
        ...

"""A list that has grown since a state was saved: its beginning is the list of then, and what follows was appended.

Each epoch that was begun goes on over the list of then, on any number of ranks, and the next one has all. What a state in
such an epoch says of it is what it would say without the growth. Where ranks of a ``ShardedDataLoader`` share a list, a part
does not tell how long that is, and ranks may be in several epochs. So ``resplits`` of its state, which every such state
has, says how long it is, and how much of it the epochs under way have that were begun before it grew:
``{"listed": 120, "begun": [[3, 100]]}``.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from fkat_data.errors import StateMismatchError
from fkat_data.errors.arguments import saved_integer
from fkat_data.errors.wording import counted
from fkat_data.runtime.interruption import genuine
from fkat_data.types import Shard, num_listed_of

_logger = logging.getLogger(__name__)
LISTED = "listed"
"""The field of a state's item that has the length of the list that ranks share."""


class Growth(NamedTuple):
    """How a list has grown.

    Attributes:
        num_listed: Items of the present list.
        begun_lengths: Length of the list in each epoch that was begun before it grew.
    """

    num_listed: int = 0
    begun_lengths: Mapping[int, int] = {}

    def within(self, epochs: range) -> "Growth":
        """Return the same for these epochs alone."""
        return Growth(self.num_listed, {epoch: size for epoch, size in self.begun_lengths.items() if epoch in epochs})


def widest(growths: Iterable[Growth | None]) -> Growth | None:
    """Return, of what several ranks know, the one with the most epochs; None: none knows anything."""
    return max(filter(None, growths), key=lambda growth: len(growth.begun_lengths), default=None)


def growth_items(growth: Growth | None) -> list[dict[str, Any]]:
    """Return the item of a state's reshards that says it; None: no item."""
    return [{LISTED: growth.num_listed, "begun": sorted(map(list, growth.begun_lengths.items()))}] if growth else []


def growth_in(items: Any) -> Growth | None:
    """Return what the reshards of a state say of it; None: nothing.

    Raises:
        StateMismatchError: The item is damaged.
    """
    found = cast("Sequence[Any]", items) if isinstance(items, (list, tuple)) else ()
    for item in found:
        try:
            if LISTED in item:
                begun = {
                    saved_integer("begun", epoch): saved_integer("begun", size, minimum=1)
                    for epoch, size in item["begun"]
                }
                return Growth(saved_integer(LISTED, item[LISTED]), begun)
        except genuine(TypeError, ValueError, KeyError):
            raise StateMismatchError("resplits", item, "<a length, and the length in each epoch>") from None
    return None


def log_growth(noun: str, num_appended: int, last_begun: int) -> None:
    """Log how much was appended, and which epoch is the first that has it; ``last_begun``: -1 for none."""
    _logger.info(
        "%s appended since the state was saved: what was begun goes on without, and epoch %d is the first that has all",
        *(counted(num_appended, noun), last_begun + 1),
    )


class GrownSampler:
    """A sampler whose list has grown.

    Args:
        present: The sampler, over the present list.
        begun: For each epoch that was begun before the list grew, the sampler over the list of then.
    """

    def __init__(self, present: Any, begun: Mapping[int, Any]) -> None:
        self.present: Any = present
        """The sampler over the present list."""
        self._begun = begun

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return the shards of an epoch, in order."""
        return self._begun.get(epoch, self.present).shards(epoch)

    def for_rank(self, dp_size: int, dp_rank: int) -> "GrownSampler":
        """Return the sampler of another rank."""
        begun = {epoch: each.for_rank(dp_size, dp_rank) for epoch, each in self._begun.items()}
        return GrownSampler(self.present.for_rank(dp_size, dp_rank), begun)

    @property
    def num_listed(self) -> int | None:
        """Number of shards in the present list."""
        return num_listed_of(self.present)

    def first(self, num_listed: int) -> Any:
        """Return the sampler over the first shards of the present list alone."""
        return self.present.first(num_listed)


def sampler_with(sampler: Any, growth: Growth | None) -> Any:
    """Return a sampler, over the present list or one that has grown, of a list that has grown so; None: it has not."""
    present = sampler.present if isinstance(sampler, GrownSampler) else sampler
    if growth is None:
        return present
    before = {size: present.first(size) for size in set(growth.begun_lengths.values())}
    return GrownSampler(present, {epoch: before[size] for epoch, size in growth.begun_lengths.items()})

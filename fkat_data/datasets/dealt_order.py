"""Orders that are dealt out to ranks: what a loader needs to deal the rest of an epoch out again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, cast, runtime_checkable

from fkat_data.errors import StateMismatchError


@runtime_checkable
class DealtOrder(Protocol):
    """One rank's part of a plan that knows no ranks. ``for_rank(1, 0)`` is the plan itself."""

    @property
    def dp_size(self) -> int:
        """Number of ranks that the plan is dealt out to."""
        ...

    @property
    def dp_rank(self) -> int:
        """Index of this rank."""
        ...

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return an equal object for rank ``dp_rank`` of ``dp_size``; this one stays unchanged.

        Raises:
            ConfigurationError: The rank does not exist, or there are fewer samples than ranks.
        """
        ...


@runtime_checkable
class DealtItems(DealtOrder, Protocol):
    """A dataset that deals out what any number of ranks have left of an epoch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def rest(
        self,
        earlier: Sequence[Sequence[int | None]],
        *,
        batch_size: int = 1,
        drop_last: bool = False,
        order: Sequence[int] | None = None,
    ) -> Sequence[Any]:
        """Return what this rank gets of what other ranks have left of the epoch: indices of this dataset, in order.

        Args:
            earlier: How many batches each rank had when the number of ranks changed, each time; None: all.
            batch_size: Items of a batch.
            drop_last: Whether ranks left out a last batch that was smaller.
            order: The order in which each of the first ranks took its items; None: one after the other.
        """
        ...


@runtime_checkable
class DealtBatches(DealtOrder, Protocol):
    """A batch sampler that has a position, and deals out what any number of ranks have left of an epoch.

    Its state is that of all ranks. ``load_state_dict`` takes the state of any number of ranks.
    """

    def __iter__(self) -> Iterator[list[int]]: ...

    def rest(self, earlier: Sequence[Sequence[int | None]] = ()) -> Iterator[list[int]]:
        """Iterate as ``iter()`` does, but over this rank's batches of what other ranks have left of the epoch.

        Args:
            earlier: How many batches each rank had when the number of ranks changed, each time; None: all.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what the plan depends on."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the position of a state.

        Raises:
            StateMismatchError: The state belongs to another plan.
        """
        ...


def is_part(order: object) -> bool:
    """Return whether an object gives a rank's part, and not all of a plan."""
    return isinstance(order, DealtOrder) and order.dp_size > 1


def is_of_old_order(state: object) -> bool:
    """Return whether a state of a ``DealtBatches`` is of several ranks, whose number shaped the plan."""
    if not isinstance(state, Mapping):
        return False
    fields = cast("Mapping[str, Any]", state)
    return fields.get("version") == 1 and "max_tokens" in fields and fields.get("world_size", 1) != 1


def old_order_error(num_ranks: object) -> StateMismatchError:
    """Return the error for a state within an epoch whose order the number of ranks shaped."""
    hint = (
        "the order of several ranks has changed, so that this epoch cannot go on: finish it with the version of "
        "fkat_data that saved the state, or begin the next epoch"
    )
    return StateMismatchError("version", f"<1, of {num_ranks} ranks>", "<2>", hint)

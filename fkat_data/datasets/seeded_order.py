"""Datasets whose order has a seed: one that drew it has to say which, or a resume has another order."""

from typing import Any, Protocol, runtime_checkable

_MOST_VIEWS = 16  # a dataset may name itself


@runtime_checkable
class SeededOrder(Protocol):
    """A dataset whose order follows from a seed and an epoch, both of which are in its state."""

    @property
    def is_seed_drawn(self) -> bool:
        """Whether the dataset drew the seed: another process draws another one."""
        ...

    def follow_epoch(self, epoch: int) -> None:
        """Switch to the order of a loader's epoch, unless the caller has said an epoch by ``set_epoch``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return seed and epoch, and what the order depends on besides."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Switch to the order of a state.

        Raises:
            StateMismatchError: The state belongs to another dataset, or the caller gave this one another seed.
        """
        ...


def seeded_order_below(dataset: object) -> SeededOrder | None:
    """Return the dataset that decides on the order, below views such as ``Subset`` and ``MapDataset``; None: none does."""
    for _ in range(_MOST_VIEWS):
        if isinstance(dataset, SeededOrder):
            return dataset
        dataset = getattr(dataset, "dataset", None)
    return None

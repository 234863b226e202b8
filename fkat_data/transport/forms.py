"""What a process remembers of the forms of microbatches, within bounds."""

from typing import Any

__all__ = ["RememberedForms"]

# Of all forms together, some 300 bytes each. A bound on the forms alone would not do where each has a thousand tensors.
_MOST_LEAVES = 1 << 16


class RememberedForms(dict[Any, Any]):
    """What is known of forms, until they have too many leaves together."""

    def __init__(self) -> None:
        super().__init__()
        self._num_leaves = 0

    def remember(self, key: Any, known: Any, num_leaves: int) -> None:
        """Keep what is known of a form; forget all others where they have too many leaves."""
        self._num_leaves += 1 + num_leaves
        if self._num_leaves > _MOST_LEAVES:
            self.clear()
            self._num_leaves = 1 + num_leaves
        self[key] = known

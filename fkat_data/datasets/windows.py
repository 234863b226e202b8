"""Cut an epoch's order into windows that every rank plans independently and in the same way, for any number of ranks."""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.arguments import boolean, integer, saved_integer
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.permutation import drawn_seed, permutation


class Windows:
    """An epoch's order of some items, in windows of at least ``window_size`` and less than twice that.

    Args:
        items: Indices of a dataset.
        window_size: Minimum number of items in a window, at least ``world_size``. Fewer items form one window.
        rank: Index of this rank, from 0 to ``world_size - 1``.
        world_size: Number of ranks.
        shuffle: Whether to shuffle the items in each epoch.
        seed: Any integer. None, for one rank only: draw one from torch's global CPU generator.

    Raises:
        ConfigurationError: An argument is invalid, or there are fewer items than ranks.
    """

    def __init__(
        self,
        items: npt.NDArray[np.int64],
        window_size: int,
        *,
        rank: int,
        world_size: int,
        shuffle: bool,
        seed: int | None,
    ) -> None:
        self.window_size: int = integer("window_size", window_size, minimum=1)
        self.shuffle: bool = boolean("shuffle", shuffle)
        self.is_seed_given: bool = seed is not None
        self._items = items
        self._check_ranks(world_size)
        self.world_size: int = int(world_size)
        self.rank: int = integer("rank", rank, minimum=0, maximum=self.world_size - 1)
        if seed is None and self.shuffle and world_size > 1:
            # Each rank would draw a different seed, and compute a different plan.
            raise ConfigurationError("seed", seed, f"an integer, the same on all {world_size} ranks")
        self.seed: int = drawn_seed() if seed is None else integer("seed", seed)
        self.num_windows: int = max(1, len(items) // self.window_size)
        self._last: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None

    def for_rank(self, dp_size: int, dp_rank: int) -> "Windows":
        """Return these windows for rank ``dp_rank`` of ``dp_size``.

        Raises:
            ConfigurationError: The rank does not exist, or there are fewer items than ranks.
        """
        self._check_ranks(dp_size)
        other = copy.copy(self)
        other.world_size, other.rank = int(dp_size), integer("dp_rank", dp_rank, minimum=0, maximum=dp_size - 1)
        return other

    def saved_seed(self, seed: object) -> int:
        """Return the seed of a state.

        Raises:
            StateMismatchError: It is none, or the caller has given another one.
        """
        saved = saved_integer("seed", seed)
        if self.is_seed_given and saved != self.seed:
            raise StateMismatchError("seed", saved, self.seed, "pass seed=None to use the saved seed")
        return saved

    def _check_ranks(self, world_size: int) -> None:
        integer("window_size", self.window_size, minimum=integer("world_size", world_size, minimum=1))
        if len(self._items) < world_size:
            raise ConfigurationError("world_size", world_size, f"at most {len(self._items)}, the number of items")

    def items(self, epoch: int, window: int) -> npt.NDArray[np.int64]:
        """Return the items of a window, in the epoch's order."""
        name = (self.seed, epoch)
        if self._last is None or self._last[0] != name:
            order = self._items
            if self.shuffle:
                order = order[permutation(len(order), b"fkat_data window", self.seed, epoch)]
            self._last = (name, order)
        start, stop = (edge * len(self._items) // self.num_windows for edge in (window, window + 1))
        return self._last[1][start:stop]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

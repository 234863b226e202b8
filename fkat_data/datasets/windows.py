"""Cut an epoch's order into windows that every rank plans independently and in the same way."""

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.arguments import boolean, integer
from fkat_data.errors import ConfigurationError
from fkat_data.permutation import drawn_seed, permutation

__all__ = ["Windows", "in_steps", "whole_steps"]


class Windows:
    """An epoch's order of some items, in windows of at least ``window_size`` and less than twice that.

    Args:
        items: Indices of a dataset.
        window_size: Minimum number of items in a window, at least ``world_size``. Fewer items form one window.
        world_size: Number of ranks.
        shuffle: Whether to shuffle the items in each epoch.
        seed: Any integer. None, for one rank only: draw one from torch's global CPU generator.

    Raises:
        ConfigurationError: An argument is invalid, or there are fewer items than ranks.
    """

    def __init__(
        self, items: npt.NDArray[np.int64], window_size: int, world_size: int, *, shuffle: bool, seed: int | None
    ) -> None:
        self.world_size: int = integer("world_size", world_size, minimum=1)
        self.window_size: int = integer("window_size", window_size, minimum=self.world_size)
        self.shuffle: bool = boolean("shuffle", shuffle)
        self.is_seed_given: bool = seed is not None
        if seed is None and self.shuffle and self.world_size > 1:
            # Each rank would draw a different seed, and compute a different plan.
            raise ConfigurationError("seed", seed, f"an integer, the same on all {self.world_size} ranks")
        self.seed: int = drawn_seed() if seed is None else integer("seed", seed)
        if len(items) < self.world_size:
            raise ConfigurationError("world_size", world_size, f"at most {len(items)}, the number of items")
        self.num_windows: int = max(1, len(items) // self.window_size)
        self._items = items
        self._last: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None

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


def whole_steps(groups: list[list[int]], world_size: int) -> list[list[int]]:
    """Halve the fullest groups until the number of groups is a multiple of the ranks.

    If there are too few members for that, up to ``world_size - 1`` groups at the end are dropped instead. Nearly every
    group then has one member.

    Args:
        groups: Groups with at least one member each, and at least ``world_size`` members together.
        world_size: Number of ranks.
    """
    missing = -len(groups) % world_size
    if sum(map(len, groups)) < len(groups) + missing:
        return groups[: len(groups) - len(groups) % world_size]
    # Halves stay side by side, so that groups sorted by length stay sorted.
    parts = [[group] for group in groups]
    fullest = [(-len(group), group_index, 0) for group_index, group in enumerate(groups)]
    heapq.heapify(fullest)
    for _ in range(missing):
        _, group_index, part = heapq.heappop(fullest)
        group = parts[group_index][part]
        half = len(group) // 2
        parts[group_index][part] = group[:half]
        parts[group_index].append(group[half:])
        for index in (part, len(parts[group_index]) - 1):
            heapq.heappush(fullest, (-len(parts[group_index][index]), group_index, index))
    return [group for halves in parts for group in halves]


def in_steps(
    groups: list[list[int]], world_size: int, rank: int, order: npt.NDArray[np.int64] | None
) -> list[list[int]]:
    """Return one rank's groups: one from each step of ``world_size`` neighbouring groups.

    Args:
        groups: Groups, in a multiple of ``world_size``.
        world_size: Number of ranks.
        rank: Index of the rank.
        order: Order of the steps; None: keep it.
    """
    steps = range(len(groups) // world_size) if order is None else order.tolist()
    # Ranks take turns, so that the longest group of each step goes to a different one.
    return [groups[step * world_size + (rank + step) % world_size] for step in steps]

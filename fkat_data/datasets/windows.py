"""An epoch's order cut into windows, in which work is planned: each window on its own, alike on every rank."""

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from fkat_data.arguments import boolean, integer
from fkat_data.errors import ConfigurationError
from fkat_data.permutation import drawn_seed, permutation

__all__ = ["Windows", "in_steps", "whole_steps"]


class Windows:
    """An epoch's order of some items, in windows of at least ``window_size`` and fewer than twice as many.

    Args:
        items: What is put in order: indices of a dataset.
        window_size: Items of a window; with fewer items in all, there is one window.
        world_size: Number of ranks; a window has an item for each at least.
        shuffle: Whether each epoch has an order of its own.
        seed: Any integer; None, on one rank: one is drawn from torch's global CPU generator.

    Raises:
        ConfigurationError: An argument is none of these, or there are fewer items than ranks.
    """

    def __init__(
        self, items: npt.NDArray[np.int64], window_size: int, world_size: int, *, shuffle: bool, seed: int | None
    ) -> None:
        self.world_size = integer("world_size", world_size, minimum=1)
        self.window_size = integer("window_size", window_size, minimum=self.world_size)
        self.shuffle = boolean("shuffle", shuffle)
        self.is_seed_given = seed is not None
        if seed is None and self.shuffle and self.world_size > 1:
            # Each rank would draw one of its own, and have another plan than the others.
            raise ConfigurationError("seed", seed, "an integer, the same on every rank, as there are several")
        self.seed = drawn_seed() if seed is None else integer("seed", seed)
        if len(items) < self.world_size:
            raise ConfigurationError(
                "world_size", world_size, f"at most as many ranks as there are items: {len(items)}"
            )
        self.num_windows = max(1, len(items) // self.window_size)
        self._items = items
        self._last: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None

    def items(self, epoch: int, window: int) -> npt.NDArray[np.int64]:
        """Return the items of a window in the epoch's order."""
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
    """Return the groups, with as many of them halved, the fullest first, as make their number a multiple of the ranks.

    Where the members are too few for that, up to ``world_size - 1`` groups are left out at the end instead; this can
    only be where nearly every group has one member.

    Args:
        groups: No group is empty; together they have at least ``world_size`` members.
        world_size: Number of ranks.
    """
    missing = -len(groups) % world_size
    if sum(map(len, groups)) < len(groups) + missing:
        return groups[: len(groups) - len(groups) % world_size]
    # Halves stay side by side, so that groups in order of length stay in that order.
    parts = [[group] for group in groups]
    fullest = [(-len(group), place, 0) for place, group in enumerate(groups)]
    heapq.heapify(fullest)
    for _ in range(missing):
        _, place, part = heapq.heappop(fullest)
        group = parts[place][part]
        half = len(group) // 2
        parts[place][part] = group[:half]
        parts[place].append(group[half:])
        for index in (part, len(parts[place]) - 1):
            heapq.heappush(fullest, (-len(parts[place][index]), place, index))
    return [group for halves in parts for group in halves]


def in_steps(
    groups: list[list[int]], world_size: int, rank: int, order: npt.NDArray[np.int64] | None
) -> list[list[int]]:
    """Return a rank's groups: one out of each step, which is ``world_size`` groups side by side.

    Args:
        groups: A multiple of ``world_size``.
        world_size: Number of ranks.
        rank: The rank.
        order: The order of the steps; None: as they are.
    """
    steps = range(len(groups) // world_size) if order is None else order.tolist()
    # In turn, so that not the same rank has the longest of each step.
    return [groups[step * world_size + (rank + step) % world_size] for step in steps]

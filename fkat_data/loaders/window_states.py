"""How an epoch's windows are dealt out to ranks, and again where the number of ranks changes."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fkat_data.errors import StateMismatchError
from fkat_data.loaders.loader_state import LoaderState
from fkat_data.loaders.rank_share import RankShare
from fkat_data.plan.resharding import Remainder

_Integers = npt.NDArray[np.int64]


class Spread(NamedTuple):
    """Parts of an epoch's order that windows lie within, each of which one node reads: a stream's canonical nodes.

    Windows are numbered across the parts in turn, whatever the number of nodes.

    Attributes:
        sizes: Samples of each phase of the epoch.
        num_parts: Parts of each phase, as equal as they can be.
        num_nodes: Nodes of the ranks that began the epoch.
        ranks_per_node: Ranks of each.
    """

    sizes: tuple[int, ...]
    num_parts: int
    num_nodes: int
    ranks_per_node: int

    @classmethod
    def saved(cls, fields: Sequence[Any]) -> "Spread":
        """Return what a state keeps as ``plain()``."""
        sizes, *numbers = fields
        return cls(tuple(map(int, sizes)), *map(int, numbers))

    def plain(self) -> tuple[Any, ...]:
        """Return this as a state keeps it: as one value, which torch.distributed.checkpoint saves whole."""
        return tuple(self)

    def windows(self, window_size: int) -> tuple[_Integers, _Integers]:
        """Return where each window begins and ends in the order of the whole epoch, by its number: int64."""
        return _windows(self, window_size)[:2]

    def dealt(self, window_size: int) -> _Integers:
        """Return the windows' numbers in the order in which they are dealt to the ranks in turn: int64.

        Each node gets those of its own parts; what one has more of than the others fills up the end.
        """
        parts = _windows(self, window_size)[2]
        if self.num_nodes == 1 or self.num_parts % self.num_nodes:
            return np.arange(len(parts))
        slots = np.arange(len(parts)) % (self.num_nodes * self.ranks_per_node) // self.ranks_per_node
        nodes = parts % self.num_nodes
        found = np.full(len(parts), -1, np.int64)
        for node in range(self.num_nodes):
            own_slots, own = np.flatnonzero(slots == node), np.flatnonzero(nodes == node)
            count = min(len(own_slots), len(own))
            found[own_slots[:count]] = own[:count]
        found[found < 0] = np.setdiff1d(np.arange(len(parts)), found)
        return found


@lru_cache(maxsize=2)
def _windows(spread: Spread, window_size: int) -> tuple[_Integers, _Integers, _Integers]:
    """Return each window's begin, end and part."""
    found: list[_Integers] = []
    before = 0
    for size in spread.sizes:
        bounds = np.array([size * part // spread.num_parts for part in range(spread.num_parts + 1)], np.int64)
        counts = -(-np.diff(bounds) // window_size)
        parts = np.repeat(np.arange(spread.num_parts), counts)
        rounds = np.arange(len(parts)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = bounds[parts] + rounds * window_size
        stops = np.minimum(starts + window_size, bounds[parts + 1])
        found.append(np.stack([before + starts, before + stops, parts])[:, np.lexsort((parts, rounds))])
        before += size
    starts, stops, parts = np.concatenate(found, axis=1)
    return starts, stops, parts


class WindowPosition(NamedTuple):
    """The first row that was not delivered.

    Attributes:
        window: The window, among those of this rank.
        row: The row of it.
        left_out: Offsets of the samples that were left out of that window, if rows of it were delivered.
    """

    window: int
    row: int
    left_out: tuple[int, ...] = ()


class BegunWindow(NamedTuple):
    """A window that a rank has begun.

    Attributes:
        number: The window's, in the whole epoch.
        row: The first row of it that was not delivered.
        left_out: As of a ``WindowPosition``.
    """

    number: int
    row: int
    left_out: tuple[int, ...] = ()

    def plain(self) -> list[Any]:
        """Return this as a state keeps it."""
        return [self.number, self.row, list(self.left_out)] if self.left_out else [self.number, self.row]


class DealtWindows:
    """The windows of an epoch, as ranks get them.

    Args:
        num_windows: Windows of the whole epoch.
        share: The ranks, and which of them this one is; None: there is one.
        begun: Windows that ranks before had begun when their number changed, in order.
        reshards: How many other windows each rank had by then, at each change.
        numbers: The windows in the order in which they are dealt out; None: in that of their numbers.
    """

    def __init__(
        self,
        num_windows: int,
        share: RankShare | None,
        begun: Sequence[BegunWindow] = (),
        reshards: Sequence[Sequence[int]] = (),
        numbers: _Integers | None = None,
    ) -> None:
        self._numbers = numbers
        self._num_ranks, self._rank = (1, 0) if share is None else (share.num_ranks, share.rank)
        self._left = Remainder(num_windows)
        for counts in reshards:
            self._left = self._left.after(1, counts)
        self._begun = [*begun[self._rank :: self._num_ranks]]

    def __len__(self) -> int:
        return len(self._begun) + len(range(self._rank, len(self._left), self._num_ranks))

    def __getitem__(self, index: int) -> BegunWindow:
        """Return this rank's window at an index; one that no rank has begun has row 0."""
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        if index < len(self._begun):
            return self._begun[index]
        number = (index - len(self._begun)) * self._num_ranks + self._rank
        number = self._left.runs(number, number + 1)[0][0]
        return BegunWindow(number if self._numbers is None else int(self._numbers[number]), 0)

    def left_at(self, position: WindowPosition) -> tuple[list[BegunWindow], int]:
        """Return the begun windows that this rank has left at a position, and how many of the others it has had."""
        begun = self._begun[position.window :]
        num_had = max(0, position.window - len(self._begun))
        if position.row and position.window < len(self):
            window = BegunWindow(self[position.window].number, position.row, position.left_out)
            if begun:
                begun[0] = window
            else:
                begun, num_had = [window], num_had + 1
        return begun, num_had


def dealt_windows(saved: Mapping[str, Any], window_size: int, share: RankShare | None) -> DealtWindows:
    """Return the windows of a rank.

    Args:
        saved: What a state says of an epoch, in the field ``sampler``.
        window_size: Samples of a window.
        share: As for ``DealtWindows``.
    """
    begun = [BegunWindow(int(number), int(row), *map(tuple, rest)) for number, row, *rest in saved.get("begun", ())]
    num_windows, numbers = -(-saved["num_samples"] // window_size), None
    if "spread" in saved:
        numbers = Spread.saved(saved["spread"]).dealt(window_size)
        num_windows = len(numbers)
    return DealtWindows(num_windows, share, begun, saved.get("layers", ()), numbers)


def windows_of(state: LoaderState, rank: int, num_ranks: int | None = None) -> DealtWindows:
    """Return the windows of a rank in the epoch of a state; ``num_ranks``: if not those of the state."""
    share = RankShare(state.num_ranks if num_ranks is None else num_ranks, rank)
    return dealt_windows(state.sampler, state.fingerprint["window_size"], share)


def windows_of_rest(of_ranks: Sequence[LoaderState], epoch: int) -> dict[str, Any]:
    """Return the field ``sampler`` of a state in which other ranks go on with what these have left of an epoch.

    Args:
        of_ranks: The state of each rank, in order.
        epoch: The epoch; ranks that are at the beginning of the next one have had theirs.

    Raises:
        StateMismatchError: A rank has had something of the next epoch.
    """
    base = next(state for state in of_ranks if state.epoch == epoch)
    ahead = [state for state in of_ranks if state.epoch != epoch]
    if any(state.epoch != epoch + 1 or state.step for state in ahead):
        found = [(state.epoch, state.step) for state in of_ranks]
        hint = "finish the epoch with the number of ranks that saved"
        raise StateMismatchError("epoch", found, "<ranks in one epoch>", hint)
    sampler = base.sampler
    begun: list[BegunWindow] = []
    counts: list[int] = []
    for rank, state in enumerate(of_ranks):
        windows = windows_of(base, rank, len(of_ranks))
        position = window_position_in(state.sampler) if state.epoch == epoch else WindowPosition(len(windows), 0)
        left, num_had = windows.left_at(position)
        begun += left
        counts.append(num_had)
    of_position = ("window", "row", "left_out", "begun", "layers")
    rest = {name: value for name, value in sampler.items() if name not in of_position}
    if "window_orders" in rest:
        orders = (each.sampler["window_orders"] for each in of_ranks if each.epoch == epoch)
        rest["window_orders"] = sorted({tuple(order) for each in orders for order in each})
    if "num_skipped" in rest:
        in_epoch = (state.sampler["num_skipped"] for state in of_ranks if state.epoch == epoch)
        rest |= {"num_skipped": 0, "skipped_before": rest.get("skipped_before", 0) + sum(in_epoch)}
    reshards = [*map(list, sampler.get("layers", ())), counts]
    return {**rest, "window": 0, "row": 0, "begun": [each.plain() for each in sorted(begun)], "layers": reshards}


def windows_at_start(sampler: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field ``sampler`` of a state at the start of its epoch, or of what other ranks had left of it."""
    start = {name: value for name, value in sampler.items() if name != "left_out"} | {"window": 0, "row": 0}
    if "window_orders" in start:
        start["window_orders"] = []
    return {**start, "num_skipped": 0} if "num_skipped" in start else start


def window_position_in(saved: Mapping[str, Any]) -> WindowPosition:
    """Return the position that a state says, in the field ``sampler``."""
    return WindowPosition(saved["window"], saved["row"], tuple(saved.get("left_out", ())))

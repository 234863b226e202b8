"""How an epoch's windows are dealt out to ranks, and again where the number of ranks changes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fkat_data.drop_in.layers_of_ranks import LeftOver, in_the_first
from fkat_data.drop_in.rank_share import RankShare
from fkat_data.errors import StateMismatchError


class WindowPlace(NamedTuple):
    """The first row that was not delivered.

    Attributes:
        window: The window, among those of this rank.
        row: The row of it.
    """

    window: int
    row: int


class DealtWindows:
    """The windows of an epoch, as ranks get them.

    Args:
        num_windows: Windows of the whole epoch.
        share: The ranks, and which of them this one is; None: there is one.
        begun: Windows that ranks before had begun when their number changed, each with its first row, in order.
        layers: How many other windows each rank had by then, at each change.
    """

    def __init__(
        self,
        num_windows: int,
        share: RankShare | None,
        begun: Sequence[tuple[int, int]] = (),
        layers: Sequence[Sequence[int]] = (),
    ) -> None:
        self._num_ranks, self._rank = (1, 0) if share is None else (share.num_ranks, share.rank)
        self._rests: list[LeftOver] = []
        for counts in layers:
            self._rests.append(LeftOver(num_windows, 1, counts))
            num_windows = len(self._rests[-1])
        self._num_left = num_windows
        self._begun = [*begun[self._rank :: self._num_ranks]]

    def __len__(self) -> int:
        return len(self._begun) + len(range(self._rank, self._num_left, self._num_ranks))

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the number of this rank's window at an index, in the whole epoch, and its first row."""
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        if index < len(self._begun):
            return self._begun[index]
        place = (index - len(self._begun)) * self._num_ranks + self._rank
        return in_the_first(self._rests, place, place + 1)[0][0], 0

    def left_at(self, place: WindowPlace) -> tuple[list[tuple[int, int]], int]:
        """Return the begun windows that this rank has left at a place, and how many of the others it has had."""
        begun = self._begun[place.window :]
        num_had = max(0, place.window - len(self._begun))
        if place.row and place.window < len(self):
            number, _ = self[place.window]
            if begun:
                begun[0] = number, place.row
            else:
                begun, num_had = [(number, place.row)], num_had + 1
        return begun, num_had


def dealt_windows(split: Mapping[str, Any], num_windows: int, share: RankShare | None) -> DealtWindows:
    """Return the windows of a rank.

    Args:
        split: What a state says of ranks before: ``begun`` and ``layers``.
        num_windows: Windows of the whole epoch.
        share: As for ``DealtWindows``.
    """
    begun = [(int(number), int(row)) for number, row in split.get("begun", ())]
    return DealtWindows(num_windows, share, begun, split.get("layers", ()))


def is_of_windows(state: Mapping[str, Any]) -> bool:
    """Return whether a state is of a loader with a window function."""
    return "window" in state.get("sampler", {})


def windows_of(state: Mapping[str, Any], rank: int) -> DealtWindows:
    """Return the windows of a rank in the epoch of a state."""
    share = RankShare(state.get("num_ranks", 1), rank)
    num_windows = -(-state["sampler"]["num_samples"] // state["window_size"])
    return dealt_windows(state["sampler"], num_windows, share)


def windows_of_rest(of_ranks: Sequence[Mapping[str, Any]], epoch: int) -> dict[str, Any]:
    """Return the field ``sampler`` of a state in which other ranks go on with what these have left of an epoch.

    Args:
        of_ranks: The state of each rank, in order.
        epoch: The epoch; ranks that are at the beginning of the next one have had theirs.

    Raises:
        StateMismatchError: A rank has had something of the next epoch.
    """
    base = next(state for state in of_ranks if state["epoch"] == epoch)
    ahead = [state for state in of_ranks if state["epoch"] != epoch]
    if any(state["epoch"] != epoch + 1 or state["step"] for state in ahead):
        found = [(state["epoch"], state["step"]) for state in of_ranks]
        hint = "finish the epoch with the number of ranks that saved"
        raise StateMismatchError("epoch", found, "<ranks in one epoch>", hint)
    sampler: Mapping[str, Any] = base["sampler"]
    begun: list[tuple[int, int]] = []
    counts: list[int] = []
    for rank, state in enumerate(of_ranks):
        windows = windows_of({**base, "num_ranks": len(of_ranks)}, rank)
        own = state["sampler"]
        place = WindowPlace(own["window"], own["row"]) if state["epoch"] == epoch else WindowPlace(len(windows), 0)
        left, num_had = windows.left_at(place)
        begun += left
        counts.append(num_had)
    rest = {name: value for name, value in sampler.items() if name not in ("window", "row", "begun", "layers")}
    layers = [*map(list, sampler.get("layers", ())), counts]
    return {**rest, "window": 0, "row": 0, "begun": [list(each) for each in sorted(begun)], "layers": layers}

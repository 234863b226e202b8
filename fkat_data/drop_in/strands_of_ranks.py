"""Strands of an iterable dataset that any number of ranks takes over, each strand whole.

A dataset allows it by ``counts_workers_of_all_ranks = True``: it takes its part from ``get_worker_info()`` alone, and the
loader counts the workers of all ranks there. A strand is then the same on any rank.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from fkat_data.errors import StateMismatchError

_UNGATHERED = (
    "the state of one rank has its own strands alone. Save what state_dict() returns on every rank after deal_out(), where "
    "torch.distributed is initialised, or what merge_state_dicts() makes of each rank's local_state_dict()"
)


class StrandRanks(NamedTuple):
    """The ranks that have strands, and which of them this one is."""

    num_ranks: int = 1
    rank: int = 0

    def numbers(self, num_strands: int) -> list[int]:
        """Return this rank's strands of those of all ranks."""
        first, end = (place * num_strands // self.num_ranks for place in (self.rank, self.rank + 1))
        return [*range(first, end)]


def counts_all_ranks(dataset: object) -> bool:
    """Return whether a dataset takes its part from ``get_worker_info()`` alone, as one of the workers of all ranks."""
    return getattr(dataset, "counts_workers_of_all_ranks", False) is True


def own_strands(states: Sequence[Mapping[str, Any]], ranks: StrandRanks) -> dict[str, Any]:
    """Return where a rank goes on: at its own place, or with its strands of those of other ranks.

    Args:
        states: A state, or those of all ranks.
        ranks: The present ones.

    Raises:
        StateMismatchError: They do not have all strands, or there are more ranks than strands; or they were saved before
            the dataset counted the workers of all ranks.
    """
    if len(states) == 1 and "strand_numbers" not in states[0] and ranks.num_ranks == 1:
        numbers = [*range(max(1, states[0]["num_strands"]))]
        return {**states[0], "strand_numbers": numbers, "strand_ranks": [1, 0], "all_strands": len(numbers)}
    if not all("strand_numbers" in state for state in states):
        hint = "the state was saved before the dataset had counts_workers_of_all_ranks: finish the epoch without it"
        raise StateMismatchError("strand_numbers", "<missing>", "<this rank's strands>", hint)
    for state in states:
        if [*state["strand_ranks"]] == [*ranks]:
            return dict(state)
    return _taken_over(states, ranks)


def _taken_over(states: Sequence[Mapping[str, Any]], ranks: StrandRanks) -> dict[str, Any]:
    num_strands = cast("int", states[0]["all_strands"])
    strands: dict[int, Mapping[str, Any]] = {}
    for state in states:
        strands |= zip(state["strand_numbers"], state["strands"], strict=True)
    if set(strands) != set(range(num_strands)):
        found = f"<{len(strands)} of {num_strands} strands>"
        raise StateMismatchError("strand_numbers", found, f"<all {num_strands} strands>", _UNGATHERED)
    if num_strands < ranks.num_ranks:
        hint = "a strand is not divided: go on with fewer ranks, or begin again with more workers"
        raise StateMismatchError("all_strands", num_strands, f"<one for each of {ranks.num_ranks} ranks>", hint)
    numbers = ranks.numbers(num_strands)
    own = [dict(strands[number]) for number in numbers]
    epoch = min(strand["epoch"] for strand in own)
    if max(strand["epoch"] for strand in own) > epoch + 1:
        epochs = [strand["epoch"] for strand in own]
        raise StateMismatchError(
            "epoch", epochs, "<two epochs at most>", "ranks that are that far apart share no epoch"
        )
    for strand in own:
        if strand["epoch"] > epoch and strand["step"]:
            strand["delivered"] = 0  # it was that of the epoch ahead
    had = [strand["step"] if strand["epoch"] == epoch else strand.get("delivered", 0) for strand in own]
    ahead = [strand["step"] if strand["epoch"] > epoch else 0 for strand in own]
    return {
        **states[0],
        "epoch": epoch,
        "step": sum(had),
        "num_strands": len(own),
        "strands": own,
        "strand_numbers": numbers,
        "strand_ranks": [*ranks],
        "taken_over": [{"epoch": epoch, "counts": had}, {"epoch": epoch + 1, "counts": ahead}],
    }

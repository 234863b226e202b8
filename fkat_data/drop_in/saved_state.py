"""The saved form of a DataLoader's position, and the checks before it is loaded.

::

    {
        "version": 2,
        "seed": 67280421310721,
        "epoch": 2,                    # from 0
        "step": 13,                    # microbatches delivered in the epoch
        "batch_size": 32,              # None: no batches of one size
        "drop_last": False,
        "sampler": {...},              # map-style datasets: what the order of the epoch depends on
        "dataset": {...},              # of a dataset that drew the seed of its order
        "dataset_ranks": 2,            # of a dataset that is dealt out to ranks: their number
        "dealt_ranks": 2,              # of a dataset or a batch sampler that deals out what is left, too: their number
        "dealt_rank": 0,               # and which of them it is
        "files": [3421780262],         # of a dataset of files: a number for each that differs where the file does
        "num_ranks": 2,                # of a loader that is dealt out: this and how, "even_batches" and "split_batches"
        "resplits": [...],             # where the number of ranks has changed in the epoch: ``fkat_data.drop_in.layers_of_ranks``
        "gathered": True,              # of all ranks, which were in step
        "num_strands": 4,              # iterable datasets: their strands, with "epoch", "step", "snapshot", and "delivered":
                                       # how many of the loader's epoch, which the strand may have ended; "begun": the
        "strands": [...],              # snapshot with which the epoch began, of a dataset that stays where it was left
        "strand_numbers": [2, 3],      # of strands that the workers of all ranks have: this rank's,
        "strand_ranks": [2, 1],        # the number of ranks and this one, and the number of all strands; what other ranks had
        "all_strands": 4,              # of this rank's when it took them over is "taken_over": [{"epoch": 2, "counts": [5, 4]}]
        "stream": {...},               # streaming datasets, instead: the dataset's own state, which says all of the place
        "dataset_order": {...},        # of a dataset of the library "datasets": its epoch, and a digest of its generators
    }

Ranks that are not in step, or have samplers or datasets of their own, have
``{"version": 2, "all_rank_states": [...]}``, a state for each.

Plain values, if the states of the user's own samplers and datasets are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from fkat_data.arguments import STATE_VERSION, saved_integer, saved_version
from fkat_data.drop_in.checked_order import without_order
from fkat_data.drop_in.layers_of_ranks import first_step, layers_in
from fkat_data.errors import StateMismatchError

_KINDS = {
    "sampler": "<of a dataset with indices>",
    "strands": "<of an iterable dataset>",
    "stream": "<of a streaming dataset>",
}
_NOT_A_STATE = "this is not a state of a fkat_data.DataLoader"


def state_at_epoch(
    state: Mapping[str, Any], epoch: int, snapshots: Sequence[dict[str, Any] | None] | None = None
) -> dict[str, Any]:
    """Return the state of the same loader at an epoch's start, for an order that depends on nothing but the epoch.

    Where other ranks had begun the epoch, that is where this one began with what they had left.

    Args:
        state: The state.
        epoch: The epoch.
        snapshots: For an iterable dataset, its state at that start, for each strand; None: it begins as it is.
    """
    step = first_step(layers_in(state), epoch)
    begun = {**state, "epoch": epoch, "step": step}
    if "strands" in state:
        begun.pop("taken_over", None)
        snapshots = snapshots or [None] * len(state["strands"])
        strand = {"epoch": epoch, "step": 0, "delivered": 0}
        return {**begun, "strands": [{**strand, "snapshot": snapshot} for snapshot in snapshots]}
    if "num_samples" in state["sampler"]:
        return begun
    order: dict[str, Any] = {"step": step, "orders": []} if step else {"step": 0, "order": 0}
    return {**begun, "sampler": {**without_order(state["sampler"]), **order}}


def checked_loader_state(state_dict: object, present: Mapping[str, Any], seed: int | None, kind: str) -> dict[str, Any]:
    """Return a saved state, after a look at each field.

    Args:
        state_dict: The state.
        present: What the loader that is to load it has in the fields that must be the same.
        seed: The seed that the user has given to the loader; None: none.
        kind: The field that its plan has in a state: ``"sampler"``, ``"strands"`` or ``"stream"``.

    Raises:
        StateMismatchError: It is no such state, or one of another loader; the error names the first field.
    """
    if not isinstance(state_dict, Mapping):
        raise StateMismatchError("state_dict", type(state_dict).__name__, "<a mapping>", _NOT_A_STATE)
    state = dict(cast("Mapping[str, Any]", state_dict))
    saved_version(state, STATE_VERSION)
    for field in ("seed", "epoch", "step"):
        _check_count(state, field)
    if seed is not None and state["seed"] != seed:
        raise StateMismatchError("seed", state["seed"], seed, "pass the loader the seed that the state was saved with")
    saved = next((field for field in _KINDS if field in state), None)
    if saved is None:
        raise StateMismatchError("sampler", "<missing>", "<a state>", _NOT_A_STATE)
    if saved == "strands":
        _check_strands(state)
    if saved != kind:
        hint = "the state was saved with another kind of dataset"
        field = "stream" if "stream" in (saved, kind) else "strands"
        raise StateMismatchError(field, _KINDS[saved], _KINDS[kind], hint)
    for field, value in present.items():
        if state.get(field, "<missing>") != value:
            hint = "the state was saved with another argument"
            raise StateMismatchError(field, state.get(field, "<missing>"), value, hint)
    return state


def check_order(state: Mapping[str, Any] | None, present: Mapping[str, Any] | None) -> None:
    """Return if a dataset's order is the one of the epoch that a loaded state goes on with.

    Args:
        state: The state; None: none was loaded.
        present: What the order depends on; None: nothing that can be compared.

    Raises:
        StateMismatchError: It is another order.
    """
    saved = None if state is None or not state["step"] else state.get("dataset_order")
    if saved is None or present is None or saved == present:
        return
    field = next(name for name in ("epoch", "shuffle") if saved.get(name) != present[name])
    hint = "pass shuffle() of the dataset the seed that the run that saved had: without one, each process has its own"
    if field == "epoch":
        hint = f"call dataset.set_epoch({saved.get(field)}) before the resumed epoch, as the run that saved had"
    raise StateMismatchError(f"dataset_order.{field}", saved.get(field), present[field], hint)


def _check_strands(state: Mapping[str, Any]) -> None:
    _check_count(state, "num_strands")
    strands: Any = state["strands"]
    num_strands = max(1, state["num_strands"])
    if not isinstance(strands, list) or len(cast("list[Any]", strands)) != num_strands:
        raise StateMismatchError("strands", cast("object", strands), f"<{num_strands} strands>", _NOT_A_STATE)
    for strand in cast("list[Mapping[str, Any]]", strands):
        for field in ("epoch", "step"):
            _check_count(strand, field)


def _check_count(state: Mapping[str, Any], field: str) -> None:
    minimum = None if field == "seed" else 0
    saved_integer(field, state.get(field, "<missing>"), minimum=minimum, hint=_NOT_A_STATE)

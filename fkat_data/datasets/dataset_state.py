"""Shared checks of dataset states: plain values, a version, and fields that must match."""

from collections.abc import Mapping
from typing import Any, cast

from fkat_data.errors import StateMismatchError
from fkat_data.types import Stateful

_BASE = "base_dataset"


def checked_state(state_dict: object, present: Mapping[str, Any], *free: str) -> Mapping[str, Any]:
    """Return a saved state after checking that its fields match the current ones.

    Args:
        state_dict: The saved state.
        present: What ``state_dict()`` returns now.
        free: Fields whose values may differ, because loading the state sets them.

    Raises:
        StateMismatchError: The state is not a mapping, or a field is missing or differs.
    """
    if not isinstance(state_dict, Mapping):
        raise StateMismatchError("state_dict", state_dict, present, "pass what state_dict() returned")
    state = cast("Mapping[str, Any]", state_dict)
    for field, value in present.items():
        if field == _BASE:
            continue
        if field not in state:
            raise StateMismatchError(field, "<missing>", value, "the state belongs to another kind of object")
        if field not in free and (type(state[field]) is not type(value) or state[field] != value):
            version_hint = "another version of fkat_data wrote the state"
            hint = version_hint if field == "version" else "the state was saved with other arguments or data"
            raise StateMismatchError(field, state[field], value, hint)
    if (_BASE in state) != (_BASE in present):
        saved, expected = ("<a state>" if _BASE in where else "<none>" for where in (state, present))
        raise StateMismatchError(_BASE, saved, expected, "the state was saved with another base dataset")
    return state


def is_foreign(state_dict: object, field: str) -> bool:
    """Return whether a state has a field of another system's states, and not the version that every state here has."""
    return isinstance(state_dict, Mapping) and field in state_dict and "version" not in state_dict


def base_state(dataset: object) -> dict[str, Any]:
    """Return the state field of a base dataset, or no field if the dataset has no state."""
    return {_BASE: dataset.state_dict()} if isinstance(dataset, Stateful) else {}


def load_base_state(dataset: object, state: Mapping[str, Any]) -> None:
    """Restore a base dataset from its field of a checked state."""
    if isinstance(dataset, Stateful):
        dataset.load_state_dict(state[_BASE])

"""What the states of the datasets have in common: plain values, a version, and fields that have to agree."""

from collections.abc import Mapping
from typing import Any, cast

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.types import Stateful

__all__ = ["checked_state", "load_state_below", "saved_integer", "state_below"]

_BELOW = "base_dataset"


def checked_state(state_dict: object, present: Mapping[str, Any], *free: str) -> Mapping[str, Any]:
    """Return a saved state that has every field of the present one, with the same values.

    Args:
        state_dict: What was saved.
        present: What ``state_dict()`` gives now.
        free: Fields whose values may differ: those that the state is there to set.

    Raises:
        StateMismatchError: It is no mapping, or a field is missing or differs.
    """
    if not isinstance(state_dict, Mapping):
        raise StateMismatchError("state_dict", state_dict, present, "it has to be what state_dict() gave")
    state = cast("Mapping[str, Any]", state_dict)
    for field, value in present.items():
        if field == _BELOW:
            continue
        if field not in state:
            raise StateMismatchError(field, "<missing>", value, "another kind of object wrote the state")
        if field not in free and (type(state[field]) is not type(value) or state[field] != value):
            hint = "another version of the library wrote it" if field == "version" else "it belongs to another set-up"
            raise StateMismatchError(field, state[field], value, hint)
    if (_BELOW in state) != (_BELOW in present):
        saved, found = ("<a state>" if _BELOW in where else "<none>" for where in (state, present))
        raise StateMismatchError(_BELOW, saved, found, "the dataset below keeps a state in one of the two only")
    return state


def saved_integer(state: Mapping[str, Any], field: str, present: int, *, minimum: int | None = None) -> int:
    """Return a field's saved value, an integer.

    Raises:
        StateMismatchError: It is no integer of at least ``minimum``.
    """
    try:
        return integer(field, state[field], minimum=minimum)
    except ConfigurationError as error:
        raise StateMismatchError(field, state[field], present, f"it has to be {error.expected}") from None


def state_below(dataset: object) -> dict[str, Any]:
    """Return the state of the dataset below as a part of one's own; nothing if it keeps none."""
    return {_BELOW: dataset.state_dict()} if isinstance(dataset, Stateful) else {}


def load_state_below(dataset: object, state: Mapping[str, Any]) -> None:
    """Set the dataset below to its part of a checked state."""
    if isinstance(dataset, Stateful):
        dataset.load_state_dict(state[_BELOW])

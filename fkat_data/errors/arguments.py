"""Validate arguments, sizes in words among them: each function returns the value, or raises an error that names it."""

import copy
import math
import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NoReturn, TypeGuard, TypeVar, cast

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.runtime.interruption import genuine

#: The version of every loader's saved state. 2: a DataLoader's says where the number of ranks has changed.
STATE_VERSION = 2

#: The field of a dataset's state that has the state of its base dataset.
BASE_FIELD = "base_dataset"

_Word = TypeVar("_Word", bound=str)


def integer(argument: str, value: object, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return ``value`` as an int from ``minimum`` to ``maximum``, both inclusive.

    Raises:
        ConfigurationError: ``value`` is not an integer, is a bool, or is out of range.
    """
    bounds = {
        (False, False): "an integer",
        (True, False): f"an integer of at least {minimum}",
        (False, True): f"an integer of at most {maximum}",
        (True, True): f"an integer from {minimum} to {maximum}",
    }[(minimum is not None, maximum is not None)]
    if isinstance(value, bool):
        raise ConfigurationError(argument, value, bounds)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises for anything but an integer: this is the check
    except genuine(TypeError):
        raise ConfigurationError(argument, value, bounds) from None
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        raise ConfigurationError(argument, value, bounds)
    return number


def refused(call: str, found: str, expected: str) -> Callable[..., NoReturn]:
    """Return a method that refuses a call which other loaders take.

    Args:
        call: The call.
        found: What this loader has, in words.
        expected: What to call instead.
    """

    def refuse(self: object, *arguments: object, **options: object) -> NoReturn:
        del self, arguments, options
        raise ConfigurationError(call, found, expected)

    refuse.__name__, refuse.__doc__ = call, f"Refuse the call, which needs {expected}."
    return refuse


def boolean(argument: str, value: object) -> bool:
    """Return ``value`` if it is True or False.

    Raises:
        ConfigurationError: ``value`` is neither. A string such as ``"false"`` would count as true.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(argument, value, "true or false")
    return value


def function(argument: str, value: object) -> Callable[..., Any]:
    """Return ``value`` if it is callable.

    Raises:
        ConfigurationError: ``value`` is not callable.
    """
    if not callable(value):
        raise ConfigurationError(
            argument, value, "a callable (in a Hydra config: a class or function with `_partial_: true`)"
        )
    return value


def choice(argument: str, value: object, options: Sequence[_Word]) -> _Word:
    """Return ``value`` if it is one of ``options``.

    Raises:
        ConfigurationError: ``value`` is not one of ``options``.
    """
    if not isinstance(value, str) or value not in options:
        raise ConfigurationError(argument, value, f"one of {', '.join(map(repr, options))}")
    return cast("_Word", value)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number of Python's or NumPy's: no bool, and no NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN is not


def positive(argument: str, value: object, expected: str = "a number greater than 0") -> float:
    """Return ``value`` as a float if it is a finite number greater than 0.

    Raises:
        ConfigurationError: ``value`` is not such a number.
    """
    if not is_number(value) or not 0 < value < math.inf:
        raise ConfigurationError(argument, value, expected)
    return float(value)


def seconds(argument: str, value: object) -> float:
    """Return ``value`` as a float if it is a finite number of seconds greater than 0.

    Raises:
        ConfigurationError: ``value`` is not such a number.
    """
    return positive(argument, value, "a number of seconds greater than 0")


def saved_integer(
    field: str, value: object, *, minimum: int | None = None, maximum: int | None = None, hint: str = ""
) -> int:
    """Return the value of a saved state's field as an int from ``minimum`` to ``maximum``, both inclusive.

    Raises:
        StateMismatchError: ``value`` is not such an integer; with the likely cause as its ``hint``.
    """
    try:
        return integer(field, value, minimum=minimum, maximum=maximum)
    except ConfigurationError as error:
        raise StateMismatchError(field, value, f"<{error.expected}>", hint) from None


def check_version(state: Mapping[str, Any], version: int, *, default: object = "<missing>") -> None:
    """Check that a saved state is of the version that this version of the library writes: no release has written another.

    Args:
        state: The state.
        version: That version.
        default: The version of a state that does not say it.

    Raises:
        StateMismatchError: It is another one, or none.
    """
    saved = state.get("version", default)
    if type(saved) is not int or saved != version:
        raise StateMismatchError("version", saved, version, version_hint(saved, version))


def version_hint(saved: object, version: int) -> str:
    """Return what to do with a state of another version."""
    if type(saved) is int and 0 < saved < version:
        return "a version of fkat_data from before the first release wrote the state: finish the run with that one"
    return "another version of fkat_data wrote the state"


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
        if field == BASE_FIELD:
            continue
        if field not in state:
            raise StateMismatchError(field, "<missing>", value, "the state belongs to another kind of object")
        if field not in free and (type(state[field]) is not type(value) or state[field] != value):
            hint = "the state was saved with other arguments or data"
            if field == "version":
                hint = version_hint(state[field], value)
            raise StateMismatchError(field, state[field], value, hint)
    if (BASE_FIELD in state) != (BASE_FIELD in present):
        saved, expected = ("<a state>" if BASE_FIELD in where else "<none>" for where in (state, present))
        raise StateMismatchError(BASE_FIELD, saved, expected, "the state was saved with another base dataset")
    return state


def copied_state(state: Any) -> Any:
    """Return a copy of a state of the user's: what gives it may change it later, and what loads it may take it over.

    One that can be neither pickled nor copied is returned as it is.
    """
    try:
        return pickle.loads(pickle.dumps(state, pickle.HIGHEST_PROTOCOL))  # as it is saved, and in a tenth of the time
    except genuine(Exception):
        pass
    try:
        return copy.deepcopy(state)
    except genuine(Exception):
        return state


_BYTES = {suffix: 1024**power for power, suffix in enumerate(("kb", "mb", "gb", "tb", "pb", "eb", "zb", "yb"), start=1)}
_COUNTS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def size_bytes_of(argument: str, value: object) -> int:
    """Return a size in bytes, from a number or a string such as ``"100"``, ``"100b"``, ``"64mb"`` or ``"1.5gb"``.

    Units are powers of 1024.

    Raises:
        ConfigurationError: ``value`` is not a size.
    """
    expected = "a size in bytes: a number, or a string such as '100b', '64mb' or '1.5gb'"
    return _number_of(argument, value, {**_BYTES, "b": None}, expected)


def count_of(argument: str, value: object) -> int:
    """Return a count, from a number or a string such as ``"100"``, ``"64k"``, ``"1.5m"``, ``"2b"`` or ``"1t"``.

    Units are powers of 1000.

    Raises:
        ConfigurationError: ``value`` is not a count.
    """
    return _number_of(
        argument, value, _COUNTS, "a count: a number, or a string such as '100', '64k', '1.5m' or '2b' (10^9)"
    )


def _number_of(argument: str, value: object, units: Mapping[str, int | None], expected: str) -> int:
    """Return a number that may have one of some units; a unit without a size takes whole numbers alone."""
    try:
        if is_number(value):
            return int(value)
        text = value.lower().strip() if isinstance(value, str) else ""
        unit = next((unit for unit in units if text.endswith(unit)), "")
        number, size = text.removesuffix(unit), units.get(unit)
        if size is not None:
            return int(float(number) * size)
        if number.isdecimal():
            return int(number)
    except genuine(ValueError, OverflowError):  # no number, infinity, or more digits than Python converts
        pass
    raise ConfigurationError(argument, value, expected)

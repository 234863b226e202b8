"""Say what a contract expects: as ``assert`` does, with messages that need no pytest, and under ``python -O`` too."""

from collections.abc import Callable
from typing import Any

from fkat_data.testing.content_digest import first_difference


def expect(is_met: bool, message: str) -> None:
    """Raise an ``AssertionError`` with a message unless what a contract expects is met."""
    if not is_met:
        raise AssertionError(message)


def expect_same(found: Any, expected: Any, what: str) -> None:
    """Expect two values to be equal in structure, types, dtypes, shapes and bytes.

    Args:
        found: The value.
        expected: What it must be.
        what: What the value is, for the message.

    Raises:
        AssertionError: They differ; the message has the first difference.
    """
    difference = first_difference(expected, found)
    expect(difference is None, f"{what} differs from what is expected at {difference}")


def expect_error(kind: type[Exception], action: Callable[[], Any], what: str) -> Exception:
    """Expect an action to raise an exception, and return it.

    Args:
        kind: Its type.
        action: The action.
        what: What the action does, for the message.

    Raises:
        AssertionError: It returns.
        Exception: It raises another exception.
    """
    try:
        found = action()
    except kind as error:
        return error
    raise AssertionError(f"{what}: expected {kind.__name__}, but it returned {found!r:.200}")

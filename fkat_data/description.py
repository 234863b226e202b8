"""How loaders, datasets and samplers show themselves: on one line, and as a table in a notebook.

Nothing here opens, counts, waits or raises: a debugger may ask at any time, from any thread.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from html import escape
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

from fkat_data.interruption import genuine

LINE_CHARACTERS = 100
"""The longest line."""

_VALUE_CHARACTERS = 40
_PLACE_CHARACTERS = 30
_CALLABLES = (type, FunctionType, BuiltinFunctionType, MethodType)


class Described:
    """Shows itself by the few facts that ``_repr_facts`` yields."""

    __slots__ = ()

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        """Yield names and values, what matters most first; None is left out.

        Only attributes that are there already: no call that waits, opens, counts or finishes anything.
        """
        return ()

    def __repr__(self) -> str:
        return one_line(type(self).__name__, _shown(self._repr_facts))

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, _shown(self._repr_facts))


def one_line(name: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return ``name(fact=value, ...)`` with as many facts as fit in ``LINE_CHARACTERS``."""
    line, separator = f"{name}(", ""
    for fact, value in facts:
        longer = f"{line}{separator}{fact}={value}"
        # Room for the rest of the line: ", …)".
        if len(longer) > LINE_CHARACTERS - 4:
            return f"{line}{separator}…)"
        line, separator = longer, ", "
    return f"{line})"


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns as HTML; every text is escaped."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"


def place_of(location: object) -> str | None:
    """Return the end of a path or a URL, without what may be secret in a URL: its user and its query; None for None."""
    if location is None:
        return None
    text = str(location)
    if "://" in text:
        head, _, rest = text.partition("://")
        rest = rest.split("?")[0].split("#")[0]
        # An unescaped password may hold any character.
        text = f"{head}://{rest.rpartition('@')[2]}"
    return text if len(text) <= _PLACE_CHARACTERS else f"…{text[1 - _PLACE_CHARACTERS :]}"


def _shown(facts: Callable[[], Iterable[tuple[str, object]]]) -> Iterator[tuple[str, str]]:
    """Yield the facts as texts, up to the first that raises: the object is half made, or a subclass has changed it."""
    try:
        for name, value in facts():
            if value is not None:
                yield name, _text(value)
    except genuine(Exception):
        return


def _text(value: object) -> str:
    while isinstance(value, partial):
        value = cast("partial[Any]", value).func
    if isinstance(value, str):
        return repr(_cut(value))
    if isinstance(value, (bool, int, float)):
        return _cut(str(value))
    # The user's own repr may be long or slow, or may show a secret.
    return _cut(value.__name__ if isinstance(value, _CALLABLES) else type(value).__name__)


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[: _VALUE_CHARACTERS - 1]}…"

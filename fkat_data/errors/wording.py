"""Texts of objects, shards, counts and causes, and exceptions that can be made from their words alone."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from html import escape
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar, cast

from fkat_data.runtime.interruption import genuine, suppress

_Error = TypeVar("_Error", bound=BaseException)


def made_from_text(kind: type[_Error]) -> type[_Error]:
    """Let one string stand for all arguments of an exception: it is the message, and every field is None.

    Args:
        kind: The class, whose ``__init__`` needs two arguments or more, and keeps each in an attribute of its name.
    """
    init: Any = kind.__init__
    names = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def made(self: BaseException, *args: Any, **named: Any) -> None:
        if not _is_text(args) or named:
            init(self, *args, **named)
            # What it is pickled with, whatever way the arguments were passed.
            self.args = tuple(getattr(self, name) for name in names)
            return
        super(kind, self).__init__(*args)
        vars(self).update(dict.fromkeys(names))

    setattr(kind, "__init__", made)  # noqa: B010 - a type checker refuses the plain assignment
    if "__str__" in vars(kind):
        show: Any = kind.__str__

        @functools.wraps(show)
        def shown(self: BaseException) -> str:
            return self.args[0] if _is_text(self.args) else show(self)

        setattr(kind, "__str__", shown)  # noqa: B010 - as above
    return kind


def _is_text(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], str)


def notes_of(error: BaseException) -> list[str]:
    """Return an exception's notes; none where ``__notes__`` is no list of them."""
    notes: Any = None
    with suppress(Exception):  # a class may define it as anything
        notes = error.__notes__
    return [note for note in cast("list[Any]", notes) if isinstance(note, str)] if isinstance(notes, list) else []


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception; do nothing where it takes none, as a frozen dataclass does."""
    with suppress(Exception):
        if not isinstance(getattr(error, "__notes__", []), list):
            error.__notes__ = []
        error.add_note(note)


_WORDS = "in_words"  # an attribute of such a part


def shard_name(shard: Any, shown: Callable[[Any], object] = repr) -> str:
    """Return "shard 'a'", or such words as "the dataset"."""
    return getattr(shard, _WORDS) if _has_words(shard) else f"shard {shown(shard)}"


def shard_location(shard: Any, epoch: int, shard_index: int) -> str:
    """Return "(epoch 0, shard index 2)", or only the epoch of what is no shard to the user."""
    return f"(epoch {epoch})" if _has_words(shard) else f"(epoch {epoch}, shard index {shard_index})"


def _has_words(shard: Any) -> bool:
    return hasattr(cast("type[object]", type(shard)), _WORDS)


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts, such as ``1 shard`` or ``1,200 microbatches``."""
    ending = "" if number == 1 else "es" if noun.endswith("tch") else "s"
    return f"{number:,} {noun}{ending}"


def readable_bytes(size: float) -> str:
    """Return a size with three digits and a unit, in powers of 1,024."""
    if math.isinf(size):
        return "∞"
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 0.9995 * 1024**power:
            return f"{size / 1024**power:.3g} {unit}"
    return f"{size:.0f} B"


def readable_duration(value_s: float) -> str:
    """Return seconds with three digits and a unit; from five minutes on in minutes, from two hours on in hours."""
    if value_s >= 7200:
        return f"{value_s / 3600:,.1f} h"
    if value_s >= 300:
        return f"{value_s / 60:,.1f} min"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value_s >= 0.9995 * factor:
            return f"{value_s / factor:.3g} {unit}"
    return f"{value_s / 1e-9:.3g} ns" if value_s else "0 s"


def readable_share(share: float) -> str:
    """Return a share from 0 to 1 in percent; with a decimal below a tenth."""
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


LINE_CHARACTERS = 100
"""The longest line."""

_VALUE_CHARACTERS = 40
_LOCATION_CHARACTERS = 30
_CALLABLES = (type, FunctionType, BuiltinFunctionType, MethodType)


class Described:
    """A mixin with a ``repr`` of the few facts that ``_repr_facts`` yields."""

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


def without_secrets(location: str) -> str:
    """Return a path as it is, and a URL without its user and its query."""
    head, separator, rest = location.partition("://")
    if not separator:
        return location
    # An unescaped password may hold any character.
    return f"{head}://{rest.split('?')[0].split('#')[0].rpartition('@')[2]}"


def redacted_location(location: object) -> str | None:
    """Return the end of a path or a URL, without what may be secret in a URL: its user and its query; None for None."""
    if location is None:
        return None
    text = without_secrets(str(location))
    return text if len(text) <= _LOCATION_CHARACTERS else f"…{text[1 - _LOCATION_CHARACTERS :]}"


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

"""The registry of users' encodings, shuffles, stores and movers. It follows their objects to other processes."""

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from fkat_data.errors import ConfigurationError

_T = TypeVar("_T")

#: kind -> name -> what was registered, in this process
_entries: dict[str, dict[str, Any]] = {}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]{0,99}")


class Registry(Generic[_T]):
    """The names that are registered of one kind, in this process.

    Args:
        kind: What it is, for messages: ``"encoding"``.
        has_own: Function from a name to whether the package itself has something of this name.
    """

    def __init__(self, kind: str, has_own: Callable[[str], bool]) -> None:
        self._kind = kind
        self._has_own = has_own
        self._named: dict[str, _T] = _entries.setdefault(kind, {})

    @property
    def names(self) -> tuple[str, ...]:
        """The registered names, in their order."""
        return tuple(self._named)

    def get(self, name: str) -> _T | None:
        """Return what is registered by a name; None: nothing."""
        return self._named.get(name)

    def add(self, name: str, make: _T) -> None:
        """Register a function or class by a name. The same one may be registered again, such as by a notebook's cell.

        Raises:
            ConfigurationError: It is not callable, the name is malformed, or the name belongs to another one.
        """
        if not callable(make):
            raise ConfigurationError("make", make, f"a class, or a function that makes the {self._kind}")
        if not isinstance(cast("object", name), str) or not _NAME.fullmatch(name):
            raise ConfigurationError("name", name, "a letter, then letters, digits and any of _ . + -")
        if self._has_own(name):
            raise ConfigurationError("name", name, f"a name that no {self._kind} of this package has")
        present = self._named.get(name, make)
        if present is not make and _qualified_name(present) != _qualified_name(make):
            raise ConfigurationError("name", name, f"a name that no other {self._kind} has; {present!r} has this one")
        self._named[name] = make


class Registrations:
    """All that is registered in this process. A process that unpickles it has the same registered."""

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return what is registered: kind -> name -> what makes it."""
        return {kind: dict(named) for kind, named in _entries.items() if named}

    def __reduce__(self) -> tuple[Any, ...]:
        return _adopt, (self.entries(),)


def registered() -> dict[str, tuple[str, ...]]:
    """Return the names that are registered in this process, by kind: encoding, mover, shuffle, store."""
    return {kind: tuple(named) for kind, named in sorted(_entries.items())}


def _adopt(entries: dict[str, dict[str, Any]]) -> Registrations:
    for kind, named in entries.items():
        # The sender decides: a process that was forked earlier may have an older definition.
        _entries.setdefault(kind, {}).update(named)
    return Registrations()


def _qualified_name(make: object) -> object:
    """Return where a class or function is defined; for any other object the object itself."""
    name = getattr(make, "__qualname__", None)
    return make if name is None else (getattr(make, "__module__", None), name)

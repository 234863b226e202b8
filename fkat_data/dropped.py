"""What happens once an object is gone, without a line of Python in the thread that drops it.

An object dies in the middle of any statement, in the caller's thread. Python prints what is raised in a callback of a
weak reference, in ``__del__`` and in ``weakref.finalize``, and goes on: a Ctrl-C that arrived there would be lost. So what
runs there is written in C. It closes a descriptor, clears a reference, or wakes a thread, where no signal's handler runs.
"""

import _thread
import atexit
import io
import logging
import os
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar

from fkat_data.interruption import genuine

__all__ = ["Descriptor", "WeakTable", "after_end"]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_logger = logging.getLogger(__name__)

_LEAST_PRUNED = 64


class Descriptor(io.FileIO):
    """A file descriptor that closes once, and when nothing holds it.

    Args:
        descriptor: An open file, which belongs to this object from here on.
    """

    # One call of C. That of FileIO itself would warn, as if the file had been forgotten.
    __del__: Callable[[Self], None] = io.FileIO.close

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "r")


class WeakTable(Generic[_Key, _Value]):
    """Values by their keys, none of which it keeps alive.

    The table of ``weakref`` has a callback for each value. This one forgets when it grows.
    """

    def __init__(self) -> None:
        self._references: dict[_Key, weakref.ref[Any]] = {}
        self._most = _LEAST_PRUNED

    def __setitem__(self, key: _Key, value: _Value) -> None:
        if len(self._references) >= self._most:
            self._prune()
        self._references[key] = weakref.ref(value)

    def get(self, key: _Key) -> _Value | None:
        """Return a key's value; None if it has none, or if the value is gone."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def pop(self, key: _Key) -> None:
        """Forget a key's value, if it has any."""
        self._references.pop(key, None)

    def values(self) -> list[_Value]:
        """Return the values that live."""
        found = [reference() for reference in list(self._references.values())]
        return [value for value in found if value is not None]

    def clear(self) -> None:
        """Forget all values."""
        self._references.clear()

    def _prune(self) -> None:
        for key, reference in list(self._references.items()):
            if reference() is None and self._references.get(key) is reference:
                self._references.pop(key, None)
        self._most = max(_LEAST_PRUNED, 2 * len(self._references))


class _End(weakref.ref[Any]):
    __slots__ = ("action", "is_at_exit")
    action: Callable[[], object]
    is_at_exit: bool


# Its put() is C, and made for finalizers.
_ended: SimpleQueue[_End] = SimpleQueue()
_awaited: dict[int, _End] = {}
_threads: list[int] = []


def after_end(owner: object, action: Callable[[], object], *, at_exit: bool = False) -> None:
    """Call an action once an object is gone, in a thread of the package. A fork of this process does not call it.

    Args:
        owner: The object.
        action: What to call; it must not keep the object alive.
        at_exit: Whether the end of the process counts as the object's.
    """
    if not _threads:
        _threads.append(_thread.start_new_thread(_call_actions, ()))
    end = _End(owner, _ended.put)
    end.action, end.is_at_exit = action, at_exit
    _awaited[id(end)] = end


def _call_actions() -> None:
    while True:
        end = _ended.get()
        # What a signal's handler has interrupted in ``after_end`` is not there.
        if _awaited.pop(id(end), None) is not None:
            try:
                end.action()
            except genuine(Exception):
                _logger.exception("what a dropped object has left could not be ended")
        del end


def _call_at_exit() -> None:
    for end in [end for end in list(_awaited.values()) if end.is_at_exit]:
        if _awaited.pop(id(end), None) is not None:
            end.action()


def _forget_in_child() -> None:
    _awaited.clear()
    _threads.clear()


atexit.register(_call_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)

"""What happens once an object is gone, without a line of Python in the thread that drops it.

An object dies in the middle of any statement, in the caller's thread. Python prints what is raised in a callback of a
weak reference, in ``__del__`` and in ``weakref.finalize``, and goes on: a Ctrl-C that arrived there would be lost. So what
runs there is written in C. It closes a descriptor, clears a reference, or wakes a thread, where no signal's handler runs.
"""

import _thread
import atexit
import io
import logging
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar

from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.machine import call_in_forks

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


class _Caller:
    """A thread that calls actions."""

    def __init__(self) -> None:
        self.must_end = False
        # Not events: an interrupted wait for one may leave the lock in it taken.
        self.running = _held_lock()
        self.over = _held_lock()

    def call_actions(self) -> None:
        # No signal's handler runs here: a thread that has started is in the list, and one that has ended is not.
        _callers.append(self)
        self.running.release()
        try:
            while (end := _ended.get()) is not None or not self.must_end:
                if end is not None:
                    _call(end)
                del end
        finally:
            if self in _callers:
                _callers.remove(self)
            self.over.release()


# Its put() is C, and made for finalizers. None wakes a thread that must end.
_ended: SimpleQueue[_End | None] = SimpleQueue()
_awaited: dict[int, _End] = {}
#: More than one where threads that were interrupted started one each.
_callers: list[_Caller] = []


def on_collected(owner: object, action: Callable[[], object], *, at_exit: bool = False) -> None:
    """Call an action once an object is gone, in a thread of the package. A fork of this process does not call it.

    Args:
        owner: The object.
        action: What to call; it must not keep the object alive.
        at_exit: Whether the end of the process counts as the object's.
    """
    _start_thread()
    end = _End(owner, _ended.put)
    end.action, end.is_at_exit = action, at_exit
    _awaited[id(end)] = end


def call_at_exit() -> None:
    """Finish what has come to the thread, then call the actions for which the end of the process counts. Forget the others.

    The interpreter calls it at its end.
    """
    _end_threads()
    for end in list(_awaited.values()):
        if end.is_at_exit:
            _call(end)
    # Left to the interpreter, what they refer to might outlive it: a script's globals, with a file that is not written.
    _awaited.clear()


def _held_lock() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def _start_thread() -> None:
    if all(caller.must_end for caller in list(_callers)):
        caller = _Caller()
        with suppress(RuntimeError):  # an interpreter that ends starts no thread
            _thread.start_new_thread(caller.call_actions, ())
            caller.running.acquire(timeout=1)


def _end_threads() -> None:
    while callers := list(_callers):
        for caller in callers:
            caller.must_end = True
        for caller in callers:
            # Another thread, which has just started, may take what was meant for this one.
            _ended.put(None)
            caller.over.acquire(timeout=0.1)


def _call(end: _End) -> None:
    # What a signal's handler has interrupted in ``on_collected`` is not there.
    if _awaited.pop(id(end), None) is not None:
        try:
            end.action()
        except genuine(Exception):
            _logger.exception("what a dropped object has left could not be ended")


def _forget_in_child() -> None:
    _awaited.clear()
    _callers.clear()


atexit.register(call_at_exit)
call_in_forks(_forget_in_child)

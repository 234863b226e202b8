"""Keep what a process used last: open files, decoded parts of files."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_Kept = TypeVar("_Kept")


class _MadeOnce(Generic[_Kept]):
    """An object that one thread makes, and others wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[_Kept] = []

    def get(self, make: Callable[[], _Kept]) -> _Kept:
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(make())
        return self._made[0]


class LastUsed(Generic[_Kept]):
    """The objects that this process used last, by number. A forked process, or one that unpickles it, begins with none.

    Threads may share it: what one of them makes, the others wait for, and nothing is made twice at the same time.

    Args:
        num_kept: The most objects to keep.
    """

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _MadeOnce[_Kept]] = OrderedDict()
        self._process_id = os.getpid()

    def get(self, number: int, make: Callable[[], _Kept]) -> _Kept:
        """Return an object; make it if it is not kept, after the one that was not used for longest has left.

        Raises:
            Exception: Whatever ``make`` raises.
        """
        if self._process_id != os.getpid():
            # A forked child shares its parent's file offsets and connections, so it opens its own.
            self.__init__(self._num_kept)
        with self._lock:
            place = self._kept.pop(number, None)
            while len(self._kept) >= self._num_kept:
                self._kept.popitem(last=False)
            place = self._kept[number] = _MadeOnce[_Kept]() if place is None else place
        return place.get(make)

    def __reduce__(self) -> tuple[type["LastUsed[_Kept]"], tuple[int]]:
        return type(self), (self._num_kept,)

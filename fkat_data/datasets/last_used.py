"""Keep what a process used last: open files, decoded parts of files."""

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["LastUsed"]

_Kept = TypeVar("_Kept")


class LastUsed(Generic[_Kept]):
    """The objects that this process used last, by number. A forked process, or one that unpickles it, begins with none.

    Args:
        num_kept: The most objects to keep.
    """

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._process_id = os.getpid()

    def get(self, number: int, make: Callable[[], _Kept]) -> _Kept:
        """Return an object; make it if it is not kept, after the one that was not used for longest has left.

        Raises:
            Exception: Whatever ``make`` raises.
        """
        if self._process_id != os.getpid():
            # A forked child shares its parent's file offsets and connections, so it opens its own.
            self.__init__(self._num_kept)
        if number not in self._kept:
            while len(self._kept) >= self._num_kept:
                self._kept.popitem(last=False)
            self._kept[number] = make()
        self._kept.move_to_end(number)
        return self._kept[number]

    def __reduce__(self) -> tuple[type["LastUsed[_Kept]"], tuple[int]]:
        return type(self), (self._num_kept,)

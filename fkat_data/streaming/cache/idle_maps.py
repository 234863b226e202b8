"""What this process has mapped and does not need now: it gives that back when a cache needs the space."""

import os
import threading
from typing import Protocol

from fkat_data.dropped import WeakTable

# Held during a fork: otherwise a child could inherit a set that another thread was changing.
_guard = threading.RLock()


class MapOwner(Protocol):
    """Keeps files mapped between two uses."""

    def give_back(self) -> None:
        """Drop the maps that no thread reads at this moment. Any thread may call it."""
        ...


_owners: WeakTable[int, MapOwner] = WeakTable()


def register_map_owner(owner: MapOwner) -> None:
    """Have an object give its maps back when a cache needs their space, and in each forked child.

    A child holds no locks on the files that it inherited mapped.

    Args:
        owner: The object; it is not kept alive.
    """
    with _guard:
        _owners[id(owner)] = owner


def give_back_idle_maps() -> None:
    """Have all objects of this process give their maps back."""
    with _guard:
        owners = _owners.values()
    for owner in owners:
        owner.give_back()


def _give_back_in_child() -> None:
    _guard.release()
    give_back_idle_maps()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_give_back_in_child)

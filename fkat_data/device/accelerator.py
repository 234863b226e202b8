"""The mover to an accelerator: copies on a side stream, so that they hide behind the caller's computation.

The copy of a microbatch is issued when it arrives. When it is delivered, the caller's current stream waits for the
copy's event; the host does not, unless so many copies are under way that more would not be faster. The host's memory
is kept until the event has passed.
"""

import weakref
from collections import deque
from typing import Any, NamedTuple, cast

import torch

from fkat_data.device.engine import CopyEngine, Ticket
from fkat_data.tree import map_tensors

__all__ = ["AcceleratorMover", "Moving"]


# Where copies are slower than all the rest, the host has to wait for one, or they would pile up without end.
_MOST_IN_FLIGHT = 4


class Moving(NamedTuple):
    """A microbatch on its way.

    Attributes:
        microbatch: The copy on the device; to be used after the ticket's copies.
        ticket: Tells when they are complete; None where they are.
    """

    microbatch: Any
    ticket: Ticket | None


class AcceleratorMover:
    """Copies the tensors of a microbatch to a device; leaves the rest as it is.

    Args:
        engine: What copies.
    """

    def __init__(self, engine: CopyEngine) -> None:
        self._engine = engine
        self._copied_s = 0.0
        # What the copies read, until they have: a lease that ended earlier would let the worker write into it.
        self._sources: deque[tuple[Ticket, Any]] = deque()
        weakref.finalize(self, _wait_for_all, self._sources).atexit = False

    @property
    def copied_s(self) -> float:
        """Seconds in which copies were under way, as far as they are complete."""
        self._let_go()
        return self._copied_s

    def begin(self, microbatch: Any) -> Moving:
        """Issue the copy.

        Raises:
            Exception: What the copying raises: there may be no memory left on the device.
        """
        if len(self._sources) >= _MOST_IN_FLIGHT:
            self._sources[0][0].wait()
        self._let_go()
        ticket: Ticket | None = None
        copies: dict[int, Any] = {}

        def copied(value: Any) -> Any:
            # A tensor that is there twice is one tensor on the device as well.
            found = copies.get(id(value))
            if found is None:
                found = copies[id(value)] = self._engine.copy(value)
            return found

        with self._engine.issuing():
            try:
                moved = map_tensors(copied, microbatch)
            finally:
                # Where one tensor finds no room, those before it are being read already.
                ticket = self._engine.issued()
                if ticket is not None:
                    self._sources.append((ticket, microbatch))
        return Moving(moved, ticket)

    def finish(self, moving: Moving) -> Any:
        """Return the copy, ordered before everything that the caller's current stream does next."""
        if moving.ticket is not None:
            self._engine.hand_over(moving.ticket, _tensors(moving.microbatch))
        return moving.microbatch

    def wait(self) -> None:
        """Have the host wait until all copies are complete, and let go of what they read."""
        if self._sources:
            self._sources[-1][0].wait()
        self._let_go()

    def _let_go(self) -> None:
        while self._sources and self._sources[0][0].is_done():
            ticket, _ = self._sources.popleft()
            self._copied_s += ticket.duration_s()


def _tensors(microbatch: Any) -> list[torch.Tensor]:
    """Return every tensor in a microbatch, those inside of objects with a ``to`` of their own included."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()

    def take(value: Any) -> Any:
        if id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, torch.Tensor):
                found.extend(_parts(value))
            else:
                map_tensors(take, _contents(value))
        return value

    map_tensors(take, microbatch)
    return found


def _contents(value: Any) -> Any:
    is_tuple = isinstance(value, tuple)  # as a PackedSequence is
    return list(cast("tuple[Any, ...]", value)) if is_tuple else dict(getattr(value, "__dict__", {}))


def _parts(tensor: Any) -> list[torch.Tensor]:
    """Return what has memory: the tensor, or those that a nested or a sparse one is made of."""
    if tensor.is_nested:
        return [tensor.values(), tensor.offsets()] if tensor.layout == torch.jagged else [tensor.values()]
    names = _PARTS.get(tensor.layout)
    return [tensor] if names is None else [getattr(tensor, name)() for name in names]


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),  # the names without underlines want a coalesced one
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _wait_for_all(sources: "deque[tuple[Ticket, Any]]") -> None:
    """Keep what is being read until it was, when nobody else does."""
    while sources:
        sources[0][0].wait()
        sources.popleft()

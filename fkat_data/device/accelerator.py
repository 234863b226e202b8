"""The mover to an accelerator: copies on a side stream, so that they hide behind the caller's computation.

The copy of a microbatch is issued when it arrives. When it is delivered, the caller's current stream waits for the
copy's event; the host never does. The host's memory is kept until the event has passed.
"""

from collections import deque
from typing import Any, NamedTuple

import torch

from fkat_data.tree import map_tensors

__all__ = ["AcceleratorMover", "Moving"]


class Moving(NamedTuple):
    """A microbatch on its way.

    Attributes:
        microbatch: The copy on the device; to be used after the event.
        event: Passes when the copy is complete; None where it already is.
    """

    microbatch: Any
    event: torch.Event | None


class AcceleratorMover:
    """Copies the tensors of a microbatch to a device; leaves the rest as it is.

    Args:
        device: Where to. A device without streams is copied to at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device=device) if device.type == "cuda" else None
        # What the copies read, until they have: a lease that ended earlier would let the worker write into it.
        self._sources: deque[tuple[torch.Event, Any]] = deque()

    @property
    def copied_s(self) -> float:
        """Seconds in which copies were under way, as far as they have been looked at."""
        return 0.0

    def begin(self, microbatch: Any) -> Moving:
        """Issue the copy."""
        if self._stream is None:
            return Moving(map_tensors(self._copy, microbatch), None)
        self._let_go()
        with torch.cuda.stream(self._stream):  # pyright: ignore[reportArgumentType]  # torch.Stream is a CUDA stream here
            moved = map_tensors(self._copy, microbatch)
            event = torch.Event(self._device)
            event.record(self._stream)
        self._sources.append((event, microbatch))
        return Moving(moved, event)

    def finish(self, moving: Moving) -> Any:
        """Return the copy, ordered before everything that the caller's current stream does next."""
        if moving.event is None:
            return moving.microbatch
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(moving.event)  # pyright: ignore[reportArgumentType]

        def record(tensor: Any) -> Any:
            # The allocator must not give the memory away while the caller's stream still reads it.
            if isinstance(tensor, torch.Tensor) and tensor.device.type == self._device.type:
                tensor.record_stream(stream)
            return tensor

        map_tensors(record, moving.microbatch)
        return moving.microbatch

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self._device, non_blocking=self._stream is not None)
        return value.to(self._device)

    def _let_go(self) -> None:
        while self._sources and self._sources[0][0].query():
            self._sources.popleft()

"""What copies to a device: on a stream of its own where the device has streams, at once where it has none."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

import torch

from fkat_data.device.page_lock import PageLocks

__all__ = ["CopyEngine", "DirectEngine", "StreamEngine", "Ticket", "engine_for"]

# A smaller one the driver takes into its own staging memory at once; a larger one would have the host wait.
_SMALL_BYTES = 1 << 16


class Ticket(Protocol):
    """The copies issued up to a moment."""

    def is_done(self) -> bool:
        """Return whether they are complete; does not wait."""
        ...

    def wait(self) -> None:
        """Have the host wait until they are."""
        ...

    def duration_s(self) -> float:
        """Return how long they were under way; to be asked when they are complete."""
        ...


class CopyEngine(Protocol):
    """Copies tensors to one device."""

    @property
    def device(self) -> torch.device:
        """Where to."""
        ...

    def prepare(self, tensors: list[torch.Tensor]) -> None:
        """Do what makes the copies of a microbatch's tensors fast, before any of them is issued."""
        ...

    def issuing(self) -> AbstractContextManager[Any]:
        """Return a context in which the copies of one microbatch are issued."""
        ...

    def copy(self, value: Any) -> Any:
        """Issue the copy of a tensor, or of an object with a method ``to``.

        What it reads is to be kept, and not to be written.
        """
        ...

    def issued(self) -> Ticket | None:
        """Return what tells when the copies of the last context are complete; None: they are."""
        ...

    def hand_over(self, ticket: Ticket, tensors: list[torch.Tensor]) -> None:
        """Let the caller's current stream use the copies: after they are complete, and for as long as it wants."""
        ...


class DirectEngine:
    """Copies at once.

    Args:
        device: Where to.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, tensors: list[torch.Tensor]) -> None:
        """Do nothing."""

    def issuing(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return nullcontext()

    def copy(self, value: Any) -> Any:
        """Return the copy."""
        return value.to(self.device) if isinstance(value, torch.Tensor) else _moved(value, self.device, is_async=False)

    def issued(self) -> None:
        """Return None: all copies are complete."""

    def hand_over(self, ticket: Ticket, tensors: list[torch.Tensor]) -> None:
        """Do nothing."""


class _StreamTicket(NamedTuple):
    module: Any
    began: Any
    ended: Any

    def is_done(self) -> bool:
        # Whoever asks an event while a graph is captured spoils the capture.
        return not _is_capturing(self.module) and self.ended.query()

    def wait(self) -> None:
        self.ended.synchronize()

    def duration_s(self) -> float:
        return 1e-3 * self.began.elapsed_time(self.ended)


class StreamEngine:
    """Copies on a side stream; the host waits for nothing.

    Args:
        device: Where to, with its index.
        module: What torch has for such devices: ``torch.cuda``, ``torch.xpu``.
        locks: Page-locks what is copied; None: this kind of device knows no locks.
    """

    def __init__(self, device: torch.device, module: Any, locks: PageLocks | None) -> None:
        self.device = device
        self._module = module
        self._locks = locks
        self._stream = module.Stream(device=device)
        self._began: Any = None

    def prepare(self, tensors: list[torch.Tensor]) -> None:
        """Page-lock the segments that tensors lie in."""
        if self._locks is not None:
            for tensor in filter(_is_plain, tensors):
                self._locks.hold(tensor)

    def issuing(self) -> AbstractContextManager[Any]:
        """Return a context in which the side stream is the current one."""
        self._began = self._module.Event(enable_timing=True)
        self._began.record(self._stream)
        return self._module.stream(self._stream)

    def copy(self, value: Any) -> Any:
        """Issue a copy on the current stream."""
        if not isinstance(value, torch.Tensor):
            return _moved(value, self.device, is_async=True)
        if self._locks is not None and _is_plain(value) and value.nbytes > _SMALL_BYTES:
            # What has gaps torch copies by way of memory that is not page-locked, and the host waits for that.
            is_read_in_place = self._locks.hold(value) and _is_dense(value)
            if not is_read_in_place:
                # Staged in page-locked memory of torch's own, which torch keeps until it was read.
                value = torch.empty_like(value, pin_memory=True).copy_(value)
        return value.to(self.device, non_blocking=True)

    def issued(self) -> Ticket:
        """Return a ticket of events on the side stream."""
        ended = self._module.Event(enable_timing=True)
        ended.record(self._stream)
        return _StreamTicket(self._module, self._began, ended)

    def hand_over(self, ticket: Ticket, tensors: list[torch.Tensor]) -> None:
        """Have the caller's stream wait for the event, and tell the allocator of that stream."""
        stream = self._module.current_stream(self.device)
        stream.wait_event(cast("_StreamTicket", ticket).ended)
        for tensor in tensors:
            # The allocator must not give the memory away while the caller's stream still reads it.
            if tensor.device == self.device:
                tensor.record_stream(stream)


def engine_for(device: torch.device) -> CopyEngine:
    """Return what copies to a device."""
    module: Any = getattr(torch, device.type, None)
    if not all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream", "current_device")):
        return DirectEngine(device)
    if str(device) == device.type:  # without an index: the current device may be another one later
        device = torch.device(device.type, module.current_device())
    return StreamEngine(device, module, PageLocks(device) if device.type == "cuda" else None)


def _is_capturing(module: Any) -> bool:
    is_capturing = getattr(module, "is_current_stream_capturing", None)
    return is_capturing is not None and is_capturing()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a piece of the host's memory, and nothing more."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_nested


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements lie side by side, in whatever order."""
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def _moved(value: Any, device: torch.device, *, is_async: bool) -> Any:
    # Some change themselves and return themselves; the source must stay what it is until it was read.
    if is_async:
        try:
            return copy.copy(value).to(device, non_blocking=True)
        except TypeError:  # takes a device alone
            return copy.copy(value).to(device)
    return copy.copy(value).to(device)

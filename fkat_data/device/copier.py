"""Copiers to a device: on a CUDA stream of their own if the device has streams, else at once."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import can_start_workers

if TYPE_CHECKING:  # it locks shared memory, which Windows has none of
    from fkat_data.device.page_lock import PageLocks

# The driver stages smaller copies in its own memory at once; for larger ones the host would wait.
_SMALL_BYTES = 1 << 16


class CopyEvents(NamedTuple):
    """Events of a CUDA stream before and after the copies that were issued up to a moment."""

    module: Any
    began: Any
    ended: Any

    def is_done(self) -> bool:
        """Return whether they are complete; does not wait."""
        # A query of an event during the capture of a graph would spoil the capture.
        is_capturing = getattr(self.module, "is_current_stream_capturing", None)
        return not (is_capturing is not None and is_capturing()) and self.ended.query()

    def wait(self) -> None:
        """Have the host wait until they are."""
        self.ended.synchronize()

    def duration_s(self) -> float:
        """Return how long they were under way; only once they are complete."""
        return 1e-3 * self.began.elapsed_time(self.ended)


class DirectCopier:
    """Copies at once.

    Args:
        device: The device to copy to.
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

    def hand_over(self, events: CopyEvents, tensors: list[torch.Tensor]) -> None:
        """Do nothing."""


class StreamCopier:
    """Copies on a side stream; the host does not wait.

    Args:
        device: The device to copy to, with its index.
        module: What torch has for such devices: ``torch.cuda``, ``torch.xpu``.
        locks: Page-locks what is copied; None: this kind of device has no locks.
    """

    def __init__(self, device: torch.device, module: Any, locks: "PageLocks | None") -> None:
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
        """Issue a copy on the current stream. The caller keeps its source, and does not write it."""
        if not isinstance(value, torch.Tensor):
            return _moved(value, self.device, is_async=True)
        if self._locks is not None and _is_plain(value) and value.nbytes > _SMALL_BYTES:
            # Torch copies a tensor with gaps through memory that is not page-locked, and the host waits for that.
            is_read_in_place = self._locks.hold(value) and _is_dense(value)
            if not is_read_in_place:
                # Staged in torch's own page-locked memory, which torch keeps until it was read.
                value = torch.empty_like(value, pin_memory=True).copy_(value)
        return value.to(self.device, non_blocking=True)

    def issued(self) -> CopyEvents:
        """Return a events of events on the side stream."""
        ended = self._module.Event(enable_timing=True)
        ended.record(self._stream)
        return CopyEvents(self._module, self._began, ended)

    def hand_over(self, events: CopyEvents, tensors: list[torch.Tensor]) -> None:
        """Make the caller's stream wait for the event, and report that stream to the allocator."""
        stream = self._module.current_stream(self.device)
        stream.wait_event(events.ended)
        for tensor in tensors:
            # The allocator must not use the memory again while the caller's stream still reads it.
            if tensor.device == self.device:
                tensor.record_stream(stream)


def copier_for(device: torch.device) -> StreamCopier | DirectCopier:
    """Return the engine that copies to a device."""
    module: Any = getattr(torch, device.type, None)
    if not all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream", "current_device")):
        return DirectCopier(device)
    if str(device) == device.type:  # without an index: the current device may be another one later
        device = torch.device(device.type, module.current_device())
    if device.type != "cuda" or not can_start_workers():
        return StreamCopier(device, module, None)
    from fkat_data.device.page_lock import PageLocks  # noqa: PLC0415 - see above

    return StreamCopier(device, module, PageLocks(device))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a plain piece of the host's memory."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_nested


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements lie side by side, in any order."""
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def _moved(value: Any, device: torch.device, *, is_async: bool) -> Any:
    # Some objects change and return themselves; the source must not change until it was read.
    if is_async:
        try:
            return copy.copy(value).to(device, non_blocking=True)
        except genuine(TypeError):  # takes only a device
            return copy.copy(value).to(device)
    return copy.copy(value).to(device)

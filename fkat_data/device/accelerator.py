"""The mover that a device has; to an accelerator, copies on a side stream, which hide behind the caller's computation.

The copy of a microbatch is issued when it arrives. When it is delivered, the caller's current stream waits for the
copy's event. The host waits only if too many copies are under way for more to be faster. The host's memory is kept
until the event has passed.
"""

import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType, NoneType
from typing import Any, NamedTuple, cast

import torch

from fkat_data.device.copier import CopyEvents, DirectCopier, StreamCopier, copier_for
from fkat_data.device.host import HostMover, Mover, map_tensors
from fkat_data.errors import ConfigurationError
from fkat_data.observe.sink import EventSink
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.lifetime import on_collected
from fkat_data.runtime.modes import has_modes, without_modes
from fkat_data.runtime.registry import Registry

# Where copies are the slowest part, the host has to wait for one, or they would pile up without end.
_MOST_IN_FLIGHT = 4


class Moving(NamedTuple):
    """A microbatch on its way.

    Attributes:
        microbatch: The copy on the device; to be used once it is complete.
        events: Of the copies; None: they are complete.
    """

    microbatch: Any
    events: CopyEvents | None


class _Source(NamedTuple):
    events: CopyEvents
    issued_s: float
    kept: Any


class AcceleratorMover:
    """Copies the tensors of a microbatch to a device; leaves the rest as it is.

    Args:
        copier: What copies.
        sink: Gets the host's waits, and each microbatch's copies once they are known to be complete; None: they are
            not reported.
    """

    copies = True
    """Tensors are copied."""

    def __init__(self, copier: StreamCopier | DirectCopier, sink: EventSink | None = None) -> None:
        self._copier = copier
        self._sink = sink or EventSink()
        self._copied_s = 0.0
        self._last_ended_s = 0.0
        # What the copies read, until they are complete: a lease that ended earlier would let the worker write into it.
        # By their numbers: an interrupted call, or a signal handler in between, may look at one again.
        self._sources: dict[int, _Source] = {}
        self._num_issued = 0
        # What copies are being issued from: an interrupted call may have issued some.
        self._issuing: Any = None
        on_collected(self, functools.partial(_wait_for_all, self._sources))

    @property
    def copied_s(self) -> float:
        """Seconds in which copies were under way, those that are complete."""
        self._release_read()
        return self._copied_s

    def begin(self, microbatch: Any) -> Moving:
        """Issue the copy, in none of the modes that this thread is in.

        Raises:
            Exception: What the copying raises: there may be no memory left on the device.
        """
        if has_modes():
            with without_modes():
                return self._begin(microbatch)
        return self._begin(microbatch)

    def _begin(self, microbatch: Any) -> Moving:
        self._wait_for_room()
        self._release_read()
        # By name: an object that moves itself may drop them while they are being read.
        sources = tensors_in(microbatch)
        self._copier.prepare(sources)
        events: CopyEvents | None = None
        copies: dict[int, tuple[Any, Any]] = {}

        def copied(value: Any) -> Any:
            # A tensor that is there twice is one tensor on the device as well. The value is kept, as a new
            # one might get its id otherwise.
            if id(value) not in copies:
                copies[id(value)] = value, self._copier.copy(value)
            return copies[id(value)][1]

        issued_s = time.perf_counter()
        self._issuing = microbatch, sources
        with self._copier.issuing():
            try:
                moved = map_tensors(copied, microbatch)
            finally:
                # If the device has no room for one tensor, those before it are already being read.
                events = self._copier.issued()
                if events is not None:
                    self._num_issued += 1
                    self._sources[self._num_issued] = _Source(events, issued_s, (microbatch, sources))
        self._issuing = None
        return Moving(moved, events)

    def finish(self, moving: Moving) -> Any:
        """Return the copy, ordered before everything that the caller's current stream does next."""
        if moving.events is not None:
            self._copier.hand_over(moving.events, tensors_in(moving.microbatch))
        return moving.microbatch

    def wait(self) -> None:
        """Wait until all copies are complete, and release what they read."""
        if self._issuing is not None:
            events = self._copier.issued()
            if events is not None:
                events.wait()
            self._issuing = None
        for source in list(self._sources.values()):
            source.events.wait()
        self._release_read()

    def _wait_for_room(self) -> None:
        oldest = next(iter(list(self._sources.values())), None)
        if oldest is not None and len(self._sources) >= _MOST_IN_FLIGHT and not oldest.events.is_done():
            began_s = time.perf_counter()
            oldest.events.wait()
            self._sink.waited(began_s, time.perf_counter())

    def _release_read(self) -> None:
        for number, source in list(self._sources.items()):
            if not source.events.is_done():
                return
            if self._sources.pop(number, None) is None:  # a signal handler has asked for statistics in between
                continue
            duration_s = source.events.duration_s()
            self._copied_s += duration_s
            # In sequence: a copy begins when it is issued, or when the one before it has ended.
            began_s = max(source.issued_s, self._last_ended_s)
            self._last_ended_s = began_s + duration_s
            self._sink.copied(began_s, self._last_ended_s)


def _wait_for_all(sources: dict[int, _Source]) -> None:
    """Keep what the copies read until they are complete, when the mover is gone."""
    for source in list(sources.values()):
        source.events.wait()
    sources.clear()


def tensors_in(microbatch: Any) -> list[torch.Tensor]:
    """Return every tensor in a microbatch, each once: those inside of objects with a ``to`` of their own as well.

    For a nested or a sparse tensor, those that it is made of.
    """
    search = _Search()
    map_tensors(search.take, microbatch)
    return search.found


class _Search:
    # Not a recursive function: its reference to itself would keep what it found until the next garbage collection.

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []
        # Keeps the values, so that a new one cannot get the id of one that is gone.
        self._seen: dict[int, Any] = {}

    def take(self, value: Any) -> Any:
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                self.found.extend(_parts(value))
            else:
                self._look_into(value)
        return value

    def _look_into(self, value: object) -> None:
        """Take the contents of an object that moves itself, plain objects and sets in it included."""
        for item in _contents(value):
            map_tensors(self.take, item)
            if id(item) not in self._seen and not isinstance(item, _OPAQUE):
                self._seen[id(item)] = item
                self._look_into(item)


def _contents(value: object) -> Iterator[Any]:
    """Yield what an object consists of."""
    if isinstance(value, (tuple, list, set, frozenset)):  # a tuple as a PackedSequence is
        yield from cast("Collection[Any]", value)
    if isinstance(value, Mapping):
        yield from cast("Mapping[Any, Any]", value).values()
    yield from cast("dict[str, Any]", getattr(cast("object", value), "__dict__", {})).values()
    for kind in type(cast("object", value)).__mro__:
        for member in vars(kind).values():
            if isinstance(member, MemberDescriptorType):  # of a slot
                with suppress(AttributeError):  # that was never set
                    yield member.__get__(value)


# These cannot hold a microbatch's tensors, or hold the whole program.
_OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, str, bytes, int, float, complex, NoneType)


def _parts(tensor: Any) -> list[torch.Tensor]:
    if tensor.is_nested:
        if tensor.layout != torch.jagged:
            return [tensor.values()]
        return [part for part in (tensor.values(), tensor.offsets(), tensor.lengths()) if part is not None]
    names = _PARTS.get(tensor.layout)
    return [tensor] if names is None else [getattr(tensor, name)() for name in names]


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),  # the names without underlines want a coalesced one
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


_registered: Registry[Callable[[torch.device], Mover]] = Registry("mover", lambda kind: kind in ("cpu", "cuda", "meta"))


def register_mover(name: str, make: Callable[[torch.device], Mover]) -> None:
    """Let microbatches reach a kind of device by a mover of your own, in this process.

    Args:
        name: The type of the device, as torch names it: ``"hpu"``, or what ``rename_privateuse1_backend`` was given.
        make: Makes the mover to a device of this type: a class, or a function.

    Raises:
        ConfigurationError: ``make`` is not callable, torch knows no such type, or it belongs to another mover.
    """
    try:
        torch.device(name)
    except genuine(RuntimeError, TypeError) as error:
        raise ConfigurationError("name", cast("object", name), "a type of device that torch knows") from error
    _registered.add(name, make)


def device_of(device: torch.device | str) -> torch.device:
    """Return the device of a name, without looking for it on this machine.

    Raises:
        ConfigurationError: torch knows no such device.
    """
    try:
        return torch.device(device)
    except genuine(RuntimeError, TypeError) as error:
        raise ConfigurationError("device", device, f"a torch device, or null ({error})") from error


def mover_for(device: torch.device | str | None, sink: EventSink | None = None) -> Mover:
    """Return what takes microbatches to a device; None: they stay where they are.

    Args:
        device: The device.
        sink: Gets the waits and the copies of the mover; None: they are not reported.

    Raises:
        ConfigurationError: This machine has no such device.
    """
    if device is None:
        return HostMover()
    target = device_of(device)
    own = _registered.get(target.type)
    if own is not None:
        return own(target)
    if target.type == "cpu":
        return HostMover()
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("device", device, "a device of this machine; torch sees no CUDA device here")
    try:
        torch.empty(0, device=target)
    except genuine(Exception) as error:
        raise ConfigurationError("device", device, f"a device of this machine ({error})") from error
    return AcceleratorMover(copier_for(target), sink)

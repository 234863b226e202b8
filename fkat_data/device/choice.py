"""Which mover takes microbatches to a device."""

from collections.abc import Callable
from typing import cast

import torch

from fkat_data.device.accelerator import AcceleratorMover
from fkat_data.device.engine import engine_for
from fkat_data.device.host import HostMover, Mover
from fkat_data.errors import ConfigurationError
from fkat_data.interruption import genuine
from fkat_data.observe.sink import EventSink
from fkat_data.registry import Registry

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
    return AcceleratorMover(engine_for(target), sink)

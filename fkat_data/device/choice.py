"""Which mover takes microbatches to a device."""

import torch

from fkat_data.device.accelerator import AcceleratorMover
from fkat_data.device.engine import engine_for
from fkat_data.device.host import HostMover, Mover
from fkat_data.errors import ConfigurationError
from fkat_data.interruption import is_interruption
from fkat_data.observe.sink import EventSink

__all__ = ["mover_for"]


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
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError("device", device, f"a torch device, or null ({error})") from error
    if target.type == "cpu":
        return HostMover()
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("device", device, "a device of this machine; torch sees no CUDA device here")
    try:
        torch.empty(0, device=target)
    except Exception as error:
        if is_interruption(error):
            raise
        raise ConfigurationError("device", device, f"a device of this machine ({error})") from error
    return AcceleratorMover(engine_for(target), sink)

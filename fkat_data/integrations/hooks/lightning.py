"""What Lightning makes of a ``fkat_data.DataLoader``: another loader of its arguments, which goes on where it stands."""

import sys
from inspect import currentframe
from types import FrameType
from typing import Any

from fkat_data.errors.tracebacks import caller_of

_PACKAGES = ("lightning.fabric", "lightning_fabric")
_REMAKES = "_reinstantiate_wrapped_cls"


def original_of(loader: object) -> Any:
    """Return the loader that Lightning makes this one of, whose constructor asks; None: somebody else makes it."""
    frame = currentframe() if any(package in sys.modules for package in _PACKAGES) else None
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != _REMAKES or not _is_in(frame, "utilities.data"):
        return None
    return frame.f_locals.get("orig_object")


def is_begun_by_fabric(frame: FrameType | None) -> bool:
    """Return whether the loader of ``Fabric.setup_dataloaders`` begins the iteration that this frame begins."""
    caller = caller_of(frame)
    return caller is not None and _is_in(caller, "wrappers")


def _is_in(frame: FrameType, module: str) -> bool:
    return frame.f_globals.get("__name__") in {f"{package}.{module}" for package in _PACKAGES}

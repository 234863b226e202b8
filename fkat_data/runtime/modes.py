"""torch's modes: what is made ahead of the caller does not depend on those that the caller is in at that moment.

Modes of a thread are inference mode and gradients, autocast, the default device, and whatever else intercepts torch's
functions. The default dtype and deterministic algorithms are the whole process's.
"""

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch import overrides
from torch.utils import _python_dispatch

# torch tells what is on its stacks of modes nowhere else, and leaves them by these functions itself.
_core, _stack, _dispatch = (vars(module) for module in (torch, overrides, _python_dispatch))
num_function_modes: Any = _core["_C"]._len_torch_function_stack  # noqa: SLF001 - as above
num_dispatch_modes: Any = _core["_C"]._len_torch_dispatch_stack  # noqa: SLF001 - as above
is_any_autocast_enabled: Any = _core["_C"]._is_any_autocast_enabled  # noqa: SLF001 - one for all devices
_DisableAutocast: Any = _core["_C"]._DisableAutocast  # noqa: SLF001 - one for all devices
_pop_mode, _push_mode = _stack["_pop_mode"], _stack["_push_mode"]
_without_dispatch_modes = _dispatch["_disable_current_modes"]


def has_modes() -> bool:
    """Return whether this thread is in a mode that a new thread is not in."""
    return (
        num_function_modes() > 0
        or num_dispatch_modes() > 0
        or not torch.is_grad_enabled()  # as in inference mode
        or torch.is_inference_mode_enabled()
        or is_any_autocast_enabled()
    )


def are_modes_of_a_worker(dtype: torch.dtype) -> bool:
    """Return whether torch is as ``modes_of_a_worker`` lets it be."""
    return torch.get_default_dtype() is dtype and not torch.are_deterministic_algorithms_enabled() and not has_modes()


@contextlib.contextmanager
def without_modes() -> Generator[None]:
    """Leave every mode of this thread for the block."""
    with contextlib.ExitStack() as stack:
        if num_dispatch_modes():
            stack.enter_context(_without_dispatch_modes())
        if num_function_modes():
            stack.enter_context(_without_function_modes())
        if is_any_autocast_enabled():
            stack.enter_context(_DisableAutocast())
        stack.enter_context(torch.inference_mode(mode=False))  # enables gradients, too
        yield


@contextlib.contextmanager
def modes_of_a_worker(dtype: torch.dtype) -> Generator[None]:
    """Let torch be in the block as it is in a worker process: in no mode, and with its defaults.

    Args:
        dtype: The default dtype.
    """
    with contextlib.ExitStack() as stack:
        if has_modes():
            stack.enter_context(without_modes())
        before = torch.get_default_dtype()
        if before is not dtype:
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(dtype)
        if torch.are_deterministic_algorithms_enabled():
            is_warning = torch.is_deterministic_algorithms_warn_only_enabled()
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=is_warning)
            torch.use_deterministic_algorithms(False)
        yield


@contextlib.contextmanager
def _without_function_modes() -> Generator[None]:
    modes = [_pop_mode() for _ in range(num_function_modes())]
    try:
        yield
    finally:
        while num_function_modes():  # the block's own
            _pop_mode()
        for mode in reversed(modes):
            _push_mode(mode)

"""Why this process must not fork a template from itself now, if there is a reason."""

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import distributed

from fkat_data.errors import FkatDataError
from fkat_data.interruption import genuine, suppress
from fkat_data.modes import has_modes
from fkat_data.worker.inheritance import is_fork, own_hash_seed
from fkat_data.worker.main import is_worker
from fkat_data.worker.own_fork import num_threads, stop_idle_threads
from fkat_data.worker.spawn import has_workers
from fkat_data.worker.template_process import end_idle_templates, has_forked_template

__all__ = ["refuse_unless_safe"]

_ADVICE = (
    "Call it at the top of the script, after its imports; without the call, workers start as before, with more memory"
)
_SETTLE_S, _PAUSE_S = 0.2, 0.002
_ACCELERATORS = ("cuda", "xpu", "mtia")
# The files of drivers: CUDA, ROCm, Intel, Ascend, Gaudi.
_DRIVERS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/davinci", "/dev/accel")


def refuse_unless_safe() -> None:
    """Check that a fork of this process would be as good as a new interpreter.

    Raises:
        FkatDataError: It would not; the message names the reason.
    """
    for reason in _reasons():
        raise FkatDataError(f"fork_template() cannot fork this process: {reason}. {_ADVICE}.")


def _reasons() -> Iterator[str]:
    if not hasattr(os, "pidfd_open"):
        yield "this system has no pidfds (Linux has)"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except genuine(OSError) as error:
        yield f"this system has no pidfds: {error}"
    if is_worker() or is_fork():
        yield "it is a worker, or was itself forked by a process that has imported fkat_data"
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        yield "multiprocessing has started it and imports the script again; put the call under `if __name__ == '__main__'`"
    if own_hash_seed() is None:
        yield (
            "its strings hash by a random seed, which other ranks and runs do not share; start the program with a fixed "
            "seed, as in `PYTHONHASHSEED=0 python train.py` or `PYTHONHASHSEED=0 torchrun train.py`"
        )
    if has_forked_template() or has_workers():
        yield "it has a template process or workers already; call it once, before the first loader"
    if threading.current_thread() is not threading.main_thread():
        yield f"the call is in thread {threading.current_thread().name!r}, not in the main thread"
    if asyncio._get_running_loop() is not None:  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - raises nothing
        yield "the call is inside a running asyncio loop, as it is in a notebook"
    yield from _reasons_of_torch()
    yield from _threads()


def _reasons_of_torch() -> Iterator[str]:
    if distributed.is_available() and distributed.is_initialized():
        yield "torch.distributed is initialised, whose connections a fork would share"
    used = [name for name in _ACCELERATORS if hasattr(torch, name) and getattr(torch, name).is_initialized()]
    if used:
        yield f"torch.{used[0]} is initialised, and a fork cannot use it any more"
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own
            if (file := os.readlink(path)).startswith(_DRIVERS):  # noqa: PTH115 - a text is compared
                yield (
                    f"the driver of an accelerator is in use ({file} is open; torch.cuda.is_available() opens it), and "
                    "a fork cannot use it any more"
                )
    if has_modes():
        yield (
            "torch is in a mode that workers are not in (no gradients, inference, autocast, a default device, or a "
            "mode of functions)"
        )


def _threads() -> Iterator[str]:
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        yield f"other threads run ({', '.join(others)}), whose locks a fork would never see released"
    end_idle_templates()  # each has a thread here
    stop_idle_threads()
    # The system counts a thread for a moment after its end.
    deadline_s = time.monotonic() + _SETTLE_S
    while num_threads() > 1 and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
    if num_threads() > 1:
        yield (
            f"{num_threads() - 1} threads of libraries run, whose locks a fork would never see released; libraries start "
            "them when something is computed"
        )

"""Rid a fork of the trainer of what is the trainer's, until it is as an interpreter that has only imported modules.

Objects of the trainer's live on in the fork, and must do no harm there: none is destroyed, because that could remove a
directory or end a process of the trainer's, and no other file gets the number of one of their descriptors.
"""

import atexit
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import types
import weakref
from collections.abc import Set as AbstractSet
from multiprocessing import forkserver, process, resource_tracker, util
from multiprocessing import set_start_method as set_multiprocessing_start_method
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch.utils.data import _utils as data_utilities

from fkat_data.dropped import call_at_exit
from fkat_data.transport.definitions import forget_definitions
from fkat_data.worker.template import end_process

__all__ = ["open_descriptors", "shed"]

# What Python ignores from its start on.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
_UNCHANGEABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})
_STANDARD = (0, 1, 2)
_PLAIN_HANDLERS = (logging.StreamHandler, logging.NullHandler)
_kept: list[object] = []


def shed(own: AbstractSet[int], of_trainer: AbstractSet[int]) -> None:
    """Leave behind the trainer's descriptors, signal handlers, hooks, finalizers, ``__main__``, and torch's settings.

    Modules that the trainer has imported stay, as the trainer has left them.

    Args:
        own: The descriptors to keep, beside the standard streams.
        of_trainer: Those that objects of the trainer's may use.
    """
    sys.settrace(None)
    sys.setprofile(None)
    threading.settrace(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - None ends it
    threading.setprofile(None)
    _reset_signals()
    _replace_descriptors(own, of_trainer)
    _renew_streams()
    _drop_hooks()
    _reset_logging()
    _forget_children()
    forget_definitions()
    main = types.ModuleType("__main__")
    _set(main, __builtins__=sys.modules["builtins"])
    _kept.extend(sys.modules.pop(name, None) for name in ("__main__", "__mp_main__"))
    sys.modules["__main__"] = main
    _reset_torch_and_numpy()


def open_descriptors() -> set[int]:
    """Return the descriptors that are open in this process."""
    found: set[int] = set()
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the listing's own
            os.fstat(int(path.name))
            found.add(int(path.name))
    return found


def _reset_signals() -> None:
    """Give each signal the meaning that it has in a program that the trainer starts."""
    signal.set_wakeup_fd(-1)
    faulthandler.disable()
    for number in signal.valid_signals() - _UNCHANGEABLE:
        with contextlib.suppress(ValueError, OSError, RuntimeError):  # it cannot be registered
            faulthandler.unregister(number)
        if number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) is not signal.SIG_IGN:
            with contextlib.suppress(OSError):  # one that the C library uses
                signal.signal(number, signal.SIG_DFL)


def _replace_descriptors(own: AbstractSet[int], of_trainer: AbstractSet[int]) -> None:
    """Put the null device where the trainer's files were: their objects may still write to them, or close them."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in open_descriptors() - {*own, *_STANDARD, null}:
        if descriptor in of_trainer:
            os.dup2(null, descriptor, inheritable=False)
        else:
            os.close(descriptor)
    os.close(null)


def _renew_streams() -> None:
    """Have the streams that Python opens: the program may have replaced them, or read ahead."""
    _kept.extend((sys.stdin, sys.stdout, sys.stderr, sys.__stdin__))
    stdin = open(0, closefd=False)  # noqa: SIM115 - a descriptor; it stays open
    stdout, stderr = sys.__stdout__, sys.__stderr__
    if stdout is None or stdout.closed:
        stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as above
    if stderr is None or stderr.closed:
        stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - as above
    _set(sys, stdin=stdin, stdout=stdout, stderr=stderr, __stdin__=stdin, __stdout__=stdout, __stderr__=stderr)
    faulthandler.enable()


def _drop_hooks() -> None:
    _kept.extend((sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook, *gc.callbacks))
    _set(sys, excepthook=sys.__excepthook__, unraisablehook=sys.__unraisablehook__, displayhook=sys.__displayhook__)
    _set(threading, excepthook=threading.__excepthook__)
    gc.callbacks.clear()
    # An object that has a finalizer lives for as long as this process: the finalizer would act for the trainer.
    _kept.extend(finalizer.detach() for finalizer in list(vars(weakref.finalize)["_registry"]))
    finalizers = vars(util)["_finalizer_registry"]
    _kept.append(dict(finalizers))
    finalizers.clear()
    # Hooks run from the last to the first: those before this one are the trainer's, and never run.
    atexit.register(end_process)
    # Those that a worker needs were among them.
    finalize = vars(weakref.finalize)["_exitfunc"].__get__(None, weakref.finalize)
    of_torch = vars(data_utilities)["_set_python_exit_flag"]
    for hook in (finalize, logging.shutdown, call_at_exit, vars(util)["_exit_function"], of_torch):
        atexit.register(hook)


def _reset_logging() -> None:
    """Drop the root logger's handlers and level, and handlers that write anywhere but to the standard streams."""
    standard = (sys.__stdout__, sys.__stderr__)
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    logging.root.setLevel(logging.WARNING)
    for logger in (logging.root, *loggers):
        plain = [
            handler
            for handler in logger.handlers
            if logger is not logging.root
            and (logger.name.partition(".")[0] == "torch" or type(handler) in _PLAIN_HANDLERS)
            and getattr(handler, "stream", None) in (*standard, None)
        ]
        if plain != logger.handlers:
            _kept.extend(logger.handlers)
            logger.handlers[:] = plain
            _set(logger, propagate=True)
    vars(logging)["_handlerList"].clear()  # only what a worker adds is flushed at its end


def _forget_children() -> None:
    """Make processes that multiprocessing has started for the trainer the trainer's alone."""
    children = vars(process)["_children"]
    _kept.extend(children)
    children.clear()
    vars(process.current_process())["_config"].pop("tempdir", None)
    _set(vars(resource_tracker)["_resource_tracker"], _fd=None, _pid=None)
    server = vars(forkserver)["_forkserver"]
    _set(server, _forkserver_address=None, _forkserver_alive_fd=None, _forkserver_pid=None)
    vars(util)["_run_after_forkers"]()
    set_multiprocessing_start_method(None, force=True)


def _reset_torch_and_numpy() -> None:
    """Give torch and numpy the settings of a new process that change what is computed."""
    torch.set_default_dtype(torch.float32)
    if torch.are_deterministic_algorithms_enabled():  # else the call would import much of torch
        torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    torch.autograd.set_detect_anomaly(False)
    numpy_random = vars(np.random)
    if not isinstance(numpy_random["get_bit_generator"](), np.random.MT19937):
        numpy_random["set_bit_generator"](np.random.MT19937())


def _set(owner: object, **attributes: object) -> None:
    """Set attributes of another library's module or object."""
    cast("dict[str, object]", vars(owner)).update(attributes)

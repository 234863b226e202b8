"""A template process that is forked from the trainer: it leaves behind what is the trainer's, then it is a template."""

import atexit
import contextvars
import ctypes
import gc
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NoReturn

from fkat_data.dropped import without_thread
from fkat_data.interruption import suppress
from fkat_data.worker.birth import READY
from fkat_data.worker.child import Waitable
from fkat_data.worker.lifeline import DEAF_TO, bind
from fkat_data.worker.main import main
from fkat_data.worker.own_fork import fork
from fkat_data.worker.refusal import refuse_unless_safe
from fkat_data.worker.shed import open_descriptors, shed
from fkat_data.worker.template import leave, run
from fkat_data.worker.template_process import add_forked_template

__all__ = ["fork_trainer"]


def fork_trainer() -> None:
    """Fork a template from this process.

    Raises:
        FkatDataError: It would not be safe, or the fork has ended at once.
        OSError: The system starts no process.
    """
    # The fork has its locks, which an action under way might hold.
    with without_thread():
        refuse_unless_safe()
        _fork_trainer()


def _fork_trainer() -> None:
    # What is buffered is this process's to write.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess] - as above
    ctypes.CDLL(None).fflush(None)
    # A collection of garbage writes to all that it looks at, and so copies its pages.
    gc.collect()
    gc.freeze()
    descriptors = open_descriptors()

    def begin(passed: Sequence[int], blocked: AbstractSet[int]) -> None:
        control, lifeline = passed
        # What the program has set for its context alone stays there.
        contextvars.Context().run(_be_template, control, lifeline, blocked, descriptors)

    def fork_to(control: int, lifeline: int, stderr: int) -> Waitable:
        return fork(begin, (control, lifeline), stderr)

    try:
        add_forked_template(fork_to)
    finally:
        # At its end, the interpreter destroys only what it may look at: a file that is still open is written then.
        atexit.register(gc.unfreeze)


def _be_template(control: int, lifeline: int, blocked: AbstractSet[int], of_trainer: AbstractSet[int]) -> NoReturn:
    shed({control, lifeline}, of_trainer)
    bind(lifeline)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked - DEAF_TO)
    requests = socket.socket(fileno=control)
    requests.send(READY)
    settings, *worker = run(requests, lifeline)
    try:
        sys.path[:], sys.argv[:] = pickle.load(settings)
        main(settings, *worker)
    except SystemExit as ending:
        leave(_exit_code(ending.code))
    except BaseException as error:  # noqa: BLE001 - as the interpreter does at its end
        sys.excepthook(type(error), error, error.__traceback__)
        leave(1)
    leave()


def _exit_code(given: object) -> int:
    if given is None:
        return 0
    if isinstance(given, int):
        return given & 0xFF
    print(given, file=sys.stderr)  # noqa: T201 - as the interpreter does
    return 1

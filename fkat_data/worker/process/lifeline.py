"""The lifeline of a worker's process: it ends with its trainer, and survives signals that are meant for the trainer.

A worker sets it up before it imports anything slow, so this module needs nothing but the standard library: a trainer may
die, and a scheduler may signal the whole job, while workers are still importing torch.
"""

import contextlib
import faulthandler
import fcntl
import os
import signal
import sys
import threading
import types

STACK_SIGNAL: int = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else signal.SIGWINCH
"""Makes a worker write its Python stacks, whatever it does: where that is to run Python code, this may crash it.

Datasets do not use this signal, nor does a process without a terminal.
"""
SAFE_STACK_SIGNAL: int | None = signal.SIGRTMAX - 4 if hasattr(signal, "SIGRTMAX") else None
"""Makes a worker write its Python stacks between two instructions, once it comes there."""

# Nothing survives the first two. The next ones say that the process itself has failed. By default, the last ones do
# nothing, or have a stopped process go on.
_LEFT_ALONE = (
    *("SIGKILL", "SIGSTOP"),
    *("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGEMT"),
    *("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT", "SIGINFO"),
)
DEAF_TO: frozenset[int] = frozenset(
    number
    for number in signal.valid_signals()
    if number != STACK_SIGNAL and number not in [getattr(signal, name, None) for name in _LEFT_ALONE]
)
"""Ctrl-C and a scheduler's signals reach the whole job: the trainer decides what follows, and closes its end of
the pipe to end a worker. All of these would end a process, or stop it, as would those of a trainer's timers."""
_FROM_A_TERMINAL = frozenset({signal.SIGTTIN, signal.SIGTTOU})
"""Sent by the kernel to who uses a terminal in the background, and again for as long as a handler returns."""


_SIGNAL_STACK_BYTES = 1 << 20
"""A stopped process gets all its signals at once, one on top of the other: 64 times what a CPU's registers take."""


def bind(descriptor: int) -> None:
    """Survive ``DEAF_TO``, and have the kernel kill this process and its children when the trainer is gone.

    A crash writes the Python stack from here on.

    The kernel sends the signal, so it ends a process that never returns to Python's bytecode, and it goes to the
    process group, so it ends the workers of a nested DataLoader as well. Linux does so; elsewhere a thread does, once a
    call into C that keeps the interpreter's lock has returned.

    Args:
        descriptor: The reading end of a pipe whose other end closes with the trainer.
    """
    faulthandler.enable(2)  # not sys.stderr, which a program may have replaced
    if sys.platform == "linux":
        _enlarge_signal_stack()
    for number in DEAF_TO:
        # Programs that the dataset starts would inherit SIG_IGN: it is there only where the trainer ignores the signal.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_IGN if number in _FROM_A_TERMINAL else _do_nothing)
            signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEAF_TO)  # the trainer blocked them up to here
    end_with(descriptor)


def end_with(descriptor: int) -> None:
    """Have the kernel kill this process and its children when the trainer is gone, as ``bind`` says.

    Args:
        descriptor: The reading end of a pipe whose other end closes with the trainer.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    except (OSError, AttributeError):
        threading.Thread(target=_die_after_end_of_file, args=(descriptor,), daemon=True).start()
        return
    # The trainer may have died before the signal was armed.
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        if os.read(descriptor, 1) == b"":
            os.killpg(os.getpgrp(), signal.SIGKILL)


def write_stacks_on_signals(stack_signal: int, descriptor: int) -> None:
    """Have this process write its Python stacks to a descriptor when ``STACK_SIGNAL`` or ``SAFE_STACK_SIGNAL`` comes.

    What handles the first reads the frames of functions that may be about to begin or to end.
    """

    def write_stacks(number: int, frame: types.FrameType | None) -> None:
        del number, frame
        faulthandler.dump_traceback(descriptor)

    faulthandler.register(stack_signal, file=descriptor)
    if SAFE_STACK_SIGNAL is not None:
        signal.signal(SAFE_STACK_SIGNAL, write_stacks)
        signal.siginterrupt(SAFE_STACK_SIGNAL, False)


def _enlarge_signal_stack() -> None:
    """Replace the stack that ``faulthandler`` has set for handlers, which has room for four or five signals at once."""
    try:
        import ctypes  # noqa: PLC0415 - an interpreter may be built without it
    except ImportError:
        return
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    memory = library.malloc(
        ctypes.c_size_t(_SIGNAL_STACK_BYTES)
    )  # for the process's life; untouched pages take nothing

    class Stack(ctypes.Structure):
        _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    if memory:
        library.sigaltstack(ctypes.byref(Stack(memory, 0, _SIGNAL_STACK_BYTES)), None)


def _do_nothing(number: int, frame: types.FrameType | None) -> None:
    """Handle a signal that is meant for the trainer."""
    del number, frame


def _die_after_end_of_file(descriptor: int) -> None:
    os.read(descriptor, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)

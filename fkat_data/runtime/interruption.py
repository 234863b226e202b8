"""Tell an exception that a signal's handler raised from one of the code that it interrupted.

A handler may raise an exception of any class: ``TimeoutError`` is an ``OSError``, and ``UnicodeError`` a ``ValueError``. So
a class alone never says that a call has failed. What runs in the caller's thread handles errors by
``except genuine(OSError)`` and ``with suppress(OSError)``, which let the handler's exception pass.
"""

import contextlib
import functools
import inspect
import itertools
import signal
import sys
from types import CodeType, FrameType, TracebackType
from typing import TypeVar, cast

_Error = TypeVar("_Error", bound=BaseException)
_SIGNALS = signal.valid_signals()


def genuine(*kinds: type[_Error]) -> type[_Error]:
    """Return the classes that an ``except`` clause catches; none where a signal's handler raised what is being handled.

    As in ``except genuine(OSError) as error``. Python asks once there is an exception: code without one pays nothing.

    Args:
        kinds: The classes. With ``SystemExit`` among them, that of a dataset is caught, too: it must not end the program.
    """
    error = sys.exception()
    if isinstance(error, SystemExit) and SystemExit in kinds:
        return cast("type[_Error]", () if comes_from_handler(error) else kinds)
    # In truth a tuple, which a type checker does not follow.
    return cast("type[_Error]", () if error is not None and is_interruption(error) else kinds)


class suppress(contextlib.suppress):  # noqa: N801 - as the one of contextlib
    """As ``contextlib.suppress``, but an exception that came out of a signal's handler passes."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or is_interruption(error):
            return False
        return bool(super().__exit__(kind, error, traceback))


def is_interruption(error: BaseException) -> bool:
    """Return whether an exception came out of a handler of a signal, such as a time-out's or a preemption's.

    It is meant for the caller, whatever was under way in the caller's thread: it says nothing about the shard, the
    sampler or the microbatch. Every exception that is no ``Exception`` counts as one, too.
    """
    return not isinstance(error, Exception) or comes_from_handler(error)


def comes_from_handler(error: BaseException) -> bool:
    """Return whether a function of Python that handles a signal has raised an exception, whatever its class."""
    # The first frame is the one that asks, and no handler: what has no other was raised by it, or by a call of C.
    traceback = error.__traceback__ and error.__traceback__.tb_next
    codes = _handlers() if traceback is not None else None
    while traceback is not None and codes is not None:
        code = traceback.tb_frame.f_code
        # What one decorator wraps has one code, the handler and other functions alike: see how it was called.
        is_handler = code in codes and not code.co_flags & inspect.CO_VARARGS
        if is_handler or _is_call_of_handler(traceback.tb_frame):
            return True
        traceback = traceback.tb_next
    return False


def _handlers() -> frozenset[CodeType]:
    """Return the code of the handlers that are installed now."""
    found: set[CodeType] = set()
    for number in _SIGNALS:
        handler: object = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        if callable(handler) and not inspect.isroutine(handler):
            handler = type(handler).__call__
        code = getattr(handler, "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return frozenset(found)


def _is_call_of_handler(frame: FrameType) -> bool:
    """Return whether a function was called as Python calls handlers, with a number and the frame that it interrupts.

    A handler that serves once, and installs another before it raises, is no longer installed.
    """
    code = frame.f_code
    if code.co_argcount < 2 and not code.co_flags & inspect.CO_VARARGS:
        return False
    known = frame.f_locals  # a copy, each time
    values = [known.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        values.extend(known.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount]) or ())
    before = frame.f_back
    return before is not None and any(
        interrupted is before and isinstance(number, int) and number in _SIGNALS
        for number, interrupted in itertools.pairwise(values)
    )

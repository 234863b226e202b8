"""Tell an exception that a signal's handler raised from one of the code that it interrupted."""

import functools
import inspect
import signal
from types import CodeType

__all__ = ["is_interruption"]


def is_interruption(error: BaseException) -> bool:
    """Return whether an exception came out of a handler of a signal, such as a time-out's or a preemption's.

    It is meant for the caller, whatever was under way in the caller's thread: it says nothing about the shard, the
    sampler or the microbatch. Every exception that is no ``Exception`` counts as one, too.
    """
    if not isinstance(error, Exception):
        return True
    codes = _handlers()
    traceback = error.__traceback__
    while codes and traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _handlers() -> set[CodeType]:
    """Return the code of the handlers that are installed now."""
    found: set[CodeType] = set()
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        if callable(handler) and not inspect.isroutine(handler):
            handler = type(handler).__call__
        code = getattr(handler, "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found

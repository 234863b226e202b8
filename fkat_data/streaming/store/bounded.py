"""Calls that return in time, whatever the code that they call does."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["begun_in_thread", "in_loop", "in_thread"]

_Result = TypeVar("_Result")


def in_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, _Result], timeout_s: float) -> _Result:
    """Return a coroutine's result from an event loop that another thread runs.

    A coroutine that is given up is cancelled, which closes its connection.

    Raises:
        TimeoutError: There was none within ``timeout_s``.
        Exception: Whatever it raises.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result(timeout_s)
    finally:
        future.cancel()


def in_thread(function: Callable[[], _Result], timeout_s: float) -> _Result:
    """Return a function's result from a thread of its own.

    A thread that is given up goes on until the function returns: it cannot be ended. It does not keep the process
    from ending.

    Raises:
        TimeoutError: There was none within ``timeout_s``.
        Exception: Whatever it raises.
    """
    return begun_in_thread(function).result(timeout_s)


def begun_in_thread(function: Callable[[], _Result]) -> "Future[_Result]":
    """Return what will have the result of a function that a thread of its own has begun.

    The thread does not keep the process from ending.
    """
    future: Future[_Result] = Future()
    threading.Thread(target=_run, args=(function, future), name="fkat-store", daemon=True).start()
    return future


def _run(function: Callable[[], Any], future: "Future[Any]") -> None:
    with _Into(future):
        future.set_result(function())


class _Into:
    """Hands what is raised in its block to a future."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def __enter__(self) -> None:
        """Nothing is needed."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True

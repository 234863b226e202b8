"""Calls in the background: their outcome is fetched later, or within a time limit."""

import _thread
import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any, Generic, Protocol, TypeVar, cast

from fkat_data.errors.wording import add_note

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class BackgroundCall(Generic[_Result]):
    """Calls a function in a thread of its own, which does not keep the process from ending.

    Args:
        function: What to call.
        after: Another call, which must be over first; its outcome is dropped.
    """

    def __init__(self, function: Callable[[], _Result], after: "BackgroundCall[_Result] | None" = None) -> None:
        self._function = function
        self._after = after
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        self._is_dropped = False
        # Not join(): Python 3.11 takes a thread for ended once Ctrl-C has interrupted a join.
        self._is_over = threading.Event()
        # No Thread, which is a member of a WeakSet: Python swallows what is raised in the caller when it dies there.
        _thread.start_new_thread(self._run, ())

    def result(self, timeout_s: float | None = None) -> _Result:
        """Wait for the call and return what the function returned, once.

        The thread of a call that takes too long goes on until the function returns: a thread cannot be stopped.

        Args:
            timeout_s: Seconds to wait at most; None: as long as it takes.

        Raises:
            TimeoutError: The call takes longer.
            BaseException: Whatever the function raised.
        """
        if not self._is_over.wait(timeout_s):
            raise TimeoutError
        error, self._error = self._error, None
        if error is None:
            return self._results.pop()
        try:
            raise error
        finally:
            # Its traceback has this frame: the two would keep each other, and what they refer to, alive.
            del error

    def drop(self) -> None:
        """Release the outcome, now or as soon as it is there, without waiting for it."""
        self._is_dropped = True
        self._results.clear()

    def wait(self) -> None:
        """Wait until the call is over."""
        self._is_over.wait()

    def _run(self) -> None:
        if self._after is not None:
            self._after.wait()
            self._after = None
        try:
            if not self._is_dropped:
                self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is fetched
            self._error = error
        finally:
            if self._is_dropped:
                self._results.clear()
            self._is_over.set()


def in_thread(function: Callable[[], _Result], timeout_s: float) -> _Result:
    """Return a function's result, computed in a thread that is left behind if it takes too long.

    Raises:
        TimeoutError: The function did not return within ``timeout_s``.
        BaseException: Whatever it raised.
    """
    return BackgroundCall(function).result(timeout_s)


def in_parallel(function: Callable[[_Item], _Result], items: Sequence[_Item], num_threads: int) -> list[_Result]:
    """Return a function's results, in the order of the items, computed in threads that do not keep the process alive.

    After an error, and after an interruption of this call, no thread begins another item.

    Raises:
        BaseException: Whatever the function raised for the first of the items that were tried and failed.
    """
    found: dict[int, _Result] = {}
    failures: dict[int, BaseException] = {}
    pending = iter(enumerate(items))
    lock = threading.Lock()
    is_left = False

    def work() -> None:
        while not failures and not is_left:
            with lock:
                number, item = next(pending, (-1, None))
            if number < 0:
                return
            try:
                found[number] = function(cast("_Item", item))
            except BaseException as error:  # noqa: BLE001 - raised below
                failures[number] = error

    try:
        for call in [BackgroundCall(work) for _ in range(min(num_threads, len(items)))]:
            call.result()
    finally:
        is_left = True
    if failures:
        raise failures[min(failures)]
    return [found[number] for number in range(len(items))]


def in_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, _Result], timeout_s: float) -> _Result:
    """Return a coroutine's result from an event loop that another thread runs.

    A coroutine that takes too long is cancelled, which closes its connection.

    Raises:
        TimeoutError: There was no result within ``timeout_s``.
        Exception: Whatever the coroutine raised.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result(timeout_s)
    finally:
        future.cancel()


_LONGEST_ITEM = 200


class AnyFuture(Protocol):
    """The result of a submitted call: ``concurrent.futures.Future``, or another library's future."""

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        ...

    def cancel(self) -> Any:
        """Cancel the call if it has not started."""
        ...


class AnyExecutor(Protocol):
    """Any ``concurrent.futures.Executor``, or another object with its ``submit``.

    It may run a call several times, also at the same time, such as on a cluster that loses a worker.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> AnyFuture:
        """Schedule a call, and return its future."""
        ...


def results_of(
    executor: AnyExecutor,
    calls: Iterable[tuple[object, Callable[..., Any], Sequence[Any]]],
    doing: str,
    arrived: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Return the results of many calls in their order. Submit all of them up front.

    Args:
        executor: The executor of the calls.
        calls: For each call, the item that it is for, the function, and the function's arguments.
        doing: What a call does with its item, for the note of an error, such as ``"writing"``.
        arrived: Called in this thread with each result, in their order.

    Raises:
        Exception: A call failed. This is the error of the first one in their order, with a note that names its item.
            Calls that have not started are cancelled.
    """
    shown: list[str] = []
    futures: list[AnyFuture] = []
    results: list[Any] = []
    try:
        for item, function, arguments in calls:
            shown.append(f"{item!r}"[:_LONGEST_ITEM])
            futures.append(executor.submit(function, *arguments))
        for number, future in enumerate(futures):
            results.append(_result(future, f"while {doing} item {number} (from 0), {shown[number]}"))
            if arrived is not None:
                arrived(results[-1])
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return results


def _result(future: AnyFuture, note: str) -> Any:
    try:
        return future.result()
    except (Exception, CancelledError) as error:
        add_note(error, note)
        raise

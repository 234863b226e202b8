"""Calls in an executor: in threads, in processes, or on a cluster such as Dask's or Ray's."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol

from fkat_data.notes import add_note

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

"""One call in a thread of its own, whose outcome is fetched later."""

import threading
from collections.abc import Callable
from typing import Generic, Literal, Self, TypeVar

__all__ = ["BackgroundCall"]

_Result = TypeVar("_Result")


class BackgroundCall(Generic[_Result]):
    """Calls a function in the background.

    The thread is a daemon: a process does not wait for it when it ends.

    Args:
        function: What to call.
        after: Another call, which has to be over first; its outcome is dropped.
    """

    def __init__(self, function: Callable[[], _Result], after: "BackgroundCall[_Result] | None" = None) -> None:
        self._function = function
        self._after = after
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        self._is_dropped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fkat_data prefetch", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the outcome is there."""
        return not self._thread.is_alive()

    def result(self) -> _Result:
        """Return what the function returned, once; waits for it.

        Raises:
            BaseException: Whatever the function raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results.pop()

    def drop(self) -> None:
        """Let go of the outcome, now or when it is there; does not wait."""
        self._is_dropped.set()
        self._results.clear()

    def wait(self) -> None:
        """Wait until the call is over."""
        self._thread.join()

    def _run(self) -> None:
        if self._after is not None:
            self._after.wait()
            self._after = None
        if self._is_dropped.is_set():
            return
        with _Caught() as caught:
            self._results.append(self._function())
        self._error = caught.error
        if self._is_dropped.is_set():
            self._results.clear()


class _Caught:
    """Keeps what its block raises, for whoever asks for the outcome."""

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> Literal[True]:
        self.error = error
        return True

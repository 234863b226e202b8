"""Bytes from an iterator that may block for ever, read by a thread of its own a little ahead."""

import threading
from collections.abc import Callable, Iterable
from types import TracebackType

__all__ = ["Pump"]

_MOST_AHEAD_BYTES = 1 << 20


class Pump:
    """A thread that reads, and the side that takes what it has read.

    Args:
        source: Gives pieces of bytes. It is dropped when it ends, or once it gives a piece after ``close``.
    """

    def __init__(self, source: Iterable[bytes]) -> None:
        self._changed = threading.Condition()
        self._pieces: list[bytes] = []
        self._ahead_bytes = 0
        self._error: BaseException | None = None
        self._is_over = False
        self._is_closed = False
        threading.Thread(target=self._run, args=(source,), name="fkat-store", daemon=True).start()

    def read(self, timeout_s: float) -> bytes:
        """Return all that is there, b"" at the end.

        Raises:
            TimeoutError: There is nothing within ``timeout_s``.
            Exception: What the source raised, after all that it gave before.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._pieces or self._is_over, timeout_s):
                raise TimeoutError
            if not self._pieces and self._error is not None:
                raise self._error
            taken = b"".join(self._pieces)
            self._pieces, self._ahead_bytes = [], 0
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Take no more; returns at once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self, source: Iterable[bytes]) -> None:
        with _End(self._end):
            for piece in source:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or self._ahead_bytes < _MOST_AHEAD_BYTES)
                    if self._is_closed:
                        return
                    self._pieces.append(bytes(piece))
                    self._ahead_bytes += len(piece)
                    self._changed.notify_all()

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._error, self._is_over = error, True
            self._changed.notify_all()


class _End:
    """Tells how its block ended, and by what error."""

    def __init__(self, tell: Callable[[BaseException | None], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        """Nothing is needed."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._tell(error)
        return True

"""Limit how slow an attempt may be."""

import time
from collections.abc import Callable
from typing import TypeVar

from fkat_data.interruption import genuine
from fkat_data.streaming.store.client import Body, TransferError

_Answer = TypeVar("_Answer")

#: The number of bytes that ``timeout_s`` is for: the reference's default size of a shard.
PART_BYTES = 64 << 20
#: The longest time without a byte.
LONGEST_SILENCE_S = 30.0
_WINDOW_S = 30.0
_LEAST_BYTES_PER_S = 64 << 10


class SlowError(TransferError):
    """Too few bytes arrived in time."""


class Pace:
    """The clock of one attempt. It runs while the caller waits for the store, and stops while the caller writes.

    Args:
        timeout_s: Seconds in which the first 64 MiB must arrive; each further 64 MiB may take as long.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waited_s = 0.0
        self._num_bytes = 0
        self._window_starts_s = 0.0
        self._window_bytes = 0
        self._asked_at = time.monotonic()

    def opened(self, request: Callable[[float], _Answer]) -> _Answer:
        """Return the answer to a request, which gets the seconds that the store may be silent.

        Raises:
            SlowError: The answer did not arrive in time.
            Exception: Whatever the request raises.
        """
        try:
            answer = request(self.ask())
        except genuine(TimeoutError) as error:
            raise self.late() from error
        self.answered()
        return answer

    def next_bytes(self, body: Body) -> bytes:
        """Return the next bytes of a body; b"" at the end.

        Raises:
            SlowError: No byte arrived in time, or too few did.
            Exception: Whatever the client library raises.
        """
        try:
            chunk = body.read(self.ask())
        except genuine(TimeoutError) as error:
            raise self.late() from error
        self.answered(len(chunk))
        return chunk

    def ask(self) -> float:
        """Start the clock; return how many seconds the store may now be silent.

        Raises:
            SlowError: No time is left.
        """
        left_s = self._limit_s - self._waited_s
        if left_s <= 0:
            raise self.late()
        self._asked_at = time.monotonic()
        return min(left_s, LONGEST_SILENCE_S)

    def answered(self, num_bytes: int = 0) -> None:
        """Stop the clock and count the bytes that arrived.

        Raises:
            SlowError: They are too few for the time.
        """
        self._waited_s += time.monotonic() - self._asked_at
        self._num_bytes += num_bytes
        self._window_bytes += num_bytes
        window_s = self._waited_s - self._window_starts_s
        if window_s >= _WINDOW_S:
            if self._window_bytes < window_s * _LEAST_BYTES_PER_S:
                raise SlowError(f"only {self._window_bytes:,} bytes in {window_s:.0f} s")
            self._window_starts_s, self._window_bytes = self._waited_s, 0

    def late(self) -> SlowError:
        """Return the error for a store that stayed silent longer than ``ask`` allowed."""
        waited_s = self._waited_s + time.monotonic() - self._asked_at
        # A wait may return a moment early.
        if waited_s < self._limit_s - 0.01:
            return SlowError(f"no byte for {LONGEST_SILENCE_S:g} s, after {self._num_bytes:,} bytes")
        return SlowError(f"only {self._num_bytes:,} bytes within {self._limit_s:g} s (timeout_s for each 64 MiB)")

    @property
    def _limit_s(self) -> float:
        return self._timeout_s * (1 + self._num_bytes // PART_BYTES)

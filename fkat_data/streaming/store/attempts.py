"""The one loop that tries again."""

import logging
import random
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from fkat_data.errors import DownloadError, FkatDataError, ShardNotFoundError
from fkat_data.streaming.store.causes import FailureCause, Outlook, cause_of
from fkat_data.streaming.store.redaction import Redaction

__all__ = ["FinalError", "with_attempts"]

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0
# The global generators belong to the user's program, and a fork would copy one of our own.
_random = random.SystemRandom()


class FinalError(Exception):
    """Wraps an error that is raised as it is: no other attempt is made, and it is none of the store's."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


def with_attempts(
    action: Callable[[], _Result], *, url: str, num_retries: int, timeout_s: float, redaction: Redaction
) -> _Result:
    """Return what an action returns, once it does not raise.

    Waits double from 0.5 s to 10 s at most, each drawn between 0 and that; a Retry-After makes them longer. None is
    longer than ``timeout_s``.

    Args:
        action: Takes no longer than it may by itself.
        url: What errors name, without secrets.
        num_retries: How often it is tried again.
        timeout_s: The longest wait between two attempts.
        redaction: What messages must not show.

    Raises:
        ShardNotFoundError: There is no such object.
        DownloadError: Each attempt failed, or one in a way that another would repeat.
        BaseException: What a ``FinalError`` wraps.
    """
    causes: list[tuple[str, float]] = []
    while True:
        started_at = time.monotonic()
        failure = _Failure()
        with failure:
            return action()
        cause = failure.cause()
        text = redaction.text(cause.text)
        causes.append((text, time.monotonic() - started_at))
        if cause.outlook is Outlook.MISSING:
            raise ShardNotFoundError(url, text)
        is_refused = cause.outlook is Outlook.REFUSED
        if is_refused or len(causes) > num_retries:
            raise DownloadError(url, causes, is_refused)
        _log.warning("%s: attempt %d of %d failed (%s)", url, len(causes), num_retries + 1, text)
        time.sleep(_wait_s(len(causes), cause.retry_after_s, timeout_s))


class _Failure:
    """Keeps what is raised in its block, so that nothing raised later is chained to it: it may show secrets."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def cause(self) -> FailureCause:
        """Return why the block failed, or raise what is no store's failure."""
        if isinstance(self._error, FinalError):
            raise self._error.error
        if self._error is None or isinstance(self._error, FkatDataError):
            raise self._error or RuntimeError("an attempt returned nothing, and did not fail")
        return cause_of(self._error)

    def __enter__(self) -> None:
        """Nothing is needed."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._error = error if isinstance(error, Exception) else None
        return isinstance(error, Exception)


def _wait_s(num_failed: int, retry_after_s: float | None, longest_s: float) -> float:
    highest_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(num_failed - 1, 10))
    return min(max(_random.uniform(0, highest_s), retry_after_s or 0.0), longest_s)

"""The one loop that retries."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from fkat_data.errors import DownloadError, FkatDataError, ShardNotFoundError
from fkat_data.interruption import genuine, is_interruption
from fkat_data.streaming.store.causes import Outlook, cause_of
from fkat_data.streaming.store.redaction import Redaction

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0
# The global generators belong to the user's program, and a fork would copy one of our own.
_random = random.SystemRandom()


class FinalError(Exception):
    """Wraps an error that ends all attempts and reaches the caller as it is: the store did not cause it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


def with_attempts(
    action: Callable[[], _Result], *, url: str, num_retries: int, timeout_s: float, redaction: Redaction
) -> _Result:
    """Call an action until it returns, and return its result.

    The wait after the first failure is drawn between 0 and 0.5 s; the upper bound doubles with each failure up to
    10 s. A Retry-After makes a wait longer. No wait exceeds ``timeout_s``.

    Args:
        action: Limits its own time.
        url: What errors name, without secrets.
        num_retries: How often a failed action is called again.
        timeout_s: The longest wait between two attempts.
        redaction: Removes secrets from messages.

    Raises:
        ShardNotFoundError: The object does not exist.
        DownloadError: Each attempt failed, or one failed in a way that another would repeat.
        BaseException: What a ``FinalError`` wraps.
    """
    causes: list[tuple[str, float]] = []
    while True:
        started_at = time.monotonic()
        # What is raised below stands outside of the handlers, so that it is not chained to an error with secrets.
        final: BaseException | None = None
        cause = None
        try:
            return action()
        except FkatDataError:
            raise
        except FinalError as error:
            final = error.error
        except genuine(Exception) as error:
            final = _interruption_behind(error)
            # Its cause decides whether another attempt follows.
            cause = None if final is not None else cause_of(error)
        if cause is None:
            raise final or RuntimeError("an attempt failed without an error")
        text = redaction.text(cause.text)
        causes.append((text, time.monotonic() - started_at))
        if cause.outlook is Outlook.MISSING:
            raise ShardNotFoundError(url, text)
        is_refused = cause.outlook is Outlook.REFUSED
        if is_refused or len(causes) > num_retries:
            raise DownloadError(url, causes, is_refused)
        _log.warning("%s: attempt %d of %d failed (%s)", url, len(causes), num_retries + 1, text)
        time.sleep(_backoff_s(len(causes), cause.retry_after_s, timeout_s))


def _backoff_s(num_failed: int, retry_after_s: float | None, longest_s: float) -> float:
    highest_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(num_failed - 1, 10))
    return min(max(_random.uniform(0, highest_s), retry_after_s or 0.0), longest_s)


def _interruption_behind(error: Exception) -> BaseException | None:
    """Return what a signal's handler raised, such as a TimeoutError that was taken for the store's; None if nothing."""
    raised = error.__cause__
    while isinstance(raised, Exception) and not is_interruption(raised):
        raised = raised.__cause__
    return raised if isinstance(raised, Exception) else None

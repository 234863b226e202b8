"""The one loop that retries, and what its messages leave out: secrets in addresses and options."""

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

from fkat_data.errors import DownloadError, FkatDataError, ShardNotFoundError
from fkat_data.interruption import genuine, is_interruption
from fkat_data.streaming.store.causes import Outlook, cause_of

_HIDDEN = "***"
_LONGEST_MESSAGE = 500
#: A shorter text would match words that are no secrets.
_SHORTEST_SECRET = 4
#: Settings that a message may show; any other text might be a secret.
_NO_SECRETS = {"endpoint_url", "region_name", "anon", "default_block_size", "project", "account_name", "repo_type"}
_USER_OF_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"?#]*@")
_QUERY_OF_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"?#]*)\?[^\s'\"#>)]*")
_SIGNED = re.compile(
    r"(?i)\b(x-(?:amz|goog)-(?:signature|credential|security-token)|signature|sig|token|secret|password|authorization|"
    r"(?:aws_?)?(?:access_?key_?id|secret_?access_?key))([\"']?\s*[=:]\s*[\"']?)(?:(?:bearer|basic)\s+)?[^\s&,\"'<>]+"
)


class Redaction:
    """Hides the secrets of a store's URL and options.

    Args:
        url: The URL, which may carry a user's name and password, or a signature in its query.
        options: The options of its file system.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        found = set(_texts(options))
        if "://" in url:
            parts = urlsplit(url)
            found |= {parts.query, unquote(parts.query)}
            user = parts.netloc.rpartition("@")[0]
            found |= {user, unquote(user), *user.split(":"), *(unquote(part) for part in user.split(":"))}
        self._secrets = sorted((text for text in found if len(text) >= _SHORTEST_SECRET), key=len, reverse=True)

    def url(self, url: str) -> str:
        """Return a URL without its user and its query."""
        return _USER_OF_URL.sub(rf"\1{_HIDDEN}@", _QUERY_OF_URL.sub(rf"\1?{_HIDDEN}", url))

    def text(self, text: str) -> str:
        """Return a message without secrets, on one line of at most 500 characters."""
        text = self.url(text)
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        text = " ".join(_SIGNED.sub(rf"\1\2{_HIDDEN}", text).split())
        return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, bytes):
        return [value.decode(errors="replace")]
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return [text for key, item in items if key not in _NO_SECRETS for text in _texts(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in cast("list[object]", value) for text in _texts(item)]
    # Objects such as aiohttp.BasicAuth are tuples; others do not show their contents in messages.
    return []


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

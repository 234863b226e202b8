"""The one loop that retries: which errors another attempt may cure, and what its messages leave out: secrets in addresses and options."""

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

from fkat_data.errors import DownloadError, FkatDataError, ShardNotFoundError
from fkat_data.errors.wording import made_from_text
from fkat_data.runtime.interruption import genuine, is_interruption


class TransferError(Exception):
    """A transfer broke. What has arrived is good, and another attempt may continue from there."""


class ContentError(TransferError):
    """The content that arrived is wrong. Another attempt begins again at the first byte."""


class ChangedError(ContentError):
    """The object was replaced after the transfer began."""


@made_from_text
@dataclass(eq=False, repr=False)
class StatusError(TransferError):
    """A server answered with an error.

    Args:
        status: The HTTP status.
        reason: The server's words.
        retry_after: The Retry-After header; "" if the answer has none.
    """

    status: int
    reason: str
    retry_after: str = ""

    def __str__(self) -> str:
        return f"status {self.status} {self.reason}".rstrip()


PART_BYTES = 64 << 20
"""The number of bytes that a time limit is for: the reference's default size of a shard."""

#: Client errors that pass: the request took too long, came too early, or was one too many.
_TRANSIENT_STATUSES = frozenset({408, 409, 412, 416, 423, 425, 429})
_MISSING_STATUSES = frozenset({404, 410})
_TRANSIENT_CODES = frozenset(
    {
        *("RequestTimeout", "RequestTimeoutException", "SlowDown", "Throttling", "ThrottlingException"),
        *("TooManyRequests", "TooManyRequestsException", "RequestLimitExceeded", "InternalError", "ServiceUnavailable"),
        *("PreconditionFailed", "InvalidRange", "OperationAborted"),
    }
)
_MISSING_CODES = frozenset({"NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchUpload"})
#: By name, so that no library needs to be installed.
_MISSING_NAMES = frozenset({"NotFoundError", "EntryNotFoundError", "RepositoryNotFoundError", "ResourceNotFoundError"})
_TRANSIENT_NAMES = frozenset(
    {
        *("ClientPayloadError", "ServerDisconnectedError", "IncompleteReadError", "IncompleteRead"),
        # The client could not parse the answer.
        *("ResponseStreamingError", "JSONDecodeError", "UnicodeDecodeError", "ParseError", "ResponseParserError"),
    }
)
_REFUSED_NAMES = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"),
        *("UnauthorizedSSOTokenError", "SSOTokenLoadError", "ProfileNotFound", "ClientAuthenticationError"),
        *("PermissionDeniedError", "UnauthenticatedError", "DefaultCredentialsError", "RefreshError", "InvalidURL"),
        *("ParamValidationError", "InvalidPathError", "UnknownConfigurationKeyError", "ClientConnectorSSLError"),
        *("ClientConnectorCertificateError", "SSLCertVerificationError", "GatedRepoError", "BadHostKeyException"),
    }
)
#: A mistake in a program or its settings raises these, in the next attempt too.
_REFUSED_TYPES = (PermissionError, TypeError, ValueError, ImportError, AttributeError, LookupError, NotImplementedError)


_MISSING_TYPES = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Retryability(Enum):
    """Whether another attempt may succeed where one failed."""

    TRANSIENT = "transient"
    """It may succeed."""
    MISSING = "missing"
    """The object does not exist."""
    PERMANENT = "permanent"
    """It would fail in the same way."""


@dataclass(frozen=True, slots=True)
class FailureCause:
    """The cause of a failed attempt.

    Attributes:
        retryability: Whether another attempt may succeed.
        text: What happened, in one line. It may contain secrets.
        retry_after_s: Seconds that the server asked the client to wait; None: it did not ask.
    """

    retryability: Retryability
    text: str
    retry_after_s: float | None = None


def cause_of(error: BaseException) -> FailureCause:
    """Return the cause of a failed attempt, from the exception that ended it."""
    chain = list(_chain(error))
    if isinstance(error, _MISSING_TYPES) and _is_unanswered(error.__cause__):
        chain = chain[1:]
    retryability = next((found for link in chain if (found := _retryability(link)) is not None), Retryability.TRANSIENT)
    retry_after_s = next((asked_s for link in chain if (asked_s := _retry_after_s(link)) is not None), None)
    return FailureCause(retryability, _text(chain), retry_after_s)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _retryability(error: BaseException) -> Retryability | None:
    """Return the retryability that an exception itself determines; None: look at its cause."""
    code, status, name = _code(error), status_of(error), type(error).__name__
    retryability: Retryability | None = None
    if code in _TRANSIENT_CODES or name in _TRANSIENT_NAMES:
        retryability = Retryability.TRANSIENT
    elif (
        code in _MISSING_CODES
        or status in _MISSING_STATUSES
        or name in _MISSING_NAMES
        or isinstance(error, _MISSING_TYPES)
    ):
        retryability = Retryability.MISSING
    elif status is not None:
        refused = 400 <= status < 500 and status not in _TRANSIENT_STATUSES
        retryability = Retryability.PERMANENT if refused else Retryability.TRANSIENT
    elif name in _REFUSED_NAMES or (type(error) is OSError and str(error).startswith("Forbidden: ")):
        # gcsfs reports status 403 in words only.
        retryability = Retryability.PERMANENT
    elif isinstance(error, TransferError):
        retryability = Retryability.TRANSIENT
    elif isinstance(error, _REFUSED_TYPES) and not (error.__cause__ or error.__context__):
        # A client that trips over a broken answer raises these too, with the connection's error behind them.
        retryability = Retryability.PERMANENT
    return retryability


def _is_unanswered(cause: BaseException | None) -> bool:
    """Return whether what a client takes for a missing file is an answer that says something else, or none at all."""
    if cause is not None and (status := status_of(cause)) is not None:
        return status not in _MISSING_STATUSES
    return type(cause).__name__ in _TRANSIENT_NAMES or (
        isinstance(cause, OSError) and not isinstance(cause, _MISSING_TYPES)
    )


def _response(error: BaseException) -> Any:
    return getattr(error, "response", None)


def _code(error: BaseException) -> str:
    """Return the code of an S3 error as botocore reports it."""
    return str(_part(_response(error), "Error").get("Code", ""))


def status_of(error: BaseException) -> int | None:
    """Return the status of a server's answer that an error of a client's has; None: it has none."""
    response = _response(error)
    candidates: Iterable[Any]
    if isinstance(response, Mapping):
        candidates = [_metadata(error).get("HTTPStatusCode")]
    else:  # one after another: aiohttp warns where ``code`` is read
        candidates = (getattr(source, name, None) for source in (error, response) for name in _STATUS_NAMES)
    return next((int(value) for value in candidates if isinstance(value, (int, str)) and _is_status(value)), None)


_STATUS_NAMES = ("status", "status_code", "code")


def _is_status(value: int | str) -> bool:
    return not isinstance(value, bool) and str(value).isdecimal() and 100 <= int(value) < 600


def _metadata(error: BaseException) -> Mapping[str, Any]:
    return _part(_response(error), "ResponseMetadata")


def _part(response: Any, name: str) -> Mapping[str, Any]:
    found: Any = cast("Mapping[str, Any]", response).get(name) if isinstance(response, Mapping) else None
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _retry_after_s(error: BaseException) -> float | None:
    if isinstance(error, StatusError):
        return _seconds(error.retry_after)
    headers: Any = _metadata(error).get("HTTPHeaders") or getattr(_response(error), "headers", None)
    if isinstance(headers, Mapping):
        return _seconds(str(cast("Mapping[str, Any]", headers).get("retry-after", "")))
    return None


def _seconds(header: str) -> float | None:
    """Return the seconds that a Retry-After header asks for, as a number or a date."""
    header = header.strip()
    if not header:
        return None
    if header.isdecimal():
        return float(header[:9])
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except genuine(ValueError, OverflowError):
        return None


def _text(chain: list[BaseException]) -> str:
    """Return the first message that is not empty: timeouts and broken connections often have none."""
    first = chain[0]
    if isinstance(first, TransferError):
        return str(first)
    for error in chain:
        words = str(error).strip()
        if words:
            status = status_of(error)
            prefix = f"status {status}, " if status is not None and str(status) not in words else ""
            return f"{prefix}{type(error).__name__}: {words}"
    return type(first).__name__


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
    """A filter that hides the secrets of a store's URL and options in messages.

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
    """A wrapper of an error that ends all attempts and reaches the caller as it is: the store did not cause it."""

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
        if cause.retryability is Retryability.MISSING:
            raise ShardNotFoundError(url, text)
        is_refused = cause.retryability is Retryability.PERMANENT
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

"""Decide from an exception, of any library, whether another attempt may succeed."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, cast

from fkat_data.interruption import genuine
from fkat_data.streaming.store.client import StatusError, TransferError

#: Client errors that pass: the request took too long, came too early, or was one too many.
_PASSING_STATUSES = frozenset({408, 409, 412, 416, 423, 425, 429})
_MISSING_STATUSES = frozenset({404, 410})
_PASSING_CODES = frozenset(
    {
        *("RequestTimeout", "RequestTimeoutException", "SlowDown", "Throttling", "ThrottlingException"),
        *("TooManyRequests", "TooManyRequestsException", "RequestLimitExceeded", "InternalError", "ServiceUnavailable"),
        *("PreconditionFailed", "InvalidRange", "OperationAborted"),
    }
)
_MISSING_CODES = frozenset({"NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchUpload"})
#: By name, so that no library needs to be installed.
_MISSING_NAMES = frozenset({"NotFoundError", "EntryNotFoundError", "RepositoryNotFoundError", "ResourceNotFoundError"})
_PASSING_NAMES = frozenset(
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


class Outlook(Enum):
    """What another attempt would bring."""

    PASSING = "passing"
    """It may succeed."""
    MISSING = "missing"
    """The object does not exist."""
    REFUSED = "refused"
    """It would fail in the same way."""


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Why an attempt failed.

    Attributes:
        outlook: What another attempt would bring.
        text: What happened, in one line. It may contain secrets.
        retry_after_s: Seconds that the server asked the client to wait; None: it did not ask.
    """

    outlook: Outlook
    text: str
    retry_after_s: float | None = None


def cause_of(error: BaseException) -> FailureCause:
    """Return the cause of a failed attempt, from the exception that ended it."""
    chain = list(_chain(error))
    outlook = next((found for link in chain if (found := _outlook(link)) is not None), Outlook.PASSING)
    retry_after_s = next((asked_s for link in chain if (asked_s := _retry_after_s(link)) is not None), None)
    return FailureCause(outlook, _text(chain), retry_after_s)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _outlook(error: BaseException) -> Outlook | None:
    """Return the outlook that an exception itself determines; None: look at the exception behind it."""
    code, status, name = _code(error), _status(error), type(error).__name__
    outlook: Outlook | None = None
    if code in _PASSING_CODES or name in _PASSING_NAMES:
        outlook = Outlook.PASSING
    elif (
        code in _MISSING_CODES
        or status in _MISSING_STATUSES
        or name in _MISSING_NAMES
        or isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError))
    ):
        outlook = Outlook.MISSING
    elif status is not None:
        refused = 400 <= status < 500 and status not in _PASSING_STATUSES
        outlook = Outlook.REFUSED if refused else Outlook.PASSING
    elif name in _REFUSED_NAMES or (type(error) is OSError and str(error).startswith("Forbidden: ")):
        # gcsfs reports status 403 in words only.
        outlook = Outlook.REFUSED
    elif isinstance(error, TransferError):
        outlook = Outlook.PASSING
    elif isinstance(error, _REFUSED_TYPES) and not (error.__cause__ or error.__context__):
        # A client that trips over a broken answer raises these too, with the connection's error behind them.
        outlook = Outlook.REFUSED
    return outlook


def _response(error: BaseException) -> Any:
    return getattr(error, "response", None)


def _code(error: BaseException) -> str:
    """Return the code of an S3 error as botocore reports it."""
    response = _response(error)
    if isinstance(response, Mapping):
        details = cast("Mapping[str, Any]", response).get("Error")
        if isinstance(details, Mapping):
            return str(cast("Mapping[str, Any]", details).get("Code", ""))
    return ""


def _status(error: BaseException) -> int | None:
    response = _response(error)
    if isinstance(response, Mapping):
        candidates = [_metadata(error).get("HTTPStatusCode")]
    else:
        candidates = [getattr(source, name, None) for source in (error, response) for name in _STATUS_NAMES]
    return next((int(value) for value in candidates if isinstance(value, (int, str)) and _is_status(value)), None)


_STATUS_NAMES = ("status", "status_code", "code")


def _is_status(value: int | str) -> bool:
    return not isinstance(value, bool) and str(value).isdecimal() and 100 <= int(value) < 600


def _metadata(error: BaseException) -> Mapping[str, Any]:
    response = _response(error)
    found: Any = cast("Mapping[str, Any]", response).get("ResponseMetadata") if isinstance(response, Mapping) else None
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
            status = _status(error)
            prefix = f"status {status}, " if status is not None and str(status) not in words else ""
            return f"{prefix}{type(error).__name__}: {words}"
    return type(first).__name__

import asyncio
import errno
import json
import socket
import time
from email.utils import formatdate

import pytest

from fkat_data.streaming.store.causes import Outlook, cause_of
from fkat_data.streaming.store.client import ChangedError, ContentError, StatusError, TransferError


def client_error(status, code, **headers):
    exceptions = pytest.importorskip("botocore.exceptions")
    response = {
        "Error": {"Code": code, "Message": "words"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    return exceptions.ClientError(response, "GetObject")


def named(name, base=Exception, **attributes):
    """Return an error as a library that need not be installed raises it."""
    error = type(name, (base,), {})("words")
    vars(error).update(attributes)
    return error


def caused(error, cause):
    error.__cause__ = cause
    return error


class Response:
    def __init__(self, status_code):
        self.status_code = status_code


PASSING, MISSING, REFUSED = Outlook.PASSING, Outlook.MISSING, Outlook.REFUSED
CASES = {
    "500": (lambda: StatusError(500, ""), PASSING),
    "503": (lambda: StatusError(503, ""), PASSING),
    "429": (lambda: StatusError(429, ""), PASSING),
    "408": (lambda: StatusError(408, ""), PASSING),
    "404": (lambda: StatusError(404, ""), MISSING),
    "410": (lambda: StatusError(410, ""), MISSING),
    "403": (lambda: StatusError(403, ""), REFUSED),
    "401": (lambda: StatusError(401, ""), REFUSED),
    "400": (lambda: StatusError(400, ""), REFUSED),
    "204": (lambda: StatusError(204, ""), PASSING),
    "short": (lambda: TransferError("short"), PASSING),
    "changed": (lambda: ChangedError("other"), PASSING),
    "content": (lambda: ContentError("sha256"), PASSING),
    "reset": (lambda: ConnectionResetError(errno.ECONNRESET, "reset"), PASSING),
    "refused connection": (lambda: ConnectionRefusedError(errno.ECONNREFUSED, "refused"), PASSING),
    "unknown host": (lambda: socket.gaierror(-2, "Name or service not known"), PASSING),
    "timeout": (TimeoutError, PASSING),
    "asyncio timeout": (asyncio.TimeoutError, PASSING),
    "no file": (lambda: FileNotFoundError("x"), MISSING),
    "a directory": (lambda: IsADirectoryError("x"), MISSING),
    "no permission": (lambda: PermissionError("x"), REFUSED),
    "answer that is no JSON": (lambda: json.JSONDecodeError("Extra data", "{}{}", 2), PASSING),
    "mistake": (lambda: TypeError("x"), REFUSED),
    "mistake because of a reset": (lambda: caused(ValueError("x"), ConnectionResetError()), PASSING),
    "os error because of 403": (lambda: caused(OSError("x"), StatusError(403, "")), REFUSED),
    "SlowDown": (lambda: client_error(503, "SlowDown"), PASSING),
    "RequestTimeout": (lambda: client_error(400, "RequestTimeout"), PASSING),
    "NoSuchKey": (lambda: client_error(404, "NoSuchKey"), MISSING),
    "NoSuchBucket": (lambda: client_error(404, "NoSuchBucket"), MISSING),
    "AccessDenied": (lambda: client_error(403, "AccessDenied"), REFUSED),
    "ExpiredToken": (lambda: client_error(400, "ExpiredToken"), REFUSED),
    "InternalError with 200": (lambda: client_error(200, "InternalError"), PASSING),
    "NoCredentialsError": (lambda: named("NoCredentialsError"), REFUSED),
    "obstore missing": (lambda: named("NotFoundError"), MISSING),
    "obstore denied": (lambda: named("PermissionDeniedError"), REFUSED),
    "obstore generic": (lambda: named("GenericError"), PASSING),
    "hub 404": (lambda: named("HfHubHTTPError", OSError, response=Response(404)), MISSING),
    "hub 429": (lambda: named("HfHubHTTPError", OSError, response=Response(429)), PASSING),
    "gcsfs 403 in words": (lambda: OSError("Forbidden: https://host/o/x\nno access"), REFUSED),
    "gcsfs 403": (lambda: named("HttpError", code="403"), REFUSED),
    "azure 503": (lambda: named("HttpResponseError", status_code=503), PASSING),
    "payload": (lambda: caused(named("ClientPayloadError"), named("ContentLengthError", code=400)), PASSING),
    "certificate": (lambda: named("ClientConnectorCertificateError"), REFUSED),
}


@pytest.mark.parametrize("case", CASES)
def test_what_an_error_means_does_not_depend_on_who_raises_it(case):
    make, outlook = CASES[case]
    assert cause_of(make()).outlook is outlook


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert "first" in cause_of(first).text


@pytest.mark.parametrize(
    ("error", "least_s", "most_s"),
    [
        (StatusError(429, "", "7"), 7, 7),
        # Far away: tests are collected long before they run.
        (StatusError(503, "", formatdate(time.time() + 100_000)), 50_000, 100_001),
        (StatusError(503, "", formatdate(time.time() - 3600)), 0, 0),
        (StatusError(503, "", "9" * 400), 1, 1e9),
        (client_error(503, "SlowDown", **{"retry-after": "3"}), 3, 3),
    ],
)
def test_a_request_for_time_is_understood(error, least_s, most_s):
    assert least_s <= cause_of(error).retry_after_s <= most_s


@pytest.mark.parametrize("header", ["", "soon", "-1", "1e9", "nan"])
def test_a_request_that_makes_no_sense_is_none(header):
    assert cause_of(StatusError(503, "", header)).retry_after_s is None


@pytest.mark.parametrize("error", [TimeoutError(), named("ClientPayloadError")])
def test_the_text_says_something(error):
    assert type(error).__name__ in cause_of(error).text

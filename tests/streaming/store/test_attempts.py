"""Which errors are tried again, after which waits, and how slow an attempt may be."""

import errno
import io
import json
import random
import signal
import socket
import time
from email.utils import formatdate
from functools import partial
from types import SimpleNamespace

import pytest
from scripted import ScriptedClient, store_of
from stored_files import info_of

from fkat_data.errors import ConfigurationError, DownloadError, ShardNotFoundError
from fkat_data.streaming.store import ChangedError, ContentError, StatusError, TransferError


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr(time, "sleep", found.append)
    monkeypatch.setattr(random.SystemRandom, "uniform", random.Random(0).uniform)
    return found


def tried(errors, num_retries=2, timeout_s=60.0):
    return store_of(ScriptedClient(errors, "done"), num_retries, timeout_s).version("x")


@pytest.mark.parametrize("num_retries", [0, 1, 2, 5])
def test_so_many_retries_follow_the_first_attempt(waits, num_retries):
    assert tried([StatusError(503, "")] * num_retries, num_retries) == "done"
    assert len(waits) == num_retries
    with pytest.raises(DownloadError, match="503") as caught:
        tried([StatusError(503, "")] * (num_retries + 1), num_retries)
    assert caught.value.num_attempts == num_retries + 1


def test_waits_double_up_to_a_limit_and_are_drawn(waits):
    tried([StatusError(503, "")] * 200, 200)
    assert all(0 <= wait_s <= min(10, 0.5 * 2.0**number) for number, wait_s in enumerate(waits))
    assert len(set(waits)) > 100


def test_a_server_that_asks_for_time_gets_it_within_reason(waits):
    tried([StatusError(429, "", "20"), StatusError(429, "", "1000")])
    assert waits == [20, 60]
    waits.clear()
    tried([StatusError(503, "")] * 2, timeout_s=0.01)
    assert max(waits) <= 0.01


@pytest.mark.parametrize("error", [ConfigurationError("x", 1, "2"), KeyboardInterrupt()], ids=repr)
def test_what_no_store_is_the_cause_of_is_raised_at_once(waits, error):
    with pytest.raises(type(error)):
        tried([error])
    assert waits == []


def test_an_alarm_that_was_taken_for_a_late_store_reaches_the_caller_and_is_not_retried(waits):
    def alarm(number, frame):
        raise TimeoutError("the caller's")

    class Alarmed(ScriptedClient):
        def version(self, name, timeout_s, *, is_timed=False):
            self.starts.append(0)
            try:
                signal.raise_signal(signal.SIGUSR1)
            except TimeoutError as error:
                raise TransferError("no answer within 60 s") from error

    client = Alarmed([])
    before = signal.signal(signal.SIGUSR1, alarm)
    try:
        with pytest.raises(TimeoutError, match="the caller's"):
            store_of(client).version("x")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(client.starts) == 1
    assert not waits


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


PASSING, MISSING, REFUSED = "tried again", ShardNotFoundError, DownloadError
STATUSES = {PASSING: (500, 503, 429, 408, 204), MISSING: (404, 410), REFUSED: (403, 401, 400)}
CASES = {
    **{
        str(status): (partial(StatusError, status, ""), outlook)
        for outlook, statuses in STATUSES.items()
        for status in statuses
    },
    "short": (lambda: TransferError("short"), PASSING),
    "changed": (lambda: ChangedError("other"), PASSING),
    "content": (lambda: ContentError("sha256"), PASSING),
    "reset": (lambda: ConnectionResetError(errno.ECONNRESET, "reset"), PASSING),
    "unknown host": (lambda: socket.gaierror(-2, "Name or service not known"), PASSING),
    "timeout": (TimeoutError, PASSING),
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
    "ExpiredToken": (lambda: client_error(400, "ExpiredToken"), REFUSED),
    "InternalError with 200": (lambda: client_error(200, "InternalError"), PASSING),
    "NoCredentialsError": (lambda: named("NoCredentialsError"), REFUSED),
    "obstore missing": (lambda: named("NotFoundError"), MISSING),
    "obstore denied": (lambda: named("PermissionDeniedError"), REFUSED),
    "obstore generic": (lambda: named("GenericError"), PASSING),
    "hub 404": (lambda: named("HfHubHTTPError", OSError, response=SimpleNamespace(status_code=404)), MISSING),
    "gcsfs 403 in words": (lambda: OSError("Forbidden: https://host/o/x\nno access"), REFUSED),
    "gcsfs 403": (lambda: named("HttpError", code="403"), REFUSED),
    "azure 503": (lambda: named("HttpResponseError", status_code=503), PASSING),
    "payload": (lambda: caused(named("ClientPayloadError"), named("ContentLengthError", code=400)), PASSING),
    "certificate": (lambda: named("ClientConnectorCertificateError"), REFUSED),
}


@pytest.mark.parametrize("case", CASES)
def test_what_an_error_means_does_not_depend_on_who_raises_it(waits, case):
    make, outlook = CASES[case]
    if outlook == PASSING:
        assert tried([make()]) == "done"
        return
    with pytest.raises(outlook) as caught:
        tried([make()])
    assert outlook is MISSING or (caught.value.is_refused and caught.value.num_attempts == 1)
    assert waits == []


@pytest.mark.parametrize(
    ("error", "least_s", "most_s"),
    [
        (StatusError(429, "", "7"), 7, 7),
        # Far away: tests are collected long before they run.
        (StatusError(503, "", formatdate(time.time() + 100_000)), 50_000, 100_001),
        (StatusError(503, "", formatdate(time.time() - 3600)), 0, 0.5),
        (StatusError(503, "", "9" * 400), 1, 1e9),
        (client_error(503, "SlowDown", **{"retry-after": "3"}), 3, 3),
        *((StatusError(503, "", header), 0, 0.5) for header in ("", "soon", "-1", "1e9", "nan")),
    ],
)
def test_a_request_for_time_is_understood_and_one_that_makes_no_sense_is_none(waits, error, least_s, most_s):
    tried([error], timeout_s=1e9)
    assert least_s <= waits[0] <= most_s


class Clock:
    """A clock that moves while a body is waited for, and a store with one file of such a body."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def received(self, steps, timeout_s):
        """Return how long a download took. Each step: bytes, seconds until they arrive, seconds that writing takes."""
        clock, steps, started_s = self, list(steps), self.now_s

        class Body:
            start, version, size_bytes = 0, "", sum(num_bytes for num_bytes, *_ in steps)

            def read(self, timeout_s):
                num_bytes, seconds, *_ = steps[0]
                clock.now_s += min(seconds, timeout_s)
                if seconds > timeout_s:
                    raise TimeoutError
                return bytes(num_bytes)

            def close(self):
                pass

        class Target(io.RawIOBase):
            def write(self, data):
                _, _, *busy = steps.pop(0)
                clock.now_s += sum(busy)
                return len(data)

        client = ScriptedClient([])
        client.open = lambda *_: Body()
        store_of(client, 0, timeout_s).download("x", Target(), info_of("x", bytes(Body.size_bytes)), None)
        return self.now_s - started_s


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("steps", "timeout_s", "text", "most_s"),
    [
        ([(MIB, 6), (MIB, 6)], 10, "1,048,576 bytes within 10 s", 10),
        ([(5, 1), (1, 1000)], 600, "no byte for 30 s, after 5 bytes", 31),
        ([(1, 1)] * 40, 600, "only 30 bytes in 30 s", 35),
    ],
    ids=["its time is over", "silence", "a trickle"],
)
def test_an_attempt_has_its_time_and_ends_earlier_without_bytes(clock, steps, timeout_s, text, most_s):
    with pytest.raises(DownloadError, match=text):
        clock.received(steps, timeout_s)
    assert clock.now_s - 100 <= most_s


@pytest.mark.parametrize(
    ("steps", "timeout_s", "expected_s"),
    [
        ([(32 * MIB, 20), (32 * MIB, 20)] * 3, 60, 120),
        ([(70_000, 1)] * 300, 600, 300),
        ([(MIB, 1, 1000)] * 5, 10, 5005),
    ],
    ids=["as much for each further part", "a steady stream", "time for writing does not count"],
)
def test_what_comes_in_time_arrives(clock, steps, timeout_s, expected_s):
    assert clock.received(steps, timeout_s) == expected_s

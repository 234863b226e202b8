import signal

import pytest

from fkat_data.errors import ConfigurationError, DownloadError, ShardNotFoundError
from fkat_data.streaming.store import attempts
from fkat_data.streaming.store.attempts import FinalError, Redaction, with_attempts
from fkat_data.streaming.store.client import StatusError, TransferError


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr(attempts.time, "sleep", found.append)
    monkeypatch.setattr(attempts, "_FIRST_WAIT_S", 0.5)
    return found


def tried(errors, num_retries=2, timeout_s=60.0):
    script = iter(errors)

    def action():
        error = next(script, None)
        if error is not None:
            raise error
        return "done"

    return with_attempts(
        action, url="s3://b/x", num_retries=num_retries, timeout_s=timeout_s, redaction=Redaction("s3://b", {})
    )


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


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (StatusError(404, ""), ShardNotFoundError),
        (FileNotFoundError("x"), ShardNotFoundError),
        (StatusError(403, ""), DownloadError),
        (ConfigurationError("x", 1, "2"), ConfigurationError),
        (FinalError(OSError(28, "full")), OSError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_what_another_attempt_would_repeat_is_raised_at_once(waits, error, raised):
    with pytest.raises(raised):
        tried([error])
    assert waits == []


def test_an_alarm_that_was_taken_for_a_late_store_reaches_the_caller_and_is_not_retried(waits):
    def alarm(number, frame):
        raise TimeoutError("the caller's")

    calls = []

    def action():
        calls.append(None)
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeoutError as error:
            raise TransferError("no answer within 60 s") from error

    before = signal.signal(signal.SIGUSR1, alarm)
    try:
        with pytest.raises(TimeoutError, match="the caller's"):
            with_attempts(action, url="s3://b/x", num_retries=2, timeout_s=60.0, redaction=Redaction("s3://b", {}))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(calls) == 1
    assert not waits

from datetime import UTC, datetime, timedelta, timezone

import pytest

from fkat_data.streaming.store.client import joined_version, moment_of

MOMENT = datetime(2026, 3, 1, 12, 30, 5, 999, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, "tag"),
        ("Sun, 01 Mar 2026 12:30:05 GMT", "tag 2026-03-01T12:30:05+00:00"),
        (MOMENT, "tag 2026-03-01T12:30:05+00:00"),
        (MOMENT.replace(tzinfo=None), "tag 2026-03-01T12:30:05+00:00"),
        (MOMENT.astimezone(timezone(timedelta(hours=5))), "tag 2026-03-01T12:30:05+00:00"),
        ("yesterday", "tag yesterday"),
        ("the day before", "tag the_day_before"),
        (17.5, "tag 17.5"),
    ],
)
def test_a_time_is_the_same_text_whatever_client_tells_it(written, expected):
    assert joined_version("tag", written) == expected


def test_the_time_in_a_version_is_found():
    assert moment_of(joined_version("tag", "Sun, 01 Mar 2026 12:30:05 GMT")) == "2026-03-01T12:30:05+00:00"
    assert moment_of(joined_version("tag", "the day before")) == "the_day_before"
    assert moment_of(joined_version("tag", None)) == "tag"

"""Write Arrow times as text, to the nanosecond."""

import datetime as dt
from typing import Any

from fkat_data.requirement import required

__all__ = ["time_texts"]


def time_texts(types: Any, column: Any) -> list[str | None]:
    """Return the times of a column as text: ISO 8601, and durations such as ``1 day, 0:00:02.5``.

    Args:
        types: The module ``pyarrow.types``.
        column: A pyarrow array of dates, times, timestamps, durations or intervals.

    Raises:
        ValueError: A time is beyond the years 1 to 9999.
        OverflowError: A time is far beyond them.
        LookupError: The time zone is unknown.
    """
    if not str(column.type).startswith(("timestamp[ns", "time64[ns", "duration[ns")):
        return [None if value is None else _text(value) for value in column.to_pylist()]
    # pyarrow returns another type for nanoseconds if pandas is installed, and an error otherwise.
    whole = column.cast(required("pyarrow", "parquet").int64()).to_pylist()
    parts = [(None, 0) if value is None else divmod(value, 1_000) for value in whole]
    rounded = _in_microseconds(types, column.type, [part[0] for part in parts])
    return [None if value is None else _fine_text(value, part[1]) for value, part in zip(rounded, parts, strict=True)]


def _in_microseconds(types: Any, kind: Any, counts: list[int | None]) -> list[Any]:
    arrow = required("pyarrow", "parquet")
    if types.is_timestamp(kind):
        coarse = arrow.timestamp("us", kind.tz)
    else:
        coarse = arrow.time64("us") if types.is_time(kind) else arrow.duration("us")
    return arrow.array(counts, arrow.int64()).cast(coarse).to_pylist()


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, (dt.date, dt.time)) else str(value)


def _fine_text(value: Any, nanoseconds: int) -> str:
    if not nanoseconds:
        return _text(value)
    if isinstance(value, dt.timedelta):
        return f"{value}{'' if value.microseconds else '.000000'}{nanoseconds:03}"
    if isinstance(value, dt.time):
        return f"{value.isoformat('microseconds')}{nanoseconds:03}"
    local = value.replace(tzinfo=None)
    zone = value.isoformat()[len(local.isoformat()) :]
    return f"{local.isoformat(timespec='microseconds')}{nanoseconds:03}{zone}"

"""Limits of Python and of libraries: what exceeds one is no damage, and fetching the file again would not help."""

from collections.abc import Iterator

from fkat_data.errors import FkatDataError, ShardCorruptError, ValueLimitError
from fkat_data.files.opening import shown_path


class BeyondLimitError(ValueError):
    """A value is sound, and of a kind that is not decoded here. The message says which."""


def limit_of(error: BaseException) -> str | None:
    """Return what a value has too much of, and what would do; None: the error is not one of a limit."""
    for cause in _causes(error):
        if isinstance(cause, BeyondLimitError):
            return str(cause)
        if isinstance(cause, RecursionError):
            return "it is nested more deeply than Python reads"
        if "set_int_max_str_digits" in str(cause):
            return "an integer has more digits than Python reads; sys.set_int_max_str_digits() sets how many it does"
        # By name: who reads no images needs no Pillow.
        if type(cause).__name__ == "DecompressionBombError":
            return "an image has more pixels than Pillow opens; PIL.Image.MAX_IMAGE_PIXELS sets how many it does"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def beyond_limit(path: str, location: str, limit: str) -> ValueLimitError:
    """Return the error of a value that exceeds a limit.

    Args:
        path: The file.
        location: Where the value is in it.
        limit: What ``limit_of`` returned.
    """
    return ValueLimitError(
        "file", shown_path(path), f"values within the limits of what reads them; {location}: {limit}"
    )


def bad_value(path: str, location: str, column: str, error: Exception) -> FkatDataError:
    """Return the error of a value of a decoded table that no value of Python is, such as a date after the year 9999.

    Args:
        path: The file.
        location: The row group and the row.
        column: The column.
        error: What the conversion raised.
    """
    if isinstance(error, UnicodeDecodeError):
        field = f"{location}, column {column!r}"
        return ShardCorruptError(path, f"{field}: {error}", field)
    expected = (
        f"columns whose values Python can hold; {location} of {shown_path(path)} has one that it cannot ({error})"
    )
    return ValueLimitError("columns", column, f"{expected}: choose the others with columns=[...]")

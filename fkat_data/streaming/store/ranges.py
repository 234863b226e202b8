"""Ask for a range of bytes, and read the Content-Range of the answer."""

import re

from fkat_data.streaming.store.client import ContentError

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


def range_header(start: int, stop: int | None) -> dict[str, str]:
    """Return the header that asks for the bytes from ``start`` to ``stop``; none if those are all bytes."""
    if stop is not None:
        return {"Range": f"bytes={start}-{stop - 1}"}
    return {"Range": f"bytes={start}-"} if start else {}


def content_range(header: str) -> tuple[int, int | None]:
    """Return the index of the first byte, and the size of the whole object; None if the header lacks it.

    Args:
        header: The value of Content-Range.

    Raises:
        ContentError: The header is malformed.
    """
    found = _CONTENT_RANGE.fullmatch(header.strip())
    if found is None or int(found[1]) > int(found[2]):
        raise ContentError(f"Content-Range is {header[:100]!r}: expected first-last/size")
    return int(found[1]), None if found[3] == "*" else int(found[3])

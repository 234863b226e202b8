"""The interface of a store's client: one request at a time, of a range, with a time limit, tried once; and how slow it may be."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple, Protocol, TypeVar

from fkat_data.runtime.interruption import genuine
from fkat_data.storage.attempts import PART_BYTES, ContentError, TransferError


class ListedFile(NamedTuple):
    """A file as its directory lists it.

    Attributes:
        name: The file, relative to the directory, with slashes.
        size_bytes: Its size.
        version: The directory's name for its content, such as an ETag or a time; "" if it has none.
    """

    name: str
    size_bytes: int
    version: str


class Body(Protocol):
    """The bytes of an object while they arrive. One thread uses it at a time."""

    @property
    def start(self) -> int:
        """The index of the first byte that arrives: the requested one, or 0."""
        ...

    @property
    def size_bytes(self) -> int | None:
        """The size of the whole object; None: the store does not report it."""
        ...

    @property
    def version(self) -> str:
        """The store's name for this content, such as its ETag; "" if it has none."""
        ...

    def read(self, timeout_s: float) -> bytes:
        """Return the next bytes; b"" at the end.

        Raises:
            TimeoutError: No byte arrived within ``timeout_s``.
            Exception: Whatever the client library raises.
        """
        ...

    def close(self) -> None:
        """Abandon the bytes that have not been read; returns at once."""
        ...


class Client(Protocol):
    """Access to one remote directory. Threads may share a client; a forked process makes its own."""

    def open(self, name: str, start: int, version: str, timeout_s: float, stop: int | None = None) -> Body:
        """Request an object from byte ``start`` on.

        Args:
            name: The object, relative to the directory.
            start: The first byte to send; a store without ranges sends all of them.
            version: The version of the bytes before ``start``.
            timeout_s: Seconds until the head of the answer must arrive.
            stop: The byte after the last one to send; None: all. A store without ranges sends more.

        Raises:
            TimeoutError: The head did not arrive in time.
            StatusError: The server answered with an error.
            Exception: Whatever the client library raises.
        """
        ...

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Return the version of an object without reading it. Raises what ``open`` raises.

        Args:
            name: The object.
            timeout_s: Seconds that the answer may take.
            is_timed: Whether the version includes the time of writing, so that equal content written again differs.
        """
        ...

    def listing(self, prefix: str, timeout_s: float) -> list[ListedFile]:
        """Return the files whose names begin with ``prefix``, in any order. Raises what ``open`` raises.

        Args:
            prefix: The beginning of the names, with slashes; "": all files of the directory, at any depth. A web
                server lists nothing: it knows the one file that ``prefix`` names.
            timeout_s: Seconds that each answer may take.
        """
        ...

    def close(self) -> None:
        """Close connections; returns at once."""
        ...


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


def joined_version(version: str, written: object) -> str:
    """Return one text of both, to the second, which is the same for every form of the time.

    Args:
        version: The store's name for the content.
        written: The time as a ``datetime``, in HTTP's form, or in the store's own; None: the store reports none.
    """
    if isinstance(written, str):
        try:
            written = parsedate_to_datetime(written)
        except genuine(ValueError):
            written = written.replace(" ", "_")
    if isinstance(written, datetime):
        moment = written if written.tzinfo else written.replace(tzinfo=UTC)
        return f"{version} {moment.astimezone(UTC).isoformat(timespec='seconds')}"
    return version if written is None else f"{version} {written}"


def moment_of(version: str) -> str:
    """Return the time in a version that includes the time of writing; the version itself if the store reports no time.

    Hosts of one store, and mounts of one directory, may name the same content differently; its time stays.
    """
    return version.rpartition(" ")[2]


_Answer = TypeVar("_Answer")

#: The longest time without a byte.
LONGEST_SILENCE_S = 30.0
_WINDOW_S = 30.0
_LEAST_BYTES_PER_S = 64 << 10


class SlowError(TransferError):
    """Too few bytes arrived in time."""


class TransferClock:
    """The clock of one attempt to fetch an object. It runs while the caller waits for the store, and stops while the caller writes.

    Args:
        timeout_s: Seconds in which the first 64 MiB must arrive; each further 64 MiB may take as long.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waited_s = 0.0
        self._num_bytes = 0
        self._window_starts_s = 0.0
        self._window_bytes = 0
        self._asked_at = time.monotonic()

    def opened(self, request: Callable[[float], _Answer]) -> _Answer:
        """Return the answer to a request, which gets the seconds that the store may be silent.

        Raises:
            SlowError: The answer did not arrive in time.
            Exception: Whatever the request raises.
        """
        try:
            answer = request(self.ask())
        except genuine(TimeoutError) as error:
            raise self.late() from error
        self.answered()
        return answer

    def next_bytes(self, body: Body) -> bytes:
        """Return the next bytes of a body; b"" at the end.

        Raises:
            SlowError: No byte arrived in time, or too few did.
            Exception: Whatever the client library raises.
        """
        try:
            chunk = body.read(self.ask())
        except genuine(TimeoutError) as error:
            raise self.late() from error
        self.answered(len(chunk))
        return chunk

    def ask(self) -> float:
        """Start the clock; return how many seconds the store may now be silent.

        Raises:
            SlowError: No time is left.
        """
        left_s = self._limit_s - self._waited_s
        if left_s <= 0:
            raise self.late()
        self._asked_at = time.monotonic()
        return min(left_s, LONGEST_SILENCE_S)

    def answered(self, num_bytes: int = 0) -> None:
        """Stop the clock and count the bytes that arrived.

        Raises:
            SlowError: They are too few for the time.
        """
        self._waited_s += time.monotonic() - self._asked_at
        self._num_bytes += num_bytes
        self._window_bytes += num_bytes
        window_s = self._waited_s - self._window_starts_s
        if window_s >= _WINDOW_S:
            if self._window_bytes < window_s * _LEAST_BYTES_PER_S:
                raise SlowError(f"only {self._window_bytes:,} bytes in {window_s:.0f} s")
            self._window_starts_s, self._window_bytes = self._waited_s, 0

    def late(self) -> SlowError:
        """Return the error for a store that stayed silent longer than ``ask`` allowed."""
        waited_s = self._waited_s + time.monotonic() - self._asked_at
        # A wait may return a moment early.
        if waited_s < self._limit_s - 0.01:
            return SlowError(f"no byte for {LONGEST_SILENCE_S:g} s, after {self._num_bytes:,} bytes")
        return SlowError(f"only {self._num_bytes:,} bytes within {self._limit_s:g} s (timeout_s for each 64 MiB)")

    @property
    def _limit_s(self) -> float:
        return self._timeout_s * (1 + self._num_bytes // PART_BYTES)

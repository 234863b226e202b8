"""Read a file of a store: the ranges that are asked for, several at once, and what lies ahead where reading is in order."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any, cast

from fkat_data.files.range_requests import MOST_AT_ONCE, Content, RangeRequests, Requests, Span
from fkat_data.observe.stages import reading
from fkat_data.runtime.background import BackgroundCall, in_parallel
from fkat_data.storage.store_errors import StoreCalls, settings_of, size_by_range

#: What fsspec's file systems implement to read a range of a file.
_REQUEST = "_fetch_range"
#: Requests of one file at a time.
_NUM_REQUESTS = 32
#: A longer range is fetched in several requests: one connection to a store often has a tenth of the link.
_LONGEST_REQUEST_BYTES = 8 << 20
#: What is fetched ahead of a reader that goes on in order, and the most of it by one request.
_AHEAD_BYTES, _PIECE_BYTES = 16 << 20, 4 << 20
_SMALLEST_PIECE_BYTES = 64 << 10
#: Requests under way, and their bytes, that were begun before they are read; and how long one waits to be read.
_MOST_BEGUN, _MOST_BEGUN_BYTES, _LONGEST_BEGUN_S = 256, 64 << 20, 30.0
#: How far a reader in order goes back: what it has got the beginning of, it reads again as a whole.
_OVERLAP_BYTES = 4 << 10


class RemoteFile:
    """An open file of a store. Threads may share it; forked children may not.

    It fetches what it is asked for, and reads ahead only where a request begins about where the one before ended: at
    most as much as was read in order until then.

    Args:
        file_system: The file system, of fsspec.
        name: The file's name there.
        uri: The file, for messages.
        is_chained: Whether the file system reads by another one, and may have a cache of its own.
        hop_bytes: A gap between two ranges that is smaller is read, too, unless it is larger than the second range.

    Raises:
        ShardNotFoundError: The file does not exist.
        IsADirectoryError: It is a folder.
        DownloadError: The store does not open it.

    Attributes:
        size_bytes: The size of the file when it was opened.
        details: What the store said of it then.
    """

    def __init__(self, file_system: Any, name: str, uri: str, *, is_chained: bool, hop_bytes: int) -> None:
        # Imported here, because only remote files need it and a worker must start quickly.
        from fsspec.spec import AbstractBufferedFile  # noqa: PLC0415 - see above

        self._calls = StoreCalls(uri, file_system.storage_options)
        with reading():
            self._file: Any
            self.size_bytes: int
            self._file, self.size_bytes = self._calls.made(lambda: _opened(file_system, name))
        details: Any = getattr(self._file, "details", None)
        self.details: Mapping[str, Any] = cast("Mapping[str, Any]", details) if isinstance(details, Mapping) else {}
        self._hop_bytes = hop_bytes
        # What each file of a store has below its cache: it compares the version, where the store can. A chain's is kept.
        has_ranges = not is_chained and isinstance(self._file, AbstractBufferedFile)
        self._request: Callable[[int, int], Any] = getattr(self._file, _REQUEST) if has_ranges else self._read_at
        # Other file systems share a connection, or a position.
        is_parallel = has_ranges and (getattr(file_system, "async_impl", False) or "hf" in file_system.protocol)
        self._num_requests = _NUM_REQUESTS if is_parallel else 1
        self._requests = RangeRequests.of(file_system, name, self.details) if has_ranges else None
        self._turn = nullcontext() if is_parallel else threading.Lock()
        self._order_lock = threading.Lock()
        self._last: Span | None = None
        self._ahead: _Ahead | None = None
        # What was begun to be read, and when; the last of it; and how much of it was read, and how much was not.
        self._begun: dict[tuple[Span, ...], tuple[float, Callable[[], list[Content]]]] = {}
        self._last_begun: Span | None = None
        self._num_used = self._num_unused = 0

    def read_in_order(self) -> None:
        """Read ahead from now on, at full length, from the first byte on."""
        with self._order_lock:
            self._ahead = _Ahead(self._fetched_alone, 0, self.size_bytes, _AHEAD_BYTES)

    def begin(self, spans: Sequence[Span]) -> None:
        """Ask for ranges that the next calls of ``read`` ask for, and do not wait for them.

        Nothing is done where reading is in order, which reads ahead by itself; or where much is under way.

        Raises:
            Exception: What the file system raises at once.
        """
        joined = tuple(joined_spans(spans, self._hop_bytes))
        if not joined or joined in self._begun:
            return
        before = [span for span in (self._last, self._last_begun) if span is not None]
        self._last_begun = joined[0][0], joined[-1][1]
        is_in_order = len(joined) == 1 and any(_follows(span, joined[0]) for span in before)
        if self._ahead is None and not is_in_order and self._has_room(joined):
            self._begun[joined] = time.monotonic(), self._sent(joined)

    def _has_room(self, joined: Sequence[Span]) -> bool:
        """Return whether more may be begun; forget what was begun for nothing."""
        oldest_s = time.monotonic() - _LONGEST_BEGUN_S
        for key, (began_s, _) in list(self._begun.items()):
            if began_s < oldest_s and self._begun.pop(key, None):
                self._num_unused += 1
        if self._num_unused > self._num_used:
            return False
        num_ranges = sum(min(len(key), MOST_AT_ONCE) for key in (joined, *self._begun))
        num_bytes = sum(stop - start for key in (joined, *self._begun) for start, stop in key)
        return num_ranges <= _MOST_BEGUN and num_bytes <= _MOST_BEGUN_BYTES

    def _sent(self, spans: Sequence[Span]) -> Callable[[], list[Content]]:
        """Return what returns the bytes of ranges, which are asked for now."""
        requests = _requests_of(spans)
        sent = None if self._requests is None else self._requests.begin(requests)
        if sent is not None:
            return lambda: _ranges_of(spans, self._received(requests, sent))
        return BackgroundCall(lambda: _ranges_of(spans, self._answers(requests))).result

    def read(self, spans: Sequence[Span], *, is_ahead: bool = False) -> list[Content]:
        """Return the bytes of ranges; fewer where the file has become shorter.

        Args:
            spans: The ranges.
            is_ahead: Whether the caller reads ahead itself, so that nothing else is to be fetched.

        Raises:
            DownloadError: The store does not deliver them.
        """
        joined = joined_spans(spans, self._hop_bytes)
        with reading():
            fetched = None if is_ahead else self._from_begun(joined) or self._from_ahead(joined)
            fetched = fetched or self._fetched(joined)
        if len(spans) == len(joined) == 1:
            return fetched
        return parts_of(joined, fetched, spans)

    def _from_begun(self, joined: Sequence[Span]) -> list[Content] | None:
        """Return ranges that were begun to be read; None: they were not."""
        _, result = self._begun.pop(tuple(joined), (0.0, None)) if self._begun else (0.0, None)
        if result is None:
            return None
        self._num_used += 1
        self._last = joined[0][0], joined[-1][1]
        return result()

    def _from_ahead(self, joined: Sequence[Span]) -> list[Content] | None:
        """Return ranges that continue what was read before; None: they do not."""
        if not joined or not self._order_lock.acquire(blocking=False):
            return None  # another thread reads in order
        try:
            start, stop = joined[0][0], joined[-1][1]
            num_bytes = sum(end - begin for begin, end in joined)
            if self._ahead is None or not self._ahead.reaches(start, stop, num_bytes):
                if self._ahead is not None:
                    self._ahead.close()
                is_next = len(joined) == 1 and self._last is not None and _follows(self._last, joined[0])
                self._ahead = _Ahead(self._fetched_alone, start, self.size_bytes) if is_next else None
                self._last = start, stop
            if self._ahead is None:
                return None
            is_over = True  # after an error, too
            try:
                found = [self._ahead.read(*span) for span in joined]
                is_over = stop >= self.size_bytes
                return found
            finally:
                if is_over:
                    self._ahead.close()
                    self._ahead = None
        finally:
            self._order_lock.release()

    def _read_at(self, start: int, stop: int) -> Any:
        self._file.seek(start)
        return self._file.read(stop - start)

    def _fetched_alone(self, start: int, stop: int) -> Content:
        return self._fetched([(start, stop)])[0]

    def _fetched(self, spans: Sequence[Span]) -> list[Content]:
        """Return what is stored in ranges, several at once."""
        return _ranges_of(spans, self._answers_of(_requests_of(spans)))

    def _answers_of(self, requests: Sequence[Span]) -> list[Content]:
        """Return what is stored in ranges; what is not sent at once, fsspec asks for, which retries and says what is wrong."""
        sent = None if self._requests is None else self._requests.begin(requests)
        return self._answers(requests) if sent is None else self._received(requests, sent)

    def _received(self, requests: Sequence[Span], sent: Requests) -> list[Content]:
        found = sent.contents()
        missing = [request for request, content in zip(requests, found, strict=True) if content is None]
        if not missing:
            return cast("list[Content]", found)
        others = iter(self._answers(missing))
        if self._requests is not None and sent.is_refused:
            self._requests.refuse()
            self._requests = None
        return [next(others) if content is None else content for content in found]

    def _answers(self, requests: Sequence[Span]) -> list[Content]:
        if self._num_requests == 1 or len(requests) == 1:
            return [self._answer(*request) for request in requests]
        return in_parallel(lambda request: self._answer(*request), requests, self._num_requests)

    def _answer(self, start: int, stop: int) -> Content:
        parts: list[Content] = []
        while start < stop:
            part = self._calls.made(lambda start=start: self._asked_for(start, stop), num_bytes=stop - start)
            if not part:
                break
            parts.append(part)
            start += len(part)
        return _joined(parts)

    def _asked_for(self, start: int, stop: int) -> bytes:
        with self._turn:
            part = bytes(self._request(start, stop))
        if len(part) > stop - start:
            raise OSError(f"the store sent {len(part):,} bytes for the {stop - start:,} from byte {start:,} on")
        return part


def _opened(file_system: Any, name: str) -> tuple[Any, int]:
    """Return an open file of a file system, and its size."""
    settings = settings_of(file_system)
    file: Any = file_system.open(name, "rb", **settings)
    if "http" in file_system.protocol and getattr(file, "size", 0) is None:
        size_bytes = size_by_range(file_system, name)
        if size_bytes:
            file.close()
            file = file_system.open(name, "rb", size=size_bytes, **settings)
        elif size_bytes == 0:
            return file, 0
    return file, file.seek(0, os.SEEK_END)


class _Ahead:
    """The bytes ahead of a reader that goes on in order, fetched in the background; for one thread at a time.

    Args:
        fetch: Returns the bytes from one offset to another.
        start: Where the reader is.
        size_bytes: The size of the file.
        ahead_bytes: How much is fetched ahead; it grows with what is read.
    """

    def __init__(self, fetch: Callable[[int, int], Content], start: int, size_bytes: int, ahead_bytes: int = 0) -> None:
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._ahead_bytes = ahead_bytes
        self._next = start
        self._pieces: deque[_Piece] = deque()

    def reaches(self, start: int, stop: int, num_bytes: int) -> bool:
        """Return whether ranges begin in what was fetched, or a little behind it, and end not far behind it.

        Args:
            start: The first byte of the first range.
            stop: The end of the last one.
            num_bytes: The bytes of all.
        """
        begin = self._pieces[0].start if self._pieces else self._next
        near = max(self._ahead_bytes, num_bytes)
        return begin <= start <= self._next + near and stop <= self._next + 2 * near

    def read(self, start: int, stop: int) -> Content:
        """Return the bytes of a range, and fetch what is behind it."""
        stop = min(stop, self._size_bytes)
        self._ahead_bytes = min(_AHEAD_BYTES, self._ahead_bytes + stop - start)
        parts: list[Content] = []
        while start < stop:
            while self._pieces and self._pieces[0].stop <= start:
                self._pieces.popleft().drop()
            if not self._pieces:
                self._next = start
            self._begin(start, min(stop, start + self._ahead_bytes))
            parts.append(self._pieces[0].part(start, stop))
            start = self._pieces[0].stop
        return _joined(parts)

    def close(self) -> None:
        """Release what was fetched, and what is still to come."""
        for piece in self._pieces:
            piece.drop()
        self._pieces.clear()

    def _begin(self, start: int, needed: int) -> None:
        """Begin to fetch what lies ahead; what is not needed yet, in pieces of one size alone."""
        size = min(_PIECE_BYTES, max(self._ahead_bytes // 4, min(self._ahead_bytes, _SMALLEST_PIECE_BYTES)))
        end = min(needed + self._ahead_bytes, start + 2 * _AHEAD_BYTES, self._size_bytes)
        while self._next < end and (self._next < needed or self._next + size <= end or end == self._size_bytes):
            stop = min(self._next + size, self._size_bytes)
            self._pieces.append(_Piece(self._fetch, self._next, stop))
            self._next = stop


class _Piece:
    """A part of a file that is fetched in the background."""

    def __init__(self, fetch: Callable[[int, int], Content], start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self._call = BackgroundCall(lambda: fetch(start, stop))
        self._content: Content | None = None

    def part(self, start: int, stop: int) -> Content:
        """Return what of it lies between two offsets, once it is there."""
        if self._content is None:
            self._content = self._call.result()
        begin, end = max(start, self.start) - self.start, min(stop, self.stop) - self.start
        return self._content if (begin, end) == (0, len(self._content)) else self._content[begin:end]

    def drop(self) -> None:
        """Release it, also if it is still to come."""
        self._call.drop()


def _follows(last: Span, span: Span) -> bool:
    """Return whether a range goes on about where the last one ended."""
    size = last[1] - last[0]
    is_behind = last[1] - min(size // 2, _OVERLAP_BYTES) <= span[0] and last[1] < span[1]
    return is_behind and span[0] <= last[1] + max(size, span[1] - span[0])


def joined_spans(spans: Sequence[Span], hop_bytes: int) -> list[Span]:
    """Return ranges that have all bytes of the given ones, in the order of the file.

    Two are joined where the gap between them is small, and no larger than the second: together, at most twice the bytes
    are fetched.
    """
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start - joined[-1][1] <= min(hop_bytes, stop - start):
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        elif start < stop:
            joined.append((start, stop))
    return joined


def parts_of(joined: Sequence[Span], contents: Sequence[Content], spans: Sequence[Span]) -> list[Content]:
    """Return the bytes of ranges, from those of the ranges that they were joined to."""
    found: dict[Span, Content] = {}
    number = 0
    for span in sorted(set(spans), key=itemgetter(0)):
        start, stop = span
        while number < len(joined) - 1 and joined[number][1] < stop:
            number += 1
        first = joined[number][0] if joined else 0
        found[span] = contents[number][start - first : stop - first] if start < stop else b""
    return [found[span] for span in spans]


def _requests_of(spans: Sequence[Span]) -> list[Span]:
    """Return the requests for ranges: several for a long one."""
    return [
        (begin, min(stop, begin + _LONGEST_REQUEST_BYTES))
        for start, stop in spans
        for begin in range(start, stop, _LONGEST_REQUEST_BYTES)
    ]


def _ranges_of(spans: Sequence[Span], answers: Sequence[Content]) -> list[Content]:
    """Return the bytes of ranges, from the answers to their requests."""
    contents = iter(answers)
    return [_joined([next(contents) for _ in range(start, stop, _LONGEST_REQUEST_BYTES)]) for start, stop in spans]


def _joined(parts: list[Content]) -> Content:
    return parts[0] if len(parts) == 1 else b"".join(parts)

"""Errors of stores, as errors of this library that name the file; and files of stores that have no ranges."""

import io
import re
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from fkat_data.errors import ConfigurationError, DownloadError, FkatDataError, ShardNotFoundError
from fkat_data.errors.wording import without_secrets
from fkat_data.runtime.background import in_loop
from fkat_data.runtime.interruption import is_interruption, suppress

_HTTP = "http"
#: Seconds without a byte after which a server that sends a file in order is given up.
_LONGEST_SILENCE_S = 60.0
#: What fsspec says of a server that sends a file whole, whatever range it is asked for.
_WITHOUT_RANGES = ("range requests", "seek streaming")
_LONGEST_MESSAGE = 500
_STATUSES_REFUSED = (401, 403)
#: Answers to a request for a range: the whole file, the range, and that the file does not reach so far.
_WHOLE, _OF_RANGES = 200, (206, 416)
_TOTAL = re.compile(r"bytes (?:[0-9]+-[0-9]+|\*)/([0-9]+)", re.IGNORECASE)


class NoRangesError(ConfigurationError):
    """A server sends a file from its first byte on alone, and a reader needs other bytes."""

    @classmethod
    def of(cls, uri: str) -> "NoRangesError":
        """Return the error of a file."""
        expected = (
            "a file of a server that answers requests for ranges (Accept-Ranges: bytes): this one sends files from the "
            "first byte on alone, which fkat_data.datasets.JsonDataset and IterableJsonDataset can read; download the "
            "file, and pass its path"
        )
        return cls("path", without_secrets(uri), expected)


class store_errors:  # noqa: N801 - a context, as those of contextlib
    """A context in which a store is asked for a file: whatever it raises becomes an error that names the file.

    Args:
        uri: The file.

    Raises:
        Exception: What ``store_error`` returns. What a signal's handler raises passes as it is, and so do errors of this
            library, those that name a folder, and a ``MemoryError``.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._started_at = 0.0

    def __enter__(self) -> None:
        self._started_at = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del kind, traceback
        if isinstance(error, Exception) and not isinstance(error, _PASSING) and not is_interruption(error):
            raise store_error(self._uri, error, time.monotonic() - self._started_at) from error


_PASSING = (FkatDataError, IsADirectoryError, MemoryError)


def store_error(uri: str, error: Exception, spent_s: float = 0.0) -> FkatDataError:
    """Return the error of this library for one of a store, without what may be secret in the URI.

    Args:
        uri: The file.
        error: What the store has raised.
        spent_s: Seconds until then.

    Returns:
        A ``ShardNotFoundError``; a ``NoRangesError``, if the server has no ranges; a ``DownloadError`` otherwise.
    """
    shown = without_secrets(uri)
    text = " ".join(str(error).replace(uri, shown).split())
    if isinstance(error, FileNotFoundError):
        return ShardNotFoundError(shown, "no such file")
    if isinstance(error, io.UnsupportedOperation) or (
        isinstance(error, ValueError) and any(words in text for words in _WITHOUT_RANGES)
    ):
        return NoRangesError.of(uri)
    text = text[:_LONGEST_MESSAGE]
    cause = f"{type(error).__name__}: {text}" if text else type(error).__name__
    is_refused = isinstance(error, PermissionError) or getattr(error, "status", None) in _STATUSES_REFUSED
    return DownloadError(shown, [(cause, spent_s)], is_refused)


def settings_of(file_system: Any) -> dict[str, Any]:
    """Return how a file of a file system is opened: of a web server as it is, without a Content-Encoding."""
    if _HTTP not in file_system.protocol:
        return {}
    headers: Mapping[str, str] = file_system.kwargs.get("headers") or {}
    return {"headers": {"Accept-Encoding": "identity", **headers}}


def size_by_range(file_system: Any, name: str) -> int | None:
    """Return the size of a file of a web server that tells it in answers to requests for ranges alone.

    Args:
        file_system: Its file system, of fsspec.
        name: Its name there.

    Returns:
        The size; None: the server has no ranges, or does not tell it.
    """
    settings: dict[str, Any] = {**file_system.kwargs, **settings_of(file_system)}
    settings["headers"] = {**settings["headers"], "Range": "bytes=0-0"}

    async def asked() -> int | None:
        session = await file_system.set_session()
        async with session.get(file_system.encode_url(name), **settings) as answer:
            if answer.headers.get("Content-Encoding", "identity") not in ("", "identity"):
                return None
            if answer.status == _WHOLE:  # there is no first byte in an empty file
                return 0 if answer.headers.get("Content-Length") == "0" else None
            total = _TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
            return int(total[1]) if total and answer.status in _OF_RANGES else None

    with suppress(Exception):  # what is wrong, the requests that follow say
        return in_loop(file_system.loop, asked(), _LONGEST_SILENCE_S)
    return None


def read_in_order(uri: str, file_system: Any, name: str, start: int, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a file of a server without ranges, from one on, by a single request.

    Args:
        uri: The file, for messages.
        file_system: Its file system, of fsspec.
        name: Its name there.
        start: The first byte that is yielded; those before are read and dropped.
        chunk_bytes: The most bytes that are read at a time.

    Raises:
        DownloadError: The server does not deliver them.
        ShardNotFoundError: There is no such file.
    """
    settings: dict[str, Any] = settings_of(file_system)
    if _HTTP in file_system.protocol:
        from aiohttp import ClientTimeout  # noqa: PLC0415 - only web servers need it

        # By default, a request ends after five minutes, however large its answer is.
        timeout = ClientTimeout(total=None, sock_connect=_LONGEST_SILENCE_S, sock_read=_LONGEST_SILENCE_S)
        # With a size, fsspec does not ask for it: its own timeout has this name, too.
        settings |= {"block_size": 0, "size": 1, "timeout": timeout}
    with store_errors(uri):
        file = file_system.open(name, "rb", **settings)
    try:
        while True:
            with store_errors(uri):
                chunk: bytes = file.read(chunk_bytes)
            if not chunk:
                return
            left, start = chunk[start:], max(0, start - len(chunk))
            if left:
                yield left
    finally:
        file.close()

"""Calls of fsspec's file systems, in attempts that end in errors that name the file; and files of stores that have no ranges."""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from fkat_data.errors import ConfigurationError, DownloadError, ShardNotFoundError
from fkat_data.errors.wording import without_secrets
from fkat_data.runtime.background import in_loop, in_thread
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.storage.attempts import PART_BYTES, FinalError, Redaction, TransferError, with_attempts

_Result = TypeVar("_Result")

NUM_RETRIES, TIMEOUT_S = 2, 60.0
"""Attempts after a failed one, and seconds for each 64 MiB of one: as streams have by default."""

_HTTP = "http"
#: Seconds without a byte after which a server that sends a file in order is given up.
_LONGEST_SILENCE_S = 60.0
#: What fsspec says of a server that sends a file whole, whatever range it is asked for.
_WITHOUT_RANGES = ("range requests", "seek streaming")
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


class StoreCalls:
    """Calls of a store's client for one file or folder: each over as many attempts as a stream makes, within as much time.

    Args:
        uri: The file or the folder.
        options: The options of its file system, of which messages show no secrets.
    """

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        self._uri = uri
        self._redaction = Redaction(uri, options)

    def made(
        self,
        call: Callable[[], _Result],
        *,
        num_bytes: int = 0,
        has_limit: bool = True,
        num_retries: int | None = None,
        passing: tuple[type[Exception], ...] = (),
    ) -> _Result:
        """Return what a call returns.

        Args:
            call: The call.
            num_bytes: How many bytes it asks for.
            has_limit: Whether each attempt is given up after a minute for each 64 MiB; its thread is left behind.
            num_retries: How often a failed attempt is followed by another one; None: as often as of a stream.
            passing: Errors that reach the caller as they are, like those that name a folder, and a ``MemoryError``.

        Raises:
            ShardNotFoundError: There is no such file.
            NoRangesError: The server has no ranges.
            DownloadError: Each attempt failed, or one failed in a way that another would repeat.
            Exception: An error of this library, or what a signal's handler has raised.
        """
        limit_s = TIMEOUT_S * (1 + num_bytes // PART_BYTES)

        failed: list[Exception] = []

        def attempt() -> _Result:
            try:
                return in_thread(call, limit_s) if has_limit else call()
            except genuine(Exception) as error:
                if isinstance(error, (IsADirectoryError, MemoryError, *passing)):
                    raise FinalError(error) from error
                if isinstance(error, io.UnsupportedOperation) or (
                    isinstance(error, ValueError) and any(words in str(error) for words in _WITHOUT_RANGES)
                ):
                    raise NoRangesError.of(self._uri) from error
                failed[:] = [error]
                if isinstance(error, TimeoutError):
                    raise TransferError(f"no answer within {limit_s:g} s") from error
                raise

        try:
            return with_attempts(
                attempt,
                url=without_secrets(self._uri),
                num_retries=NUM_RETRIES if num_retries is None else num_retries,
                timeout_s=limit_s,
                redaction=self._redaction,
            )
        except genuine(DownloadError, ShardNotFoundError) as error:
            if failed and failed[0] is not error:
                raise error from failed.pop()  # where the client's code has failed
            raise


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
    calls = StoreCalls(uri, file_system.storage_options)
    file = calls.made(lambda: file_system.open(name, "rb", **settings))
    try:
        # Behind another attempt, there might be another content.
        while chunk := calls.made(lambda: bytes(file.read(chunk_bytes)), has_limit=False, num_retries=0):
            left, start = chunk[start:], max(0, start - len(chunk))
            if left:
                yield left
    finally:
        file.close()

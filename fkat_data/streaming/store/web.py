"""Read objects of a web server, over aiohttp."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import fsspec

from fkat_data.background import in_loop
from fkat_data.requirement import required
from fkat_data.streaming.store.client import ChangedError, ListedFile, StatusError, TransferError
from fkat_data.streaming.store.pace import LONGEST_SILENCE_S
from fkat_data.streaming.store.ranges import content_range, range_header
from fkat_data.streaming.store.timed import joined_version

__all__ = ["WebClient"]

#: The most bytes that are lost when a connection breaks.
_BUFFER_BYTES = 128 << 10
_NO_SUCH_METHOD = (405, 501)
_RANGE_FAILED = (412, 416)
_NO_SUCH_FILE = 404


class WebClient:
    """A directory of a web server.

    fsspec's file system makes the connections, so that its options hold. This client sends the requests itself,
    because it needs the headers of the answers.

    Args:
        url: The directory; its query, such as a signature, goes with each request.
        options: The options of fsspec's ``HTTPFileSystem``.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._aiohttp = required("aiohttp", "http")
        # Bytes are compared as the store has them: a Content-Encoding stays.
        client_kwargs = {"auto_decompress": False, **options.get("client_kwargs", {})}
        given = {**options, "client_kwargs": client_kwargs, "use_listings_cache": False, "skip_instance_cache": True}
        self._filesystem: Any = fsspec.filesystem("http", **given)
        self._loop: asyncio.AbstractEventLoop = self._filesystem.loop
        self._url = url
        self._session: Any = None
        self._session_lock = asyncio.Lock()
        timeout = self._aiohttp.ClientTimeout(
            total=None, sock_connect=LONGEST_SILENCE_S, sock_read=LONGEST_SILENCE_S + 1
        )
        request: dict[str, Any] = {**self._filesystem.kwargs}
        self._headers = {"Accept-Encoding": "identity", **(request.pop("headers", None) or {})}
        self._request = {"timeout": timeout, "read_bufsize": _BUFFER_BYTES} | request

    def open(self, name: str, start: int, version: str, timeout_s: float, stop: int | None = None) -> "_WebBody":
        """Send a GET request; see ``Client``."""
        return in_loop(self._loop, self._open(name, start, version, stop), timeout_s)

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Send a HEAD request, or GET if the server refuses HEAD; see ``Client``."""
        return in_loop(self._loop, self._version(name, is_timed), timeout_s)

    def listing(self, prefix: str, timeout_s: float) -> list[ListedFile]:
        """Return the one file that ``prefix`` names, by a HEAD request; see ``Client``."""
        if not prefix or prefix.endswith("/"):
            return []
        return in_loop(self._loop, self._listing(prefix), timeout_s)

    def close(self) -> None:
        """Close idle connections; see ``Client``."""
        if self._session is not None:
            asyncio.run_coroutine_threadsafe(self._session.close(), self._loop)

    async def _open(self, name: str, start: int, version: str, stop: int | None) -> "_WebBody":
        headers = range_header(start, stop)
        if start and version:
            headers["If-Range"] = version
        response = await self._send("GET", name, headers)
        try:
            if headers and response.status in _RANGE_FAILED:
                raise ChangedError(f"status {response.status} for bytes from {start:,}")
            if response.status not in (200, 206):
                raise _status_error(response)
            return _WebBody(self._loop, response)
        except BaseException:
            response.close()
            raise

    async def _version(self, name: str, is_timed: bool) -> str:
        response = await self._send("HEAD", name, {})
        if response.status in _NO_SUCH_METHOD:
            response.close()
            response = await self._send("GET", name, {"Range": "bytes=0-0"})
        try:
            if response.status not in (200, 206):
                raise _status_error(response)
            return (
                joined_version(_version(response), response.headers.get("Last-Modified"))
                if is_timed
                else _version(response)
            )
        finally:
            response.close()

    async def _listing(self, name: str) -> list[ListedFile]:
        response = await self._send("HEAD", name, {})
        try:
            if response.status == _NO_SUCH_FILE:
                return []
            if response.status not in (200, 206):
                raise _status_error(response)
            size_bytes = response.headers.get("Content-Length", "")
            if not size_bytes.isdecimal():
                raise TransferError("the server reports no size of the file")
            return [ListedFile(name, int(size_bytes), _version(response))]
        finally:
            response.close()

    async def _send(self, method: str, name: str, headers: Mapping[str, str]) -> Any:
        async with self._session_lock:
            self._session = await self._filesystem.set_session()
        url = self._filesystem.encode_url(_joined(self._url, name))
        try:
            return await self._session.request(
                method, url, **{"allow_redirects": True, **self._request, "headers": {**self._headers, **headers}}
            )
        except self._aiohttp.ClientResponseError as error:
            # aiohttp invents the status of this error; a server's own status raises nothing.
            raise TransferError(f"the server sent a malformed answer: {error.message}") from error


class _WebBody:
    def __init__(self, loop: asyncio.AbstractEventLoop, response: Any) -> None:
        self._loop = loop
        self._response = response
        self.version = _version(response)
        self.start, self.size_bytes = 0, response.content_length
        if response.status == 206:
            self.start, self.size_bytes = content_range(response.headers.get("Content-Range", ""))

    def read(self, timeout_s: float) -> bytes:
        return in_loop(self._loop, self._response.content.readany(), timeout_s)

    def close(self) -> None:
        # A connection that was read to its end is back in the pool, and this does nothing.
        self._loop.call_soon_threadsafe(self._response.close)


def _joined(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}", fragment=""))


def _status_error(response: Any) -> StatusError:
    return StatusError(response.status, response.reason or "", response.headers.get("Retry-After", ""))


def _version(response: Any) -> str:
    return response.headers.get("ETag") or response.headers.get("Last-Modified") or ""

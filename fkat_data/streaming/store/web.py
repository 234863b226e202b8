"""Read objects of a web server, over aiohttp."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import fsspec

from fkat_data.errors import ConfigurationError
from fkat_data.errors.wording import without_secrets
from fkat_data.runtime.background import in_loop
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import required
from fkat_data.storage.attempts import ChangedError, StatusError, TransferError
from fkat_data.streaming.store.client import LONGEST_SILENCE_S, ListedFile, content_range, joined_version, range_header

#: The most bytes that are lost when a connection breaks.
_BUFFER_BYTES = 128 << 10


class WebSession:
    """The connections of a process to web servers. fsspec's file system makes them, so that its options hold.

    Args:
        options: The options of fsspec's ``HTTPFileSystem``.
        extra: The extra of this package that installs aiohttp, for the error where it is missing.

    Attributes:
        loop: The event loop of all requests, which another thread runs.
    """

    def __init__(self, options: Mapping[str, Any], extra: str = "http") -> None:
        self._aiohttp = required("aiohttp", extra)
        # Bytes are compared as the store has them: a Content-Encoding stays.
        client_kwargs = {"auto_decompress": False, **options.get("client_kwargs", {})}
        given = {**options, "client_kwargs": client_kwargs, "use_listings_cache": False, "skip_instance_cache": True}
        self._filesystem: Any = fsspec.filesystem("http", **given)
        self.loop: asyncio.AbstractEventLoop = self._filesystem.loop
        self._session: Any = None
        self._lock = asyncio.Lock()
        timeout = self._aiohttp.ClientTimeout(
            total=None, sock_connect=LONGEST_SILENCE_S, sock_read=LONGEST_SILENCE_S + 1
        )
        request: dict[str, Any] = {**self._filesystem.kwargs}
        self._headers = {"Accept-Encoding": "identity", **(request.pop("headers", None) or {})}
        self._request = {"timeout": timeout, "read_bufsize": _BUFFER_BYTES} | request

    async def send(self, method: str, url: str, headers: Mapping[str, str], **settings: Any) -> Any:
        """Send a request and return the response, whose body has not been read.

        Args:
            method: The HTTP method.
            url: The URL.
            headers: More headers than those of the options.
            **settings: More settings of aiohttp's request.

        Raises:
            TransferError: The server's answer is malformed.
            Exception: Whatever aiohttp raises.
        """
        async with self._lock:
            self._session = await self._filesystem.set_session()
        given: dict[str, Any] = {
            "allow_redirects": True,
            **self._request,
            **settings,
            "headers": {**self._headers, **headers},
        }
        try:
            return await self._session.request(method, self._filesystem.encode_url(url), **given)
        except genuine(self._aiohttp.ClientResponseError) as error:
            # aiohttp invents the status of this error; a server's own status raises nothing.
            raise TransferError(f"the server sent a malformed answer: {error.message}") from error

    def close(self) -> None:
        """Close idle connections; returns at once."""
        if self._session is not None:
            asyncio.run_coroutine_threadsafe(self._session.close(), self.loop)


class WebBody:
    """The body of a response; see ``Body``.

    Args:
        loop: The event loop of the response.
        response: A response with status 200 or 206.
        version: The version of the content.

    Raises:
        ContentError: The Content-Range is malformed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, response: Any, version: str) -> None:
        self._loop = loop
        self._response = response
        self.version = version
        self.start: int = 0
        self.size_bytes: int | None = response.content_length
        self.encoding: str = response.headers.get("Content-Encoding", "")
        if response.status == 206:
            self.start, self.size_bytes = content_range(response.headers.get("Content-Range", ""))

    def read(self, timeout_s: float) -> bytes:
        """Return the next bytes; see ``Body``."""
        return in_loop(self._loop, self._response.content.readany(), timeout_s)

    def close(self) -> None:
        """Abandon the rest; see ``Body``."""
        # A connection that was read to its end is back in the pool, and this does nothing.
        self._loop.call_soon_threadsafe(self._response.close)


def content_version(response: Any) -> str:
    """Return the server's name for the content of a response; "" if it has none."""
    return response.headers.get("ETag") or response.headers.get("Last-Modified") or ""


def status_error(response: Any) -> StatusError:
    """Return the error for a response with an unexpected status."""
    return StatusError(response.status, response.reason or "", response.headers.get("Retry-After", ""))


#: What the names of compressed shards end with.
_COMPRESSED = (".br", ".bz2", ".gz", ".snappy", ".zstd", ".zst")
#: A server may lack HEAD, and the signature of a URL may be for GET alone.
_NOT_BY_HEAD = (400, 403, 405, 501)
_FIRST_BYTE = {"Range": "bytes=0-0"}
_RANGE_FAILED = (412, 416)
_NO_SUCH_FILE = 404


class WebClient:
    """A directory of a web server.

    It sends the requests itself, because it needs the headers of the answers.

    Args:
        url: The directory; its query, such as a signature, goes with each request.
        options: The options of fsspec's ``HTTPFileSystem``.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._session = WebSession(options)
        self._url = url

    def open(self, name: str, start: int, version: str, timeout_s: float, stop: int | None = None) -> WebBody:
        """Send a GET request; see ``Client``."""
        return in_loop(self._session.loop, self._open(name, start, version, stop), timeout_s)

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Send a HEAD request, or GET if the server refuses HEAD; see ``Client``."""
        return in_loop(self._session.loop, self._version(name, is_timed), timeout_s)

    def listing(self, prefix: str, timeout_s: float) -> list[ListedFile]:
        """Return the one file that ``prefix`` names, by a HEAD request, or GET without it; see ``Client``."""
        if not prefix or prefix.endswith("/"):
            return []
        return in_loop(self._session.loop, self._listing(prefix), timeout_s)

    def close(self) -> None:
        """Close idle connections; see ``Client``."""
        self._session.close()

    async def _open(self, name: str, start: int, version: str, stop: int | None) -> WebBody:
        headers = range_header(start, stop)
        if start and version:
            headers["If-Range"] = version
        response = await self._send("GET", name, headers)
        try:
            if headers and response.status in _RANGE_FAILED:
                raise ChangedError(f"status {response.status} for bytes from {start:,}")
            if response.status not in (200, 206):
                raise status_error(response)
            if response.url.path.endswith("/"):
                raise IsADirectoryError(f"{name} is a folder: the server shows it as a page")
            return WebBody(self._session.loop, response, content_version(response))
        except BaseException:
            response.close()
            raise

    async def _version(self, name: str, is_timed: bool) -> str:
        response = await self._send("HEAD", name, {})
        if response.status in _NOT_BY_HEAD:
            response.close()
            response = await self._send("GET", name, _FIRST_BYTE)
        try:
            if response.status not in (200, 206):
                raise status_error(response)
            return (
                joined_version(content_version(response), response.headers.get("Last-Modified"))
                if is_timed
                else content_version(response)
            )
        finally:
            response.close()

    async def _listing(self, name: str) -> list[ListedFile]:
        response = await self._send("HEAD", name, {})
        is_without_size = response.status == 200 and "Content-Length" not in response.headers
        if response.status in _NOT_BY_HEAD or is_without_size:
            response.close()
            response = await self._send("GET", name, _FIRST_BYTE)
        try:
            if response.status == _NO_SUCH_FILE:
                return []
            if response.status not in (200, 206):
                raise status_error(response)
            self._check_encoding(response, name)
            size_bytes = response.content_length
            if response.status == 206:
                _, size_bytes = content_range(response.headers.get("Content-Range", ""))
            if size_bytes is None:
                expected = "a file whose server says its size (Content-Length): download the file, and pass its path"
                raise ConfigurationError("remote", without_secrets(_joined(self._url, name)), expected)
            return [ListedFile(name, size_bytes, content_version(response))]
        finally:
            response.close()

    def _check_encoding(self, response: Any, name: str) -> None:
        """Check that a server sends a file that no index describes as it is stored.

        A server may call an encoding what the file's name says. Where an index says size and hash, these decide.

        Raises:
            ConfigurationError: It does not.
        """
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding in ("", "identity") or name.lower().endswith(_COMPRESSED):
            return
        raise ConfigurationError(
            "remote",
            without_secrets(_joined(self._url, name)),
            f"a file that the server sends as it is; it sends Content-Encoding: {encoding}, though no encoding was asked "
            "for: switch this off for such files, or store them without it",
        )

    async def _send(self, method: str, name: str, headers: Mapping[str, str]) -> Any:
        return await self._session.send(method, _joined(self._url, name), headers)


def _joined(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}", fragment=""))

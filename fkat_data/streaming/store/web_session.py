"""Send requests to web servers, over aiohttp."""

import asyncio
from collections.abc import Mapping
from typing import Any

import fsspec

from fkat_data.background import in_loop
from fkat_data.interruption import genuine
from fkat_data.machine import required
from fkat_data.streaming.store.client import StatusError, TransferError, content_range
from fkat_data.streaming.store.pace import LONGEST_SILENCE_S

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

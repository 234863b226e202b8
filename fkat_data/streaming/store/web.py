"""Read objects of a web server, over aiohttp."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from fkat_data.background import in_loop
from fkat_data.streaming.store.client import ChangedError, ListedFile, TransferError, joined_version, range_header
from fkat_data.streaming.store.web_session import WebBody, WebSession, content_version, status_error

_NO_SUCH_METHOD = (405, 501)
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
        """Return the one file that ``prefix`` names, by a HEAD request; see ``Client``."""
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
        if response.status in _NO_SUCH_METHOD:
            response.close()
            response = await self._send("GET", name, {"Range": "bytes=0-0"})
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
        try:
            if response.status == _NO_SUCH_FILE:
                return []
            if response.status not in (200, 206):
                raise status_error(response)
            size_bytes = response.headers.get("Content-Length", "")
            if not size_bytes.isdecimal():
                raise TransferError("the server reports no size of the file")
            return [ListedFile(name, int(size_bytes), content_version(response))]
        finally:
            response.close()

    async def _send(self, method: str, name: str, headers: Mapping[str, str]) -> Any:
        return await self._session.send(method, _joined(self._url, name), headers)


def _joined(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}", fragment=""))

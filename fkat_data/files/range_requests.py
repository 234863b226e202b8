"""Read ranges of an object of S3 by a signed URL: a request takes a tenth of the CPU time that botocore's takes."""

import asyncio
import os
import time
import urllib.request
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from fkat_data.dropped import WeakTable
from fkat_data.interruption import genuine

Span: TypeAlias = tuple[int, int]
"""The first byte of a range, and the one behind its last."""

_EXPIRES_S, _RENEWED_S = 3600, 1800
_CONNECT_S, _SILENCE_S = 5.0, 30.0
_PARTIAL = 206
#: Arguments of a client that a signed URL has in it.
_IN_URL = {"endpoint_url", "region_name", "use_ssl"}
#: File systems whose stores have refused such a request.
_refused: WeakTable[int, Any] = WeakTable()


class SignedRequests:
    """Requests for ranges of one object, as it was when it was opened.

    It makes no second attempt and raises nothing: what it does not get, the caller asks s3fs for, which says why.

    Args:
        file_system: s3fs's file system.
        name: The object's name there.
        version: The object's ETag.
    """

    def __init__(self, file_system: Any, name: str, version: str) -> None:
        # Imported here, because only remote files need it and a worker must start quickly.
        import fsspec  # noqa: PLC0415 - see above

        self._s3 = file_system
        self._name = name
        self._version = version
        self._web: Any = cast("Any", fsspec).filesystem("http")
        self._url: Any = None
        self._signed_s = 0.0

    @classmethod
    def of(cls, file_system: Any, name: str, details: Any) -> "SignedRequests | None":
        """Return the requests; None: the file system is another one, or its options are not in a signed URL."""
        if "s3" not in file_system.protocol or not details.get("ETag") or _refused.get(id(file_system)) is not None:
            return None
        options = [getattr(file_system, kind, True) for kind in ("config_kwargs", "s3_additional_kwargs", "req_kw")]
        is_simple = not any(options) and set(getattr(file_system, "client_kwargs", {"?"})) <= _IN_URL
        endpoint = str(getattr(file_system, "endpoint_url", None) or "https:")
        has_detour = urllib.request.getproxies() or (os.environ.get("AWS_CA_BUNDLE") and endpoint.startswith("https:"))
        is_plain = not file_system.anon and not getattr(file_system, "version_aware", True)
        return cls(file_system, name, details["ETag"]) if is_simple and is_plain and not has_detour else None

    def contents(self, spans: Sequence[Span]) -> list[bytes | None]:
        """Return the bytes of ranges, all asked for at once; None for those that did not come."""
        import fsspec.asyn  # noqa: PLC0415 - as above
        from yarl import URL  # noqa: PLC0415 - aiohttp's

        try:
            if self._url is None or time.monotonic() > self._signed_s + _RENEWED_S:
                self._signed_s = time.monotonic()
                self._url = URL(self._s3.url(self._name, expires=_EXPIRES_S), encoded=True)
            return cast("Any", fsspec.asyn).sync(self._web.loop, self._all, spans)
        except genuine(Exception):
            return [None] * len(spans)

    def refuse(self) -> None:
        """Make no more such requests to the store: it answers others."""
        _refused[id(self._s3)] = self._s3

    async def _all(self, spans: Sequence[Span]) -> list[bytes | None]:
        session = await self._web.set_session()
        return await asyncio.gather(*(self._content(session, *span) for span in spans))

    async def _content(self, session: Any, start: int, stop: int) -> bytes | None:
        import aiohttp  # noqa: PLC0415 - as above

        headers = {"Range": f"bytes={start}-{stop - 1}", "If-Match": self._version, "Accept-Encoding": "identity"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        try:
            async with session.get(self._url, headers=headers, timeout=timeout) as answer:
                content = await answer.read() if answer.status == _PARTIAL else b""
        except genuine(aiohttp.ClientError, TimeoutError, OSError):
            return None
        return content if len(content) == stop - start else None

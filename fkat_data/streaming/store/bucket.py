"""Read objects of an S3 bucket, over the client that s3fs makes."""

import asyncio
from collections.abc import Mapping
from typing import Any

import fsspec

from fkat_data.runtime.background import in_loop
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import required
from fkat_data.storage.attempts import ChangedError, status_of
from fkat_data.streaming.store.client import LONGEST_SILENCE_S, ListedFile, content_range, joined_version, range_header

_MOST_READ_BYTES = 1 << 20
_RANGE_FAILED = (412, 416)
#: The arguments of ``s3_additional_kwargs`` that requests for reading take.
_OF_READING = ("ExpectedBucketOwner", "RequestPayer", "SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5")
_CONFIGURATION = {
    # ``with_attempts`` is the only loop that retries.
    "retries": {"total_max_attempts": 1, "mode": "standard"},
    "connect_timeout": LONGEST_SILENCE_S,
    "read_timeout": LONGEST_SILENCE_S + 1,
    "max_pool_connections": 100,
}


class BucketClient:
    """A directory of a bucket.

    s3fs finds credentials and makes the connections, so that its options hold. This client sends the requests itself,
    because s3fs retries on its own and reads whole answers.

    Args:
        bucket: The bucket.
        prefix: The directory within it, with a slash at its end unless it is empty.
        options: The options of ``S3FileSystem``.

    Raises:
        TimeoutError: The search for credentials takes longer than 30 s.
    """

    def __init__(self, bucket: str, prefix: str, options: Mapping[str, Any]) -> None:
        required("s3fs", "s3")
        configuration = _CONFIGURATION | dict(options.get("config_kwargs") or {})
        given = {**options, "config_kwargs": configuration, "use_listings_cache": False, "skip_instance_cache": True}
        self._filesystem: Any = fsspec.filesystem("s3", **given)
        self._loop: asyncio.AbstractEventLoop = self._filesystem.loop
        self._bucket = bucket
        self._prefix = prefix
        self._session_lock = asyncio.Lock()
        # This takes up to a second of computing, which must not count against the first request.
        self._s3: Any = in_loop(self._loop, self._session(), LONGEST_SILENCE_S)

    def open(self, name: str, start: int, version: str, timeout_s: float, stop: int | None = None) -> "_BucketBody":
        """Send a GetObject request; see ``Client``."""
        return in_loop(self._loop, self._open(name, start, version, stop), timeout_s)

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Send a HeadObject request; see ``Client``."""
        return in_loop(self._loop, self._version(name, is_timed), timeout_s)

    def listing(self, prefix: str, timeout_s: float) -> list[ListedFile]:
        """Send ListObjectsV2 requests; see ``Client``."""
        found: list[ListedFile] = []
        more: dict[str, Any] = {}
        while True:
            page = in_loop(self._loop, self._page(prefix, more), timeout_s)
            for item in page.get("Contents", ()):
                # Consoles make an empty object for each folder.
                if not item["Key"].endswith("/"):
                    version = joined_version(str(item.get("ETag", "")), item.get("LastModified"))
                    found.append(ListedFile(item["Key"].removeprefix(self._prefix), int(item["Size"]), version))
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def close(self) -> None:
        """Close idle connections; see ``Client``."""
        asyncio.run_coroutine_threadsafe(self._s3.close(), self._loop)

    async def _open(self, name: str, start: int, version: str, stop: int | None) -> "_BucketBody":
        conditions = range_header(start, stop)
        if conditions and version.startswith('"'):
            conditions["IfMatch"] = version
        try:
            return _BucketBody(self._loop, await self._send("get_object", name, conditions))
        except genuine(Exception) as error:
            if conditions and status_of(error) in _RANGE_FAILED:
                raise ChangedError(f"status {status_of(error)} for bytes from {start:,}") from error
            raise

    async def _version(self, name: str, is_timed: bool) -> str:
        found = await self._send("head_object", name, {})
        return joined_version(_version(found), found.get("LastModified")) if is_timed else _version(found)

    async def _page(self, prefix: str, more: Mapping[str, Any]) -> dict[str, Any]:
        self._s3 = await self._session()
        payer = {key: self._filesystem.req_kw[key] for key in ("RequestPayer",) if key in self._filesystem.req_kw}
        return await self._s3.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, **payer, **more)

    async def _session(self) -> Any:
        async with self._session_lock:
            return await self._filesystem.set_session()

    async def _send(self, method: str, name: str, conditions: Mapping[str, str]) -> dict[str, Any]:
        filesystem = self._filesystem
        self._s3 = await self._session()
        more = {key: value for key, value in filesystem.s3_additional_kwargs.items() if key in _OF_READING}
        call: Any = getattr(self._s3, method)
        return await call(Bucket=self._bucket, Key=self._prefix + name, **{**more, **filesystem.req_kw, **conditions})


class _BucketBody:
    def __init__(self, loop: asyncio.AbstractEventLoop, response: dict[str, Any]) -> None:
        self._loop = loop
        self._stream: Any = response["Body"]
        self.version: str = _version(response)
        self.start: int = 0
        self.size_bytes: int | None = response.get("ContentLength")
        if response["ResponseMetadata"]["HTTPStatusCode"] == 206:
            try:
                self.start, self.size_bytes = content_range(response.get("ContentRange", ""))
            except Exception:
                self._stream.close()
                raise

    def read(self, timeout_s: float) -> bytes:
        return in_loop(self._loop, self._stream.read(_MOST_READ_BYTES), timeout_s)

    def close(self) -> None:
        # A connection that was read to its end is back in the pool, and this does nothing.
        self._loop.call_soon_threadsafe(self._stream.close)


def _version(response: Mapping[str, Any]) -> str:
    return str(response.get("ETag") or response.get("LastModified") or "")

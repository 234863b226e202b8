"""Objects of an S3 bucket, over obstore: the same requests, more of them at a time outside of the GIL."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fkat_data.requirement import required
from fkat_data.streaming.store.bounded import in_thread
from fkat_data.streaming.store.client import ChangedError, StatusError
from fkat_data.streaming.store.pace import LONGEST_SILENCE_S
from fkat_data.streaming.store.pump import Pump
from fkat_data.streaming.store.timed import joined_version

__all__ = ["FastBucketClient", "fast_configuration"]

#: The first that can end a request by its silence.
_LEAST_VERSION = (0, 11)
_PLAIN_PREFIX = re.compile(r"[A-Za-z0-9._=/-]*")
_STATUS = re.compile(r"status(?: code)?:? (\d{3})")
_ALIASES = {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token"}
#: Options that change nothing of a request.
_IRRELEVANT = frozenset({"use_listings_cache", "skip_instance_cache", "default_block_size", "asynchronous"})

# Its threads do not come along in a fork: a child of a process that has used them takes the other client.
_used_in: list[int] = []


def fast_configuration(prefix: str, options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the options of s3fs as obstore has them.

    None where obstore is not installed, cannot run in this process, or does not know an option, the credentials or
    the region that s3fs would find.

    Args:
        prefix: The directory in the bucket.
        options: The options of s3fs.
    """
    if not _is_installed() or any(pid != os.getpid() for pid in _used_in):
        return None
    if not _PLAIN_PREFIX.fullmatch(prefix) or "//" in prefix:
        return None
    given = {key: value for key, value in options.items() if value is not None and key not in _IRRELEVANT}
    client: dict[str, Any] = dict(given.pop("client_kwargs", {}))
    endpoint = given.pop("endpoint_url", None) or client.pop("endpoint_url", None)
    region = client.pop("region_name", None) or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    is_anonymous = given.pop("anon", False)
    credentials = {_ALIASES[key]: given.pop(key) for key in _ALIASES if key in given}
    if given or client or not (region or endpoint):
        return None
    found = {"region": region or "us-east-1"} | ({"endpoint": endpoint} if endpoint else {})
    if is_anonymous:
        return found | {"skip_signature": "true"}
    credentials = credentials or _credentials()
    if {"access_key_id", "secret_access_key"} <= credentials.keys() and (
        # obstore would put it to a key that it does not belong to.
        "session_token" in credentials or "AWS_SESSION_TOKEN" not in os.environ
    ):
        return found | credentials
    return None


@cache
def _is_installed() -> bool:
    try:
        found = version("obstore")
    except PackageNotFoundError:
        return False
    return tuple(int(part) for part in re.findall(r"\d+", found)[:2]) >= _LEAST_VERSION


def _credentials() -> dict[str, str]:
    if "AWS_PROFILE" in os.environ:
        return {}
    names = {name: f"AWS_{name.upper()}" for name in _ALIASES.values()}
    return {name: os.environ[variable] for name, variable in names.items() if os.environ.get(variable)}


class FastBucketClient:
    """A directory of a bucket.

    Args:
        bucket: The bucket.
        prefix: The directory within it, with a slash at its end unless it is empty.
        configuration: What ``fast_configuration`` returned.
        timeout_s: Seconds without a byte after which a request ends that nobody waits for any more; 30 at most.
    """

    def __init__(self, bucket: str, prefix: str, configuration: Mapping[str, str], timeout_s: float) -> None:
        self._obstore = required("obstore", "fast")
        self._prefix = prefix
        self._store: Any = required("obstore.store", "fast").S3Store(
            bucket,
            config=dict(configuration),
            client_options={
                "allow_http": configuration.get("endpoint", "").startswith("http://"),
                "connect_timeout": timedelta(seconds=LONGEST_SILENCE_S),
                # Until then, a request that was given up keeps its thread and its connection.
                "read_timeout": timedelta(seconds=min(timeout_s, LONGEST_SILENCE_S) + 1),
                # How long a transfer takes in all is our matter.
                "timeout": timedelta(days=1),
            },
            # The one loop that tries again is ours.
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=0)},
        )
        if os.getpid() not in _used_in:
            _used_in.append(os.getpid())

    # Its functions for asyncio call back from threads of their own, which aborts a process that ends just then.

    def open(self, name: str, start: int, version: str, timeout_s: float) -> "_FastBody":
        """Send GetObject; see ``Client``."""
        return in_thread(lambda: self._open(name, start, version), timeout_s)

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Send HeadObject; see ``Client``."""
        return in_thread(lambda: self._version(name, is_timed), timeout_s)

    def close(self) -> None:
        """Idle connections are closed when nothing refers to them any more."""
        self._store = None

    def _open(self, name: str, start: int, version: str) -> "_FastBody":
        options: dict[str, Any] = {"range": {"offset": start}} if start else {}
        if start and version.startswith('"'):
            options["if_match"] = version
        try:
            return _FastBody(self._obstore.get(self._store, self._prefix + name, options=options or None))
        except Exception as error:
            _raise_status(error, start)
            raise

    def _version(self, name: str, is_timed: bool) -> str:
        try:
            found = self._obstore.head(self._store, self._prefix + name)
            return joined_version(_version(found), found.get("last_modified")) if is_timed else _version(found)
        except Exception as error:
            _raise_status(error, 0)
            raise


class _FastBody:
    def __init__(self, result: Any) -> None:
        self.version = _version(result.meta)
        self.start = int(result.range[0])
        self.size_bytes: int | None = int(result.meta["size"])
        self._result: Any = result
        self._pump: Pump | None = None

    def read(self, timeout_s: float) -> bytes:
        if self._pump is None:
            # Pieces are as they come off the network: nothing that has arrived is lost when the connection breaks.
            self._pump = Pump(self._result.stream(min_chunk_size=1))
            self._result = None
        return self._pump.read(timeout_s)

    def close(self) -> None:
        self._result = None
        if self._pump is not None:
            self._pump.close()


def _version(meta: Mapping[str, Any]) -> str:
    return str(meta.get("e_tag") or meta.get("last_modified") or "")


def _raise_status(error: Exception, start: int) -> None:
    """Raise what an error says in words only: the status of the answer, or that there was no range."""
    words = str(error)
    if start and (type(error).__name__ in ("PreconditionError", "NotSupportedError") or "range" in words.lower()):
        raise ChangedError(f"no bytes from {start:,}: {words}") from error
    found = _STATUS.search(words)
    if found and type(error).__name__ == "GenericError":
        raise StatusError(int(found[1]), words) from error

"""Read objects of any other file system that fsspec opens, in pieces: nothing is known of what happens within one."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.background import in_thread
from fkat_data.storage.attempts import ChangedError, ContentError, Redaction
from fkat_data.storage.file_identity import content_of, time_of
from fkat_data.storage.location import file_system_of, found_below, is_chain
from fkat_data.streaming.store.bucket import BucketClient
from fkat_data.streaming.store.client import Client, ListedFile, joined_version
from fkat_data.streaming.store.hub import HubOpener, hub_location
from fkat_data.streaming.store.web import WebClient

_PIECE_BYTES = 4 << 20


class FilesystemClient:
    """A directory of a file system. Each call has its own thread, so that a call that hangs blocks nothing else.

    Args:
        url: The directory in fsspec's form.
        options: The options of its file system.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = dict(options)
        self._made: tuple[Any, str] | None = None
        self._lock = threading.Lock()

    def open(self, name: str, start: int, version: str, timeout_s: float, stop: int | None = None) -> "_PieceBody":
        """Look up the size and version of an object; see ``Client``."""

        def look() -> _PieceBody:
            filesystem, path = self._at(name)
            return _PieceBody(filesystem, path, start if version or stop is not None else 0, stop)

        return in_thread(look, timeout_s)

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Look up the version of an object; see ``Client``."""

        def look() -> str:
            info = _info(*self._at(name))
            return joined_version(_version(info), _time(info)) if is_timed else _version(info)

        return in_thread(look, timeout_s)

    def listing(self, prefix: str, timeout_s: float) -> list[ListedFile]:
        """List a folder at any depth; see ``Client``."""

        def look() -> list[ListedFile]:
            filesystem, directory = self._at("")
            filesystem.invalidate_cache()
            found = found_below(filesystem, directory + prefix.rpartition("/")[0])
            files = {str(path).lstrip("/").removeprefix(directory.lstrip("/")): info for path, info in found.items()}
            return [
                ListedFile(name, int(info.get("size") or 0), joined_version(_version(info), _time(info)))
                for name, info in files.items()
                if name.startswith(prefix) and info.get("type") == "file"
            ]

        return in_thread(look, timeout_s)

    def close(self) -> None:
        """Drop the file system, which closes its connections when nothing refers to it any more."""
        self._made = None

    def _at(self, name: str) -> tuple[Any, str]:
        with self._lock:
            made = self._made
            if made is None:
                # Some file systems look for credentials over the network here.
                made = self._made = file_system_of(self._url, {"skip_instance_cache": True, **self._options})
        filesystem, directory = made
        return filesystem, f"{directory.rstrip('/')}/{name}"


class _PieceBody:
    def __init__(self, filesystem: Any, path: str, start: int, end: int | None) -> None:
        self._filesystem = filesystem
        self._path = path
        info = _info(filesystem, path)
        if info.get("type") == "directory":
            raise IsADirectoryError(path)
        size_bytes = info.get("size")
        self.size_bytes: int | None = None if size_bytes is None else int(size_bytes)
        self.version: str = _version(info)
        self.start: int = 0 if self.size_bytes is None else min(start, self.size_bytes)
        self._next = self.start
        self._end = self.size_bytes if end is None else end
        self._is_last = False

    def read(self, timeout_s: float) -> bytes:
        return in_thread(self._piece, timeout_s)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _piece(self) -> bytes:
        if self._is_last:
            return b""
        start, stop = self._next, self._next + _PIECE_BYTES
        if self._end is not None:
            stop = min(stop, self._end)
        read: Callable[..., bytes] = self._filesystem.cat_file
        piece = bytes(read(self._path, start=start, end=stop))
        if len(piece) > stop - start:
            raise ContentError(
                f"the store sent {len(piece):,} bytes: expected at most {stop - start:,} from {start:,} on"
            )
        self._next += len(piece)
        self._is_last = len(piece) < stop - start or self._next == self._end
        # Each piece is its own request, and the object may have been replaced between two of them.
        if self._is_last and start > 0 and _version(_info(self._filesystem, self._path)) != self.version:
            raise ChangedError("the object was replaced during the transfer")
        return piece


def _info(filesystem: Any, path: str) -> Mapping[str, Any]:
    filesystem.invalidate_cache()
    return filesystem.info(path)


def _version(info: Mapping[str, Any]) -> str:
    found = str(content_of(info) or "")
    time = str(_time(info) or "")
    # Two contents that are written within a short time may have the same time.
    return found or (f"{time}-{info.get('size')}" if time else "")


def _time(info: Mapping[str, Any]) -> object:
    return time_of(info) or info.get("created")


#: The schemes whose paths begin with a bucket or a container, which only its owner creates.
BUCKET_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss"})
#: scheme -> the extra to install
_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "http": "http",
    "https": "http",
    "gs": "gs",
    "gcs": "gs",
    "hf": "hf",
} | dict.fromkeys(("az", "abfs", "abfss", "adl"), "az")
#: The reference reads its endpoint from here; s3fs does not.
_REFERENCE_ENDPOINT = "S3_ENDPOINT_URL"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", _REFERENCE_ENDPOINT)


def check_scheme(argument: str, scheme: str, shown: str, registered: Sequence[str] = ()) -> None:
    """Check that fsspec knows a scheme and that its package is installed, without importing it.

    Args:
        argument: Name of the caller's argument, for messages.
        scheme: The URL's scheme.
        shown: The URL without secrets.
        registered: The schemes that have a client of the user's, for messages.

    Raises:
        ConfigurationError: The scheme is unknown, or its package is missing.
    """
    if scheme in fsspec.registry:  # loaded before, or registered by a package
        return
    if scheme not in known_implementations:
        own = f" or register_store has registered ({', '.join(registered)})" if registered else ""
        raise ConfigurationError(argument, shown, f"a path, or a URL of a scheme that fsspec knows{own}")
    # An import would take a third of a second here, in the constructor of a dataset.
    known = known_implementations[scheme]
    if find_spec(known["class"].partition(".")[0]) is None:
        install = (
            f"pip install 'fkat_data[{_EXTRAS[scheme]}]'"
            if scheme in _EXTRAS
            else "install the package that fsspec names"
        )
        raise ConfigurationError(
            argument, shown, f"a URL whose package is installed: {install} ({known.get('err', 'not installed')})"
        )


def with_endpoint(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an S3 file system with the endpoint of the environment, unless they have their own."""
    given = dict(options)
    if not given.get("endpoint_url") and not (given.get("client_kwargs") or {}).get("endpoint_url"):
        endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
        if endpoint:
            given["endpoint_url"] = endpoint
    return given


_HUB_OPTIONS = ("token", "endpoint", "revision")


def remote_client(
    scheme: str, location: str, options: dict[str, Any], redaction: Redaction, registered: Sequence[str]
) -> Callable[[], Client]:
    """Return a function that makes the client of a URL's store.

    Args:
        scheme: The URL's scheme.
        location: The URL.
        options: The options of fsspec's file system.
        redaction: Removes secrets from messages.
        registered: The schemes that have a client of the user's, for messages.

    Raises:
        ConfigurationError: The scheme is unknown, its package is missing, or the URL has no bucket.
    """
    check_scheme("remote", scheme, redaction.url(location), registered)
    if not is_chain(location):
        if scheme in ("http", "https"):
            return partial(WebClient, location, options)
        if scheme in ("s3", "s3a"):
            return partial(_bucket_client, *_bucket_and_prefix(location, redaction), options)
        if scheme == "hf" and not location.startswith("hf://buckets/"):
            return _hub_opener(location, options)
    return partial(FilesystemClient, location, options)


def _bucket_and_prefix(location: str, redaction: Redaction) -> tuple[str, str]:
    # A key may contain ? and #, which end the path of other URLs.
    bucket, _, prefix = location.partition("://")[2].partition("/")
    if not bucket:
        raise ConfigurationError("remote", redaction.url(location), "a URL with a bucket, as s3://bucket/directory")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def _hub_opener(location: str, options: Mapping[str, Any]) -> HubOpener:
    unknown = [name for name in options if name not in _HUB_OPTIONS]
    if unknown:
        raise ConfigurationError("storage_options", unknown[0], f"options of the hub: {', '.join(_HUB_OPTIONS)}")
    return HubOpener(hub_location(location, options.get("revision")), options)


def _bucket_client(bucket: str, prefix: str, options: dict[str, Any]) -> Client:
    return BucketClient(bucket, prefix, with_endpoint(options))

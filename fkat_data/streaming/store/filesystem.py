"""Read objects of any other file system that fsspec opens, in pieces: nothing is known of what happens within one."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import fsspec.core

from fkat_data.background import in_thread
from fkat_data.streaming.store.client import ChangedError, ContentError, ListedFile, joined_version

_Opener = Callable[..., tuple[Any, str]]
_PIECE_BYTES = 4 << 20
#: The keys under which file systems report a version; the first that is present counts.
_VERSIONS = ("ETag", "etag", "e_tag", "generation", "blob_id", "version_id", "md5Hash", "last_commit", "LastModified")
_TIMES = ("last_modified", "mtime", "updated", "modified", "created")


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
            find: Callable[..., dict[str, Any]] = filesystem.find
            found = find(directory + prefix.rpartition("/")[0], detail=True)
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
                opened = cast("_Opener", fsspec.core.url_to_fs)
                made = self._made = opened(self._url, skip_instance_cache=True, **self._options)
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
    found = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    time = str(_time(info) or "")
    # Two contents that are written within a short time may have the same time.
    return found or (f"{time}-{info.get('size')}" if time else "")


def _time(info: Mapping[str, Any]) -> object:
    return next((info[key] for key in _TIMES if info.get(key)), None)

"""The identity of a file: what it was at one moment, to find out later whether it is still the same."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

#: What file systems call that which tells two contents of a file apart, and the time of its last change.
_CONTENTS = ("ETag", "etag", "e_tag", "generation", "blob_id", "version_id", "md5Hash", "md5", "last_commit")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified")


class FileIdentity(NamedTuple):
    """A file as it is at one moment. Two that are equal are of the same file with the same content.

    Attributes:
        size_bytes: Its size.
        version: When it was changed, in nanoseconds, or what a store calls its content; None: unknown.
        inode: Which file of its file system it is; None for one of a store.
    """

    size_bytes: int
    version: int | str | None = None
    inode: int | None = None

    @classmethod
    def of_path(cls, path: str | os.PathLike[str]) -> "FileIdentity":
        """Return the identity of the local file that a path leads to.

        Raises:
            OSError: There is no such file.
        """
        return cls.of_status(os.stat(path))  # noqa: PTH116 - a Path takes longer

    @classmethod
    def of_descriptor(cls, descriptor: int) -> "FileIdentity":
        """Return the identity of an open local file, also once its path leads to another one.

        Raises:
            OSError: It is not open, or its server does not know it any more.
        """
        return cls.of_status(os.fstat(descriptor))

    @classmethod
    def of_status(cls, found: os.stat_result) -> "FileIdentity":
        """Return the identity of a local file, given what ``stat`` found."""
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)

    @classmethod
    def of_store(cls, found: Mapping[str, Any]) -> "FileIdentity":
        """Return the identity of a file of a store, given what ``info`` of its file system returns."""
        version = content_of(found) or time_of(found)
        return cls(int(found.get("size") or 0), None if version is None else str(version))

    def is_rewritten_since(self, before: "FileIdentity") -> bool:
        """Return whether the content may be another one, whatever the inode number.

        This is asked of a descriptor, which has the same file also once its path leads to another one: some mounts give
        one file another inode number at each look. And of a path where an equal copy is as good.
        """
        return (self.size_bytes, self.version) != (before.size_bytes, before.version)

    def is_rewritten_in_place_since(self, before: "FileIdentity") -> bool:
        """Return whether the file that a path led to before may have been written to, where both are of the same path.

        What replaced it as a whole, under another inode number, did not write to it, unless the sizes differ.
        """
        is_same_file = self.inode == before.inode
        return self.size_bytes != before.size_bytes or (is_same_file and self.version != before.version)

    def is_listed_as(self, size_bytes: int, version: int | str) -> bool:
        """Return whether a listing, or a record on disk, that has this size and version is of the file as it is."""
        return (self.size_bytes, str(self.version)) == (size_bytes, str(version))

    @property
    def text(self) -> str:
        """What changes when the file changes, to be recorded; empty where that is not known."""
        return "" if self.version is None else " ".join(str(part) for part in self if part is not None)


def content_of(found: Mapping[str, Any]) -> Any:
    """Return a store's name for the content of a file, given what ``info`` of its file system returns; None: none."""
    return next((found[key] for key in _CONTENTS if found.get(key)), None)


def time_of(found: Mapping[str, Any]) -> Any:
    """Return when a file of a store was changed, in the store's own form; None: it does not say."""
    return next((found[key] for key in _TIMES if found.get(key)), None)

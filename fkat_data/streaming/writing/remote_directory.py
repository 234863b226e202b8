"""A directory of any file system that fsspec knows: what a writer puts there, and what it looks up."""

import secrets
import shutil
from importlib import import_module
from pathlib import Path
from typing import cast

from fkat_data.errors import ConfigurationError

__all__ = ["RemoteDirectory", "is_remote"]


def is_remote(place: str) -> bool:
    """Return whether a place is a URL, such as ``s3://bucket/data``, and not a path."""
    return "://" in place


class RemoteDirectory:
    """A directory that data are uploaded to: a URL, or a local path.

    Args:
        url: Where it is; it need not exist.
        argument: Name of the argument that it came in, for messages.

    Raises:
        ConfigurationError: No installed file system opens it.
    """

    def __init__(self, url: str, argument: str) -> None:
        # Only here is it needed, and a worker that reads must start quickly.
        core = import_module("fsspec.core")
        try:
            self._files, self._root = core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ConfigurationError(argument, url, f"a URL that fsspec can open; it says: {error}") from error
        self._root = self._root.rstrip("/")
        self.url = url.rstrip("/")

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return self._files.exists(self._path(name))

    def upload(self, local: str, name: str) -> None:
        """Put a local file there, which is seen when it is complete.

        Raises:
            OSError: It cannot be written; or another error of the file system's own.
        """
        target = self._path(name)
        parent = target.rpartition("/")[0]
        if not self._is_local:
            try:
                self._files.put_file(local, target)
            except FileNotFoundError:
                # Not at once: in an object store it would look for a bucket, or make one.
                self._files.makedirs(parent, exist_ok=True)
                self._files.put_file(local, target)
            return
        # An object store shows a file when it is whole; a directory shows one that grows.
        Path(parent).mkdir(parents=True, exist_ok=True)
        temporary = Path(f"{target}.{secrets.token_hex(8)}.tmp")
        try:
            shutil.copyfile(local, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: There is none.
        """
        return self._files.cat_file(self._path(name))

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._files.rm_file(self._path(name))

    def found(self, basename: str) -> list[str]:
        """Return the files of one name in the directories below, relative to this one, in no order."""
        prefix = f"{self._root}/"
        self._files.invalidate_cache()
        paths = cast("list[str]", self._files.find(self._root))
        return [path.removeprefix(prefix) for path in paths if path.rpartition("/")[2] == basename]

    @property
    def _is_local(self) -> bool:
        protocol = self._files.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

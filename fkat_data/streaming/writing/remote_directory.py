"""A directory on any file system that fsspec supports, for a writer's uploads and look-ups."""

import secrets
import shutil
from importlib import import_module
from pathlib import Path
from typing import cast

from fkat_data.errors import ConfigurationError

__all__ = ["RemoteDirectory", "is_remote"]


def is_remote(location: str) -> bool:
    """Return whether a location is a URL, such as ``s3://bucket/data``, and not a path."""
    return "://" in location


class RemoteDirectory:
    """A directory for uploads.

    Args:
        url: URL or local path of the directory, which need not exist.
        argument: Name of the caller's argument, for messages.

    Raises:
        ConfigurationError: No installed file system can open the URL.
    """

    def __init__(self, url: str, argument: str) -> None:
        # Import fsspec here, because workers that only read should start quickly.
        core = import_module("fsspec.core")
        try:
            self._files, self._root = core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ConfigurationError(argument, url, f"a URL that fsspec can open ({error})") from error
        self._root = self._root.rstrip("/")
        self.url = url.rstrip("/")

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return self._files.exists(self._path(name))

    def upload(self, local: str, name: str) -> None:
        """Upload a local file, which appears only once it is complete.

        Args:
            local: Path of the local file.
            name: Path to write, relative to this directory.

        Raises:
            OSError: The file cannot be written. Some file systems raise errors of their own.
        """
        target = self._path(name)
        parent = target.rpartition("/")[0]
        if not self._is_local:
            try:
                self._files.put_file(local, target)
            except FileNotFoundError:
                # Only now: in an object store, makedirs would look for a bucket or create one.
                self._files.makedirs(parent, exist_ok=True)
                self._files.put_file(local, target)
            return
        # An object store shows only complete files, but a local directory shows a growing one.
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
            FileNotFoundError: The file does not exist.
        """
        return self._files.cat_file(self._path(name))

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._files.rm_file(self._path(name))

    def found(self, basename: str) -> list[str]:
        """Return the paths of all files with a base name, relative to this directory, in any order."""
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

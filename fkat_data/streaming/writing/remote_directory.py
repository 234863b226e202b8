"""A directory on any file system that fsspec supports, for a writer's uploads and look-ups."""

import copy
import secrets
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import suppress
from fkat_data.location import path_of
from fkat_data.streaming.store.attempts import Redaction
from fkat_data.streaming.store.open_store import given_options

_REMOVALS_AT_ONCE = 8
#: Schemes of servers that take no files; fsspec notices it at the first upload.
_READ_ONLY = frozenset({"http", "https", "github", "data"})


class RemoteDirectory:
    """A directory for uploads.

    Args:
        url: URL or absolute path of the directory, which need not exist.
        argument: Name of the caller's argument, for messages.
        storage_options: The options of fsspec's file system, as for reading; None for none.

    Raises:
        ConfigurationError: No installed file system can open the URL, it has no bucket, or its server takes no files.

    Attributes:
        shown: The URL without user, password and query, as messages show it.
        path: The directory if it is on this machine; None otherwise.
        key: A text that is equal for equal directories.
    """

    def __init__(self, url: str, argument: str, storage_options: Mapping[str, Any] | None = None) -> None:
        options = given_options(storage_options)
        self._redaction = Redaction(url, options)
        self._argument = argument
        self.shown: str = self._redaction.url(url).removesuffix("?***").rstrip("/")
        # Import fsspec here, because workers that only read should start quickly.
        core = import_module("fsspec.core")
        from fkat_data.streaming.store import remote  # noqa: PLC0415 - it imports fsspec

        path = path_of(url)
        scheme = "file" if path is not None else urlsplit(url).scheme.lower()
        if "::" not in url:
            remote.check_scheme(argument, scheme, self.shown)
        if scheme in _READ_ONLY:
            raise ConfigurationError(argument, self.shown, f"a place that can be written to, unlike {scheme}://")
        if scheme in ("s3", "s3a"):
            options = remote.with_endpoint(options)
        self.path = path
        self._has_bucket = scheme in remote.BUCKET_SCHEMES
        try:
            self._files, root = core.url_to_fs(url if path is None else str(path), **({} if path else options))
        except (ValueError, ImportError) as error:
            expected = f"a URL that fsspec can open ({self._redaction.text(str(error))})"
            raise ConfigurationError(argument, self.shown, expected) from error
        self._root = cast("str", root).rstrip("/")
        if self._has_bucket and self._root[:1] in ("", "/"):
            raise ConfigurationError(argument, self.shown, f"a URL with a bucket, as {scheme}://bucket/directory")
        of_client: dict[str, Any] = options.get("client_kwargs") or {}
        endpoint = options.get("endpoint_url") or of_client.get("endpoint_url")
        self.key: str = f"{scheme} {endpoint or ''} {self._root}" if path is None else str(path.resolve())

    def check(self) -> None:
        """Check that the bucket exists, if the URL has one. Nothing here creates a bucket.

        Raises:
            ConfigurationError: It does not exist.
        """
        if not self._has_bucket:
            return
        bucket = self._root.partition("/")[0]
        try:
            self._files.info(bucket)
        except FileNotFoundError as error:
            raise ConfigurationError(self._argument, self.shown, f"a bucket that exists, unlike {bucket!r}") from error
        except PermissionError:
            # Credentials that may write to a directory need not be good for its bucket.
            return

    def has(self, name: str) -> bool:
        """Return whether a file exists.

        Raises:
            Exception: The store does not say. This is its file system's error.
        """
        self._files.invalidate_cache()
        try:
            self._files.info(self._path(name))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

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
        if self.path is None:
            try:
                self._files.put_file(local, target)
            except FileNotFoundError:
                if self._has_bucket:
                    raise
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

    def remove(self, names: Iterable[str]) -> None:
        """Delete the files that exist.

        Raises:
            Exception: A file cannot be deleted. This is the file system's error.
        """

        def remove_one(name: str) -> None:
            with suppress(FileNotFoundError):
                self._files.rm_file(self._path(name))

        with ThreadPoolExecutor(_REMOVALS_AT_ONCE, thread_name_prefix="fkat-remove") as threads:
            for _ in threads.map(remove_one, names):
                pass

    def listed(self) -> tuple[list[str], list[str]]:
        """Return the names of the files, and of the folders, directly in the directory."""
        self._files.invalidate_cache()
        try:
            entries = cast("list[dict[str, Any]]", self._files.ls(self._root, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        found: tuple[list[str], list[str]] = ([], [])
        for entry in entries:
            name = str(entry["name"]).rstrip("/").rpartition("/")[2]
            found[entry.get("type") == "directory"].append(name)
        return found

    def below(self, name: str) -> "RemoteDirectory":
        """Return a folder of this directory."""
        folder = copy.copy(self)
        folder._root = self._path(name)  # noqa: SLF001 - a copy of its own class
        return folder

    def found(self, basename: str) -> list[str]:
        """Return the paths of all files with a base name, relative to this directory, in any order."""
        prefix = f"{self._root}/"
        self._files.invalidate_cache()
        paths = cast("list[str]", self._files.find(self._root))
        return [path.removeprefix(prefix) for path in paths if path.rpartition("/")[2] == basename]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

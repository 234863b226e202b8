"""The directory that a dataset is written to: of this machine, or on any file system that fsspec supports.

And how a dataset that is there goes before another one replaces it.
"""

import contextlib
import copy
import json
import re
import shutil
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from fkat_data.errors import ConfigurationError, ShardError
from fkat_data.errors.wording import add_note
from fkat_data.files.index import INDEX_FORMATS, INDEX_NAME, parse_index
from fkat_data.files.stored import FAMILIES
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.storage.attempts import Redaction
from fkat_data.storage.location import file_system_of, found_below, is_chain, path_of, replacing
from fkat_data.streaming.store.store import given_options


class LocalDirectory:
    """A directory of this machine.

    Args:
        root: Path of the directory, which need not exist.

    Attributes:
        root: Path of the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return (self.root / name).is_file()

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        return (self.root / name).read_bytes()

    def listed(self) -> tuple[list[str], list[str]]:
        """Return the names of the files, and of the folders, directly in the directory. Links to folders count as neither."""
        if not self.root.is_dir():
            return [], []
        entries = list(self.root.iterdir())
        folders = [path.name for path in entries if path.is_dir() and not path.is_symlink()]
        return [path.name for path in entries if path.is_file()], folders

    def below(self, name: str) -> "LocalDirectory":
        """Return a folder of this directory."""
        return LocalDirectory(self.root / name)

    def remove(self, names: Iterable[str]) -> None:
        """Delete the files that exist, then the folders that this empties. No folder that is named goes, and no link is followed.

        Raises:
            OSError: A file cannot be deleted.
        """
        root = self.root.resolve()
        folders: set[PurePosixPath] = set()
        for name in names:
            path = self.root / name
            is_folder = path.is_dir() and not path.is_symlink()
            if not is_folder and path.parent.resolve() == root.joinpath(*PurePosixPath(name).parent.parts):
                path.unlink(missing_ok=True)
                folders.update(PurePosixPath(name).parents)
        for folder in sorted(folders - {PurePosixPath()}, key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):  # it contains other files
                (self.root / folder).rmdir()


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
        redaction: Removes the secrets of the URL and its options from messages.
    """

    def __init__(self, url: str, argument: str, storage_options: Mapping[str, Any] | None = None) -> None:
        options = given_options(storage_options)
        self.redaction = Redaction(url, options)
        self._argument = argument
        self.shown: str = self.redaction.url(url).removesuffix("?***").rstrip("/")
        # Import fsspec here, because workers that only read should start quickly.
        from fkat_data.streaming.store import remote  # noqa: PLC0415 - it imports fsspec

        path = path_of(url)
        scheme = "file" if path is not None else urlsplit(url).scheme.lower()
        if not is_chain(url):
            remote.check_scheme(argument, scheme, self.shown)
        if scheme in _READ_ONLY:
            raise ConfigurationError(argument, self.shown, f"a directory that can be written to, unlike {scheme}://")
        if scheme in ("s3", "s3a"):
            options = remote.with_endpoint(options)
        self.path = path
        self._has_bucket = scheme in remote.BUCKET_SCHEMES
        try:
            with self._named():
                self._files, root = file_system_of(url if path is None else str(path), {} if path else options)
        except (ValueError, TypeError, ImportError) as error:
            expected = f"a URL that fsspec can open ({self.redaction.text(str(error))})"
            raise ConfigurationError(argument, self.shown, expected) from error
        self._root = root.rstrip("/")
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
            with self._named():
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
            with self._named(name):
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
            with self._named(name):
                self._put(local, target, parent)
            return
        # An object store shows only complete files, but a local directory shows a growing one.
        Path(parent).mkdir(parents=True, exist_ok=True)
        with replacing(Path(target)) as temporary:
            shutil.copyfile(local, temporary)

    def _put(self, local: str, target: str, parent: str) -> None:
        try:
            self._files.put_file(local, target)
        except FileNotFoundError:
            if self._has_bucket:
                raise
            self._files.makedirs(parent, exist_ok=True)
            self._files.put_file(local, target)

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        with self._named(name):
            return self._files.cat_file(self._path(name))

    def remove(self, names: Iterable[str]) -> None:
        """Delete the files that exist.

        Raises:
            Exception: A file cannot be deleted. This is the file system's error.
        """

        def remove_one(name: str) -> None:
            with suppress(FileNotFoundError), self._named(name):
                self._files.rm_file(self._path(name))

        with ThreadPoolExecutor(_REMOVALS_AT_ONCE, thread_name_prefix="fkat-remove") as threads:
            for _ in threads.map(remove_one, names):
                pass

    def listed(self) -> tuple[list[str], list[str]]:
        """Return the names of the files, and of the folders, directly in the directory."""
        self._files.invalidate_cache()
        try:
            with self._named():
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
        try:
            with self._named():
                paths = list(found_below(self._files, self._root))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [path.removeprefix(prefix) for path in paths if path.rpartition("/")[2] == basename]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _named(self, name: str = "") -> Generator[None]:
        """Note the path on what the file system raises: its own error names neither that nor what helps."""
        try:
            yield
        except genuine(Exception) as error:
            path = f"{self.shown}/{name}".rstrip("/")
            add_note(error, f"fkat_data: of {path}; storage_options takes credentials and endpoints")
            raise


#: Folders of ``write_parallel``'s items; no year and month, such as 202401, has such a name.
_PART_NAME = re.compile(r"0\d{5}")
#: Folders of its attempts to write an item.
_ATTEMPT_NAME = re.compile(r"\d{6,}\.attempt-[0-9a-f]{8}")
#: Names of files that a killed writer may have left behind.
_SHARD_NAME = rf"shard\.\d{{5,}}\.({'|'.join(INDEX_FORMATS)})(\.meta)?(\.({'|'.join(FAMILIES)}))?"
_LEFTOVER_NAME = re.compile(rf"{_SHARD_NAME}|({_SHARD_NAME}|{re.escape(INDEX_NAME)})(\.[0-9a-f]{{16}})?\.tmp")


Directory: TypeAlias = LocalDirectory | RemoteDirectory


def directory_of(remote: RemoteDirectory) -> Directory:
    """Return a writer's remote directory; the directory itself if it is on this machine."""
    return remote if remote.path is None else LocalDirectory(remote.path)


def remove_dataset(directory: Directory, shown: str) -> None:
    """Remove a dataset and what a killed writer has left. Other files stay.

    The index goes before the files that it names, so that a partial dataset never looks complete.

    Args:
        directory: Where it is.
        shown: The same, for messages.

    Raises:
        FileExistsError: The index is another program's.
        Exception: A file cannot be removed. This is the file system's error.
    """
    named: list[str] = []
    if directory.has(INDEX_NAME):
        content = directory.read(INDEX_NAME)
        if not _is_index(content):
            raise FileExistsError(
                f"{shown}/{INDEX_NAME} is not the index of a dataset of shards, so exist_ok=True does not replace it: "
                "remove it, or write to another directory"
            )
        with contextlib.suppress(ShardError):  # an invalid index has no file names to use
            entries = parse_index(content, INDEX_NAME)
            named = [info.basename for entry in entries for pair in entry.files for info in pair if info]
        folders = {str(PurePosixPath(name).parent) for name in named} - {"."}
        # A part without an index is not merged again, and the whole does not need it.
        directory.remove(f"{folder}/{INDEX_NAME}" for folder in sorted(folders))
        directory.remove([INDEX_NAME])
    files, _ = directory.listed()
    directory.remove(dict.fromkeys([*named, *(name for name in files if _LEFTOVER_NAME.fullmatch(name))]))


def parts_in(directory: Directory) -> list[str]:
    """Return the names of the folders that ``write_parallel`` has made, complete or not."""
    return sorted(name for name in directory.listed()[1] if _PART_NAME.fullmatch(name) or is_attempt(name))


def is_attempt(name: str) -> bool:
    """Return whether a folder is of an attempt of ``write_parallel`` to write an item."""
    return _ATTEMPT_NAME.fullmatch(name) is not None


def remove_parts(directory: Directory, shown: str) -> None:
    """Remove the parts that ``write_parallel`` has left in a directory.

    Args:
        directory: The directory.
        shown: The same, for messages.

    Raises:
        FileExistsError: The index of a part is another program's.
        Exception: A file cannot be removed. This is the file system's error.
    """
    for name in parts_in(directory):
        if is_attempt(name):
            remove_attempt(directory, name)
        else:
            remove_dataset(directory.below(name), f"{shown}/{name}")
            directory.remove([f"{name}/{INDEX_NAME}"])


def remove_attempt(directory: Directory, name: str) -> None:
    """Remove the folder of an attempt to write a part. All files in it are the attempt's.

    Raises:
        Exception: A file cannot be removed. This is the file system's error.
    """
    files, _ = directory.below(name).listed()
    directory.remove(f"{name}/{file}" for file in [*files, INDEX_NAME])


def _is_index(content: bytes) -> bool:
    """Return whether a file is the index of a dataset of shards, valid or not."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"version", "shards"} <= cast("dict[str, Any]", found).keys()

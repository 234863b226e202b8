"""The destination of a writer: a local directory, a remote one with a local staging directory, or both."""

import contextlib
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import Any, Self, cast

from fkat_data.errors import ConfigurationError, DownloadError
from fkat_data.files.index import INDEX_NAME
from fkat_data.files.stored import is_same_path
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.storage.attempts import TransferError, with_attempts
from fkat_data.storage.location import is_url, resolved
from fkat_data.streaming.cache.locks import LockFile, Owned
from fkat_data.streaming.writing.directories import (
    Directory,
    LocalDirectory,
    RemoteDirectory,
    directory_of,
    parts_in,
    remove_dataset,
    remove_parts,
)

_EXPECTED = "a local path, a URL, or (local path, URL or path)"


def local_and_remote(argument: str, value: Any) -> tuple[str | None, str | None]:
    """Split a writer's ``out`` into (local path or None, remote path or URL or None). Paths are absolute.

    Args:
        argument: Name of the argument, for messages.
        value: A local path, a URL, or (local path, URL or path).

    Raises:
        ConfigurationError: ``value`` has another form.
    """
    if not isinstance(value, (tuple, list)):
        location = resolved(argument, value, _EXPECTED)
        return (None, location) if is_url(location) else (location, None)
    sides = cast("Sequence[Any]", value)
    if len(sides) == 2 and all(sides):
        local, remote = (resolved(argument, side, _EXPECTED) for side in sides)
        if not is_url(local):
            return local, remote
    raise ConfigurationError(argument, cast("object", value), _EXPECTED)


#: The file in a directory that is being written; readers and ``merge_index`` ignore it.
LOCK_NAME = ".fkat_data.writing"


class WriterLock:
    """The exclusive right to write to one or more directories, from the constructor to ``close``.

    Each directory has a lock in this node's temporary directory. A local directory also has one of its own, so that it
    excludes writers on other nodes where the file system has locks across nodes. A directory that cannot have a lock, such
    as a directory on a file system without locks, has none.

    Args:
        shown: The directory, for messages.
        keys: A text for each directory, equal for equal directories.
        directory: The local directory, which exists; None if there is none.

    Raises:
        ConfigurationError: Another writer holds the right.
    """

    def __init__(self, shown: str, keys: Iterable[str], directory: Path | None) -> None:
        paths = [_of_this_node(key) for key in sorted(set(keys))]
        with contextlib.ExitStack() as held:
            for path in [*paths, *([] if directory is None else [directory / LOCK_NAME])]:
                with suppress(OSError):
                    # What cannot be removed, as its directory is gone or read-only, is no lock once it is closed.
                    held.enter_context(suppress(OSError))
                    if not held.enter_context(Owned(partial(LockFile, path))).try_take():
                        raise ConfigurationError("out", shown, "a directory that no other writer is writing to")
            self._held = held.pop_all()

    def close(self) -> None:
        """Give the right back, if this process took it."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _of_this_node(key: str) -> Path:
    digest = blake2s(os.fsencode(key), digest_size=16).hexdigest()
    return Path(tempfile.gettempdir(), f"fkat_data-{os.geteuid()}-{digest}.writing")


class Destination:
    """The files of a dataset that is being written. The index comes last, so a partial dataset never looks complete.

    Args:
        out: A local path, a URL, or (local path, URL or path).
        keep_local: Whether to keep local files after their upload.
        max_workers: Number of upload threads; None for the standard library's default.
        num_attempts: Maximum number of attempts to upload a file.
        exist_ok: Whether to replace an existing dataset. Its index is removed first; files of others stay.
        storage_options: The options of fsspec's file system for the URL.

    Raises:
        ConfigurationError: ``out`` has another form, fsspec cannot open it, its bucket does not exist, or another
            writer is writing to it.
        FileExistsError: ``out`` already has content, and ``exist_ok`` is false.
        OSError: A directory cannot be made, or an old file cannot be removed. Some file systems raise errors of their
            own.

    Attributes:
        shown: Where the dataset goes, for messages.
        local: The directory of the local files.
        remote: The URL or directory that they are uploaded to; None if there is none.
    """

    def __init__(
        self,
        out: str | Path | tuple[str, str],
        *,
        keep_local: bool,
        max_workers: int | None,
        num_attempts: int,
        exist_ok: bool,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        local, remote = local_and_remote("out", out)
        directory = None if remote is None else RemoteDirectory(remote, "out", storage_options)
        self.remote: str | None = remote
        self._is_temporary = local is None
        self.shown: str = str(local) if directory is None else directory.shown
        self._written: list[Path] = []
        self._keep_local = directory is None or (keep_local and not self._is_temporary)
        self._is_own = local is not None and not Path(local).exists()
        self._lock = _locked(local, directory)
        try:
            if directory is not None:
                _clear_remote(directory, exist_ok=exist_ok)
            if local is not None:
                _clear_local(Path(local), exist_ok=exist_ok)
            self.local: Path = Path(tempfile.mkdtemp(prefix="fkat-writer-") if local is None else local)
        except BaseException:
            self._lock.close()
            if self._is_own and local is not None:
                with suppress(OSError):
                    Path(local).rmdir()
            raise
        self._remote = directory
        self._uploads = directory and Uploads(
            directory, max_workers=max_workers, num_attempts=num_attempts, keep_local=self._keep_local
        )

    def add(self, name: str, content: bytes) -> None:
        """Write a file, and start its upload.

        Raises:
            Exception: An earlier upload failed. This is its error.
            OSError: The file cannot be written.
        """
        path = self.local / name
        self._written.append(path)
        path.write_bytes(content)
        if self._uploads is not None:
            self._uploads.put(path, name)

    def raise_failure(self) -> None:
        """Raise the error of a failed upload, if there is one.

        Raises:
            Exception: The error of the failed upload.
        """
        if self._uploads is not None:
            self._uploads.raise_failure()

    def publish(self, index: bytes) -> None:
        """Wait for all uploads and write the index. Then remove the local directory unless it is kept.

        Raises:
            FileExistsError: Another writer has written an index there meanwhile.
            Exception: An upload failed. This is its error.
            OSError: The index cannot be written.
        """
        if self._uploads is not None:
            self._uploads.wait()
        # Writers on other nodes, or of other users, may not see the lock.
        if (self.local / INDEX_NAME).exists() or (self._remote is not None and self._remote.has(INDEX_NAME)):
            raise FileExistsError(f"another writer has written a dataset to {self.shown!r} meanwhile: write it again")
        temporary = self.local / f"{INDEX_NAME}.tmp"
        self._written.append(temporary)
        temporary.write_bytes(index)
        path = temporary.replace(self.local / INDEX_NAME)
        self._written[-1] = path
        if self._uploads is not None:
            self._uploads.put(path, INDEX_NAME)
            self._uploads.wait()
            self._uploads.close()
        self._lock.close()
        if not self._keep_local:
            self._remove_local()

    def abandon(self, *, wait: bool = True) -> None:
        """Remove the local files. Uploaded files stay, without an index.

        Args:
            wait: Whether to wait for uploads that have started.
        """
        if self._uploads is not None:
            self._uploads.close(wait=wait)
        try:
            for path in self._written:
                path.unlink(missing_ok=True)
        finally:
            self._lock.close()
            self._remove_local()

    def _remove_local(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.local, ignore_errors=True)
        elif self._is_own:
            with suppress(OSError):  # it may contain other programs' files
                self.local.rmdir()


def cleared_for_parts(
    out: Any, *, exist_ok: bool, storage_options: Mapping[str, Any] | None
) -> tuple[tuple[str | None, str | None], WriterLock]:
    """Remove an old dataset and its parts before ``write_parallel`` writes new ones.

    Returns:
        The local path or None and the remote path or URL or None; and the right to write there.

    Raises:
        ConfigurationError: See ``Destination``.
        FileExistsError: A dataset or a part of one exists, and ``exist_ok`` is false.
        Exception: An old file cannot be removed. This is the file system's error.
    """
    local, remote = local_and_remote("out", out)
    directory = None if remote is None else RemoteDirectory(remote, "out", storage_options)
    lock = _locked(local, directory)
    try:
        if directory is not None:
            _clear_remote(directory, exist_ok=exist_ok, has_parts=True)
        if local is not None:
            _clear_parts(LocalDirectory(Path(local)), local, exist_ok=exist_ok)
    except BaseException:
        lock.close()
        raise
    return (local, remote), lock


def _locked(local: str | None, remote: RemoteDirectory | None) -> WriterLock:
    """Return the right to write to both sides."""
    path = None if local is None else Path(local)
    if path is not None and remote is not None and remote.path is not None and is_same_path(path, remote.path):
        raise ConfigurationError("out", (local, remote.shown), "two different directories")
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
    keys = [*([] if path is None else [str(path.resolve())]), *([] if remote is None else [remote.key])]
    shown = str(local) if remote is None else remote.shown
    return WriterLock(shown, keys, path)


def _clear_local(directory: Path, *, exist_ok: bool) -> None:
    if all(path.name == LOCK_NAME for path in directory.iterdir()):
        return
    if not exist_ok:
        raise FileExistsError(f"out = {str(directory)!r} is not empty; pass exist_ok=True to replace its dataset")
    remove_dataset(LocalDirectory(directory), str(directory))


def _clear_remote(directory: RemoteDirectory, *, exist_ok: bool, has_parts: bool = False) -> None:
    directory.check()
    target = directory_of(directory)
    if has_parts:
        _clear_parts(target, directory.shown, exist_ok=exist_ok)
    elif exist_ok:
        remove_dataset(target, directory.shown)
    else:
        _refuse_index(target, directory.shown)


def _clear_parts(directory: Directory, shown: str, *, exist_ok: bool) -> None:
    if exist_ok:
        remove_dataset(directory, shown)
        remove_parts(directory, shown)
        return
    _refuse_index(directory, shown)
    for name in parts_in(directory):
        _refuse_index(directory.below(name), f"{shown}/{name}")


def _refuse_index(directory: Directory, shown: str) -> None:
    if directory.has(INDEX_NAME):
        raise FileExistsError(f"{shown!r} already has a dataset; pass exist_ok=True to replace it")


_LONGEST_PAUSE_S = 10.0
#: Pending files per thread. At this limit the writer waits, so that the local disk does not fill up.
_PENDING_PER_THREAD = 4


class Uploads:
    """A queue of uploads and the threads that run them.

    Args:
        remote: Directory to upload to.
        max_workers: Number of threads; None for the standard library's default.
        num_attempts: Maximum number of attempts to upload a file.
        keep_local: Whether to keep a local file after its upload.
    """

    def __init__(
        self, remote: RemoteDirectory, *, max_workers: int | None, num_attempts: int, keep_local: bool
    ) -> None:
        self._remote = remote
        self._num_attempts = num_attempts
        self._keep_local = keep_local
        self._threads = ThreadPoolExecutor(max_workers, thread_name_prefix="fkat-upload")
        self._max_pending = _PENDING_PER_THREAD * (max_workers or 8)
        self._pending: deque[Future[None]] = deque()
        self._failure: Exception | None = None

    def put(self, path: Path, name: str) -> None:
        """Start an upload. Wait while too many are pending.

        Args:
            path: Path of the local file.
            name: Path to write, relative to the remote directory.

        Raises:
            Exception: An earlier upload failed. This is its error.
        """
        self.raise_failure()
        while len(self._pending) >= self._max_pending:
            self._settle()
        self._pending.append(self._threads.submit(self._upload, path, name))

    def raise_failure(self) -> None:
        """Raise the error of a failed upload, if there is one.

        Raises:
            Exception: The error of the failed upload. Every later call raises it again, because its file stays
                missing.
        """
        if self._failure is not None:
            raise self._failure
        while self._pending and self._pending[0].done():
            self._settle()

    def wait(self) -> None:
        """Wait until every file is uploaded.

        Raises:
            Exception: An upload failed. This is its error.
        """
        self.raise_failure()
        while self._pending:
            self._settle()

    def close(self, *, wait: bool = True) -> None:
        """Cancel uploads that have not started, and end the threads.

        Args:
            wait: Whether to wait for uploads that have started.
        """
        self._threads.shutdown(wait=wait, cancel_futures=True)
        self._pending.clear()

    def _settle(self) -> None:
        try:
            self._pending.popleft().result()
        except Exception as error:
            self._failure = error
            raise

    def _upload(self, path: Path, name: str) -> None:
        failed: list[Exception] = []

        def attempt() -> None:
            try:
                self._remote.upload(str(path), name)
            except genuine(Exception) as error:
                failed.append(error)
                raise TransferError(f"{type(error).__name__}: {error}") from error  # whatever it is, it may pass

        with suppress(DownloadError):
            with_attempts(
                attempt,
                url=f"upload of {name} to {self._remote.shown}",
                num_retries=self._num_attempts - 1,
                timeout_s=_LONGEST_PAUSE_S,
                redaction=self._remote.redaction,
            )
        if len(failed) == self._num_attempts:
            failed[-1].add_note(f"while uploading {path.name} to {self._remote.shown}, attempt {len(failed)}")
            raise failed.pop()
        if not self._keep_local:
            path.unlink()

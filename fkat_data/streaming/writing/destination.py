"""Where a writer puts a dataset: a local directory, a remote one with a local staging directory, or both."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.interruption import suppress
from fkat_data.streaming.formats.index import INDEX_NAME
from fkat_data.streaming.writing.local_directory import LocalDirectory
from fkat_data.streaming.writing.remote_directory import RemoteDirectory
from fkat_data.streaming.writing.replacement import parts_in, place_of, remove_dataset, remove_parts
from fkat_data.streaming.writing.sides import local_and_remote
from fkat_data.streaming.writing.uploads import Uploads
from fkat_data.streaming.writing.writer_lock import LOCK_NAME, WriterLock

__all__ = ["Destination", "cleared_for_parts"]


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
    if path is not None and remote is not None and remote.path is not None and _is_same(path, remote.path):
        raise ConfigurationError("out", (local, remote.shown), "two different directories")
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
    keys = [*([] if path is None else [str(path.resolve())]), *([] if remote is None else [remote.key])]
    shown = str(local) if remote is None else remote.shown
    return WriterLock(shown, keys, path)


def _is_same(path: Path, other: Path) -> bool:
    return path.resolve() == other.resolve() or (path.exists() and other.exists() and path.samefile(other))


def _clear_local(directory: Path, *, exist_ok: bool) -> None:
    if all(path.name == LOCK_NAME for path in directory.iterdir()):
        return
    if not exist_ok:
        raise FileExistsError(f"out = {str(directory)!r} is not empty; pass exist_ok=True to replace its dataset")
    remove_dataset(LocalDirectory(directory), str(directory))


def _clear_remote(directory: RemoteDirectory, *, exist_ok: bool, has_parts: bool = False) -> None:
    directory.check()
    place = place_of(directory)
    if has_parts:
        _clear_parts(place, directory.shown, exist_ok=exist_ok)
    elif exist_ok:
        remove_dataset(place, directory.shown)
    else:
        _refuse_index(place, directory.shown)


def _clear_parts(place: LocalDirectory | RemoteDirectory, shown: str, *, exist_ok: bool) -> None:
    if exist_ok:
        remove_dataset(place, shown)
        remove_parts(place, shown)
        return
    _refuse_index(place, shown)
    for name in parts_in(place):
        _refuse_index(place.below(name), f"{shown}/{name}")


def _refuse_index(place: LocalDirectory | RemoteDirectory, shown: str) -> None:
    if place.has(INDEX_NAME):
        raise FileExistsError(f"{shown!r} already has a dataset; pass exist_ok=True to replace it")

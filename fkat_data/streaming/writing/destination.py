"""Where a writer puts a dataset: a local directory, a remote one with a local staging directory, or both."""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from fkat_data.errors import ConfigurationError, ShardError
from fkat_data.streaming.formats.index import FORMATS, INDEX_NAME, read_index
from fkat_data.streaming.writing.remote_directory import RemoteDirectory, is_remote
from fkat_data.streaming.writing.uploads import Uploads

__all__ = ["Destination", "local_and_remote", "remove_index"]

#: Names of files that a killed writer may have left behind.
_LEFTOVER_NAME = re.compile(rf"shard\.\d{{5,}}\.({'|'.join(FORMATS)})(\.meta)?(\.(br|bz2|gz|snappy|zstd))?(\.tmp)?")


class Destination:
    """The files of a dataset that is being written. The index comes last, so a partial dataset never looks complete.

    Args:
        out: A local path, a URL, or (local path, URL or path).
        keep_local: Whether to keep local files after their upload.
        max_workers: Number of upload threads; None for the standard library's default.
        num_attempts: Maximum number of attempts to upload a file.
        exist_ok: Whether to replace an existing dataset. Its index is removed first; other files stay.

    Raises:
        ConfigurationError: ``out`` has another form, or fsspec cannot open it.
        FileExistsError: ``out`` already has content, and ``exist_ok`` is false.
    """

    def __init__(
        self,
        out: str | Path | tuple[str, str],
        *,
        keep_local: bool,
        max_workers: int | None,
        num_attempts: int,
        exist_ok: bool,
    ) -> None:
        local, remote = local_and_remote("out", out)
        directory = None if remote is None else RemoteDirectory(remote, "out")
        if directory is not None:
            _clear_remote(directory, exist_ok=exist_ok)
        self._is_temporary = local is None
        self.local = Path(tempfile.mkdtemp(prefix="fkat-writer-") if local is None else local)
        self._is_own = not self.local.exists()
        if not self._is_temporary:
            _clear_local(self.local, exist_ok=exist_ok)
        self._written: list[Path] = []
        self._keep_local = directory is None or (keep_local and not self._is_temporary)
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
            Exception: An upload failed. This is its error.
            OSError: The index cannot be written.
        """
        if self._uploads is not None:
            self._uploads.wait()
        temporary = self.local / f"{INDEX_NAME}.tmp"
        self._written.append(temporary)
        temporary.write_bytes(index)
        path = temporary.replace(self.local / INDEX_NAME)
        self._written[-1] = path
        if self._uploads is not None:
            self._uploads.put(path, INDEX_NAME)
            self._uploads.wait()
            self._uploads.close()
            if not self._keep_local:
                self._remove_local()

    def abandon(self) -> None:
        """Remove the local files. Uploaded files stay, without an index."""
        if self._uploads is not None:
            self._uploads.close()
        for path in self._written:
            path.unlink(missing_ok=True)
        self._remove_local()

    def _remove_local(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.local)
        elif self._is_own:
            with contextlib.suppress(OSError):  # it may contain other programs' files
                self.local.rmdir()


def local_and_remote(argument: str, value: Any) -> tuple[str | None, str | None]:
    """Split a writer's ``out`` into (local path or None, remote path or URL or None).

    Args:
        argument: Name of the argument, for messages.
        value: A local path, a URL, or (local path, URL or path).

    Raises:
        ConfigurationError: ``value`` has another form.
    """
    expected = "a local path, a URL, or (local path, URL or path)"
    if isinstance(value, (str, Path)) and str(value):
        location = str(value)
        return (None, location) if is_remote(location) else (location, None)
    sides = cast("Sequence[Any]", value if isinstance(value, (tuple, list)) else ())
    if len(sides) == 2 and all(isinstance(side, (str, Path)) and str(side) for side in sides):
        local, remote = map(str, sides)
        if not is_remote(local):
            return local, remote
    raise ConfigurationError(argument, cast("object", value), expected)


def remove_index(local: str | None, remote: str | None, *, exist_ok: bool) -> None:
    """Remove the index of a dataset before it is replaced, so that a partial dataset never looks complete.

    Raises:
        FileExistsError: An index exists, and ``exist_ok`` is false.
        ConfigurationError: fsspec cannot open ``remote``.
    """
    if remote is not None:
        _clear_remote(RemoteDirectory(remote, "out"), exist_ok=exist_ok)
    if local is not None and Path(local, INDEX_NAME).exists():
        if not exist_ok:
            raise FileExistsError(f"{local!r} already has a dataset; pass exist_ok=True to replace it")
        Path(local, INDEX_NAME).unlink()


def _clear_local(directory: Path, *, exist_ok: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if not any(directory.iterdir()):
        return
    if not exist_ok:
        raise FileExistsError(f"out = {str(directory)!r} is not empty; pass exist_ok=True to replace its dataset")
    index = directory / INDEX_NAME
    files: list[str] = []
    if index.exists():
        with contextlib.suppress(ShardError):  # an invalid index has no file names to use
            files = [info.basename for entry in read_index(index) for pair in entry.files for info in pair if info]
        index.unlink()
    for path in {*(directory / name for name in files), *directory.iterdir()}:
        if path.is_file() and (path.parent != directory or path.name in files or _LEFTOVER_NAME.fullmatch(path.name)):
            path.unlink()


def _clear_remote(directory: RemoteDirectory, *, exist_ok: bool) -> None:
    if not directory.has(INDEX_NAME):
        return
    if not exist_ok:
        raise FileExistsError(f"{directory.url!r} already has a dataset; pass exist_ok=True to replace it")
    directory.remove(INDEX_NAME)

"""Where a dataset is written: a local directory, a remote one by way of a local one, or both."""

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

__all__ = ["Destination", "places_of", "remove_index"]

#: What a writer that was killed leaves behind.
_LEFT_OVER = re.compile(rf"shard\.\d{{5,}}\.({'|'.join(FORMATS)})(\.meta)?(\.(br|bz2|gz|snappy|zstd))?(\.tmp)?")


class Destination:
    """The files of one dataset while it is written. The index comes last: without it, nothing looks whole.

    Args:
        out: A local path, a URL, or (local path, URL or path).
        keep_local: Whether files stay in the local directory once they are in the remote one.
        max_workers: Threads that upload.
        num_attempts: How often each file is tried.
        exist_ok: Whether a dataset that is there may be replaced. Its index goes at once; other files stay.

    Raises:
        ConfigurationError: ``out`` is none of these, or no file system opens it.
        FileExistsError: There is something already, and ``exist_ok`` is false.
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
        local, remote = places_of("out", out)
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
        """Write a file, and begin its upload.

        Raises:
            Exception: The error of an earlier upload.
            OSError: It cannot be written.
        """
        path = self.local / name
        self._written.append(path)
        path.write_bytes(content)
        if self._uploads is not None:
            self._uploads.put(path, name)

    def raise_failure(self) -> None:
        """Return if no upload has failed so far.

        Raises:
            Exception: The error of one that has.
        """
        if self._uploads is not None:
            self._uploads.raise_failure()

    def publish(self, index: bytes) -> None:
        """Write the index once everything else is in place, then let go of the local directory if it is not kept.

        Raises:
            Exception: The error of an upload.
            OSError: It cannot be written.
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
        """Remove what was written locally; what was uploaded stays there without an index."""
        if self._uploads is not None:
            self._uploads.close()
        for path in self._written:
            path.unlink(missing_ok=True)
        self._remove_local()

    def _remove_local(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.local)
        elif self._is_own:
            with contextlib.suppress(OSError):  # others' files may be in it
                self.local.rmdir()


def places_of(argument: str, value: Any) -> tuple[str | None, str | None]:
    """Return (local path or None, remote path or URL or None) of a place as writers take it.

    Raises:
        ConfigurationError: It is neither a path, nor a URL, nor (path, path or URL).
    """
    expected = "a local path, a URL, or (local path, URL or path)"
    if isinstance(value, (str, Path)) and str(value):
        place = str(value)
        return (None, place) if is_remote(place) else (place, None)
    places = cast("Sequence[Any]", value if isinstance(value, (tuple, list)) else ())
    if len(places) == 2 and all(isinstance(place, (str, Path)) and str(place) for place in places):
        local, remote = map(str, places)
        if not is_remote(local):
            return local, remote
    raise ConfigurationError(argument, cast("object", value), expected)


def remove_index(local: str | None, remote: str | None, *, exist_ok: bool) -> None:
    """Remove the index of a dataset that is to be replaced, so that nothing looks whole meanwhile.

    Raises:
        FileExistsError: There is one, and ``exist_ok`` is false.
        ConfigurationError: No file system opens ``remote``.
    """
    if remote is not None:
        _clear_remote(RemoteDirectory(remote, "out"), exist_ok=exist_ok)
    if local is not None and Path(local, INDEX_NAME).exists():
        if not exist_ok:
            raise FileExistsError(f"there is a dataset in {local!r}; exist_ok=True replaces it")
        Path(local, INDEX_NAME).unlink()


def _clear_local(directory: Path, *, exist_ok: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if not any(directory.iterdir()):
        return
    if not exist_ok:
        raise FileExistsError(f"out = {str(directory)!r} is not empty; exist_ok=True replaces the dataset in it")
    index = directory / INDEX_NAME
    files: list[str] = []
    if index.exists():
        with contextlib.suppress(ShardError):  # what cannot be read names no files
            files = [info.basename for entry in read_index(index) for pair in entry.files for info in pair if info]
        index.unlink()
    for path in {*(directory / name for name in files), *directory.iterdir()}:
        if path.is_file() and (path.parent != directory or path.name in files or _LEFT_OVER.fullmatch(path.name)):
            path.unlink()


def _clear_remote(directory: RemoteDirectory, *, exist_ok: bool) -> None:
    if not directory.has(INDEX_NAME):
        return
    if not exist_ok:
        raise FileExistsError(f"there is a dataset in {directory.url!r}; exist_ok=True replaces it")
    directory.remove(INDEX_NAME)

"""Where a stream's shards come from: the one interface between reading and wherever the files are kept."""

import contextlib
import secrets
import shutil
import tempfile
from hashlib import blake2s
from pathlib import Path
from typing import Protocol

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.streaming.formats.compression import decompress_file
from fkat_data.streaming.formats.entry import FileInfo, ShardEntry
from fkat_data.streaming.formats.hashing import validate_file
from fkat_data.streaming.formats.index import INDEX_NAME, read_index
from fkat_data.streaming.stream import Stream

__all__ = ["DirectorySource", "ShardSource", "source_of"]


class ShardSource(Protocol):
    """A stream's shards, wherever they are kept. It pickles, and may be used by many processes at a time."""

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says of the shards, in its order."""
        ...

    def fetch(self, entry: ShardEntry) -> Path:
        """Make a shard's files be there as they are read; return the directory that their basenames belong to."""
        ...


def source_of(stream: Stream) -> ShardSource:
    """Return where a stream's shards come from."""
    return DirectorySource(
        stream.remote_directory,
        stream.local_directory,
        validate_hash=stream.validate_hash,
        keep_zip=bool(stream.keep_zip),
    )


class DirectorySource:
    """Shards in a directory of this machine: read in place, or copied to another directory first.

    A file appears under its name when it is whole: it is copied or decompressed under another name, compared with
    what the index says, then renamed. So any number of processes may do this side by side. Nothing is deleted that
    could not be fetched again.

    Args:
        remote: The directory that the shards come from; None: ``local`` has them all.
        local: The directory that they are copied to; None: they are read in ``remote``.
        validate_hash: The hash of the index that files are compared with; None: their sizes alone.
        keep_zip: Whether compressed files stay once they are decompressed.
    """

    def __init__(self, remote: Path | None, local: Path | None, *, validate_hash: str | None, keep_zip: bool) -> None:
        directory = local or remote
        if directory is None:
            raise ConfigurationError("local", local, "a directory, where there is no remote")
        self._directory = directory
        self._remote = None if remote is None or remote == directory else remote
        # Read in place, a directory that others may share is not written to.
        self._decompressed = _own_directory(directory) if local is None else directory
        self._validate_hash = validate_hash
        self._keep_zip = keep_zip or self._remote is None
        self._validated: set[str] = set()

    def read_index(self) -> list[ShardEntry]:
        """Return what the index says of the shards, in its order; a copy of it that is out of date is replaced.

        Raises:
            ShardNotFoundError: There is none.
            ShardCorruptError: It makes no sense.
        """
        path = self._directory / INDEX_NAME
        if self._remote is not None:
            there = self._remote / INDEX_NAME
            if not there.is_file() and not path.is_file():
                raise ShardNotFoundError(str(there), "no such file, and no copy of it at " + str(path))
            if there.is_file() and (not path.is_file() or there.read_bytes() != path.read_bytes()):
                read_index(there)
                _copy(there, path, None, None)
        return read_index(path)

    def fetch(self, entry: ShardEntry) -> Path:
        """Make a shard's raw files be there; return their directory.

        Raises:
            ConfigurationError: The index has no hash of the kind that files are to be compared with.
            ShardNotFoundError: A file is nowhere.
            ShardCorruptError: A file's size or hash is not what the index says.
            OSError: A file cannot be read or written.
        """
        directory = self._directory if entry.compression is None else self._decompressed
        for raw, compressed in entry.files:
            if compressed is None:
                self._fetch_raw(raw, directory)
            else:
                self._fetch_compressed(raw, compressed, str(entry.compression), directory)
        return directory

    def _fetch_raw(self, raw: FileInfo, directory: Path) -> None:
        path = directory / raw.basename
        if self._remote is None:
            self._validate(path, raw)
        elif not _is_whole(path, raw):
            _copy(self._remote / raw.basename, path, raw, self._validate_hash)

    def _fetch_compressed(self, raw: FileInfo, compressed: FileInfo, compression: str, directory: Path) -> None:
        path = directory / raw.basename
        if _is_whole(path, raw):
            self._validate(path, raw)
            return
        source = self._directory / compressed.basename
        if self._remote is not None and not _is_whole(source, compressed):
            _copy(self._remote / compressed.basename, source, compressed, self._validate_hash)
        else:
            validate_file(source, compressed, self._validate_hash)
        path.parent.mkdir(parents=True, exist_ok=True)
        decompress_file(compression, source, path, raw)
        if not self._keep_zip:
            # Another process may have been quicker.
            with contextlib.suppress(FileNotFoundError):
                source.unlink()

    def _validate(self, path: Path, info: FileInfo) -> None:
        # Once in a process: the size is compared whenever the file is opened.
        if self._validate_hash is not None and info.basename not in self._validated:
            validate_file(path, info, self._validate_hash)
            self._validated.add(info.basename)


def _is_whole(path: Path, info: FileInfo) -> bool:
    try:
        validate_file(path, info)
    except (ShardNotFoundError, ShardCorruptError):
        return False
    return True


def _copy(source: Path, target: Path, info: FileInfo | None, algorithm: str | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        shutil.copyfile(source, temporary)
        if info is not None:
            validate_file(temporary, info, algorithm)
        temporary.replace(target)
    except FileNotFoundError as error:
        raise ShardNotFoundError(str(source), "no such file") from error
    except ShardCorruptError as error:
        raise ShardCorruptError(str(source), f"copied to {target.parent}: {error.reason}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _own_directory(directory: Path) -> Path:
    name = blake2s(str(directory.absolute()).encode(), digest_size=16).hexdigest()
    return Path(tempfile.gettempdir()) / "fkat_data" / name

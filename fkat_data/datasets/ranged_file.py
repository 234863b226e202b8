"""Read ranges of a local or remote file."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fkat_data.datasets.file_version import FileVersion, changed
from fkat_data.datasets.opening import local_path, not_found, open_uri
from fkat_data.dropped import Descriptor
from fkat_data.interruption import genuine

#: What is read in the time that another reading takes to begin: of a local file, and of others.
_HOP_BYTES, _HOP_IN_STORE_BYTES = 16 << 10, 2 << 20


class RangedFile:
    """An open file, which threads may share. Forked children may share a local one, and no other.

    Args:
        path: A local path, or a URI that fsspec supports.
        storage_options: Options for fsspec, for files that are not local.

    Raises:
        ShardNotFoundError: The file does not exist.
        ConfigurationError: No installed file system opens the URI.

    Attributes:
        size_bytes: The size of the file when it was opened.
        hop_bytes: A gap that is smaller takes less time to read than another call of ``read``.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self._path = path
        self._file: Descriptor | None = None
        self._remote: Any = None
        self._lock = threading.Lock()  # a remote file has one position
        local = local_path(path)
        self.hop_bytes = _HOP_IN_STORE_BYTES if local is None else _HOP_BYTES
        if local is None:
            self._remote = open_uri(path, storage_options)
            self.size_bytes: int = self._remote.seek(0, os.SEEK_END)
            return
        try:
            with Path(local).open("rb", buffering=0) as file:
                self.size_bytes = os.fstat(file.fileno()).st_size
                self._file = Descriptor(os.dup(file.fileno()))
        except genuine(FileNotFoundError) as error:
            raise not_found(path) from error

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``.

        Raises:
            ShardCorruptError: The file has become shorter.
            OSError: The file cannot be read.
        """
        parts: list[bytes] = []
        while start < stop:
            parts.append(self._some(start, stop - start))
            start += len(parts[-1])
            if not parts[-1]:
                raise changed(self._path, f"it has become shorter and ends at byte {start:,}")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def version(self) -> FileVersion:
        """Return what the open file is: now, or for a remote one when it was opened."""
        return FileVersion.of_remote(self._remote) if self._file is None else FileVersion.of(self._file.fileno())

    def _some(self, start: int, count: int) -> bytes:
        if self._file is not None:
            return os.pread(self._file.fileno(), count, start)
        with self._lock:
            self._remote.seek(start)
            return self._remote.read(count)

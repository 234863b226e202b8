"""Which version of a dataset a cache's files belong to; a new one replaces it once no process uses the old one."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache.cache_directory import CacheDirectory
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.paths import BOOKKEEPING
from fkat_data.streaming.cache.temporary import Temporary
from fkat_data.streaming.formats.index import INDEX_NAME

__all__ = ["DatasetVersion"]

_RECORD = "dataset_version.json"
_MOST_BYTES = 1 << 18

#: By directory: the process that uses it, its lock that shows it, and the version it uses.
_users: dict[str, tuple[int, LockFile, str]] = {}
_guard = threading.RLock()
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_guard.release)


class DatasetVersion:
    """Which version of a dataset the files of a cache's directory belong to.

    Two versions may have files of the same names and sizes with different data. So the directory records one version,
    and every process that uses the directory holds a shared lock until it ends.

    It is thread-safe and pickles; a process that unpickles it, or a forked one, calls ``hold``.

    Args:
        directory: The directory, as the caller gave it to ``CacheBudget``.

    Raises:
        ConfigurationError: It is not safe to use.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = CacheDirectory(directory)
        self._version: str | None = None

    @property
    def recorded(self) -> str | None:
        """The version that the directory's files belong to; None without a record, "" if the record is unreadable."""
        try:
            with (self._directory.path / BOOKKEEPING / _RECORD).open("rb") as file:
                version = json.loads(file.read(_MOST_BYTES))["version"]
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, RecursionError):
            return ""
        return version if isinstance(version, str) else ""

    def adopt(self, version: str, names: Callable[[str], Iterable[str]]) -> None:
        """Use the directory for one version of the dataset until this process ends.

        Removes the files of another version first; keeps those of a directory without a record.

        Args:
            version: The version, 1 to 10,000 characters.
            names: Returns the names of the files of the recorded version, which it is called with ("" if the record
                is unreadable). If a process dies while it removes them, the next one calls it again; ``index.json``
                goes last.

        Raises:
            ConfigurationError: Another process uses the directory for another version.
            OSError: The directory is not writable.
        """
        if not 1 <= len(version) <= 10_000:
            raise ConfigurationError("version", version, "1 to 10,000 characters")
        with self._exclusive():
            recorded = self.recorded
            if recorded not in (None, version):
                self._empty(recorded, names)
            if recorded != version:
                self._record(version)
            self._version = version
            self._join(version)

    def making(self) -> AbstractContextManager[None]:
        """Return a context in which no other process of the node is in such a context of this directory.

        Raises:
            OSError: The directory is not writable.
        """
        return self._locked("making_index")

    def names(self) -> list[str]:
        """Return the names of all files in the directory, except the cache's bookkeeping."""
        return [file.name for file in self._directory.files()]

    def hold(self) -> None:
        """Have this process use the adopted version; cheap if it already does.

        Raises:
            ConfigurationError: No version was adopted, or another process has adopted another one since.
        """
        with _guard:
            owner, _, version = _users.get(self._directory.resolved, (0, None, ""))
            if owner == os.getpid() and version == self._version:
                return
        with self._exclusive():
            recorded = self.recorded
            if self._version is None or recorded != self._version:
                raise self._in_use(str(recorded))
            self._join(self._version)

    def _empty(self, recorded: str, names: Callable[[str], Iterable[str]]) -> None:
        before = self._leave()
        try:
            with self._directory.open("users") as users:
                # No process starts to use it meanwhile: that takes the exclusive lock, too.
                if not users.try_lock():
                    raise self._in_use(recorded)
                removed = list(names(recorded))
                for name in removed:
                    self._directory.remove(name)
                self._directory.remove(INDEX_NAME)
                # After a power loss, no old file may be left beside a record of the new version.
                self._directory.sync(removed)
        except BaseException:
            if before is not None:
                self._join(before)
            raise

    def _record(self, version: str) -> None:
        content = json.dumps({"version": version}).encode()

        def write(file: BinaryIO) -> None:
            file.write(content)

        with Temporary(self._directory, len(content)) as temporary:
            temporary.fill(_RECORD, write)
            temporary.path.replace(self._directory.path / BOOKKEEPING / _RECORD)
            # Nor a new file without the record: a directory without one is used as it is.
            self._directory.sync([f"{BOOKKEEPING}/{_RECORD}"])

    def _join(self, version: str) -> None:
        with _guard:
            users = self._directory.open("users")
            users.lock(shared=True)
            _users[self._directory.resolved] = os.getpid(), users, version

    def _leave(self) -> str | None:
        """Stop using the directory; return the version that this process used, None if it used none."""
        with _guard:
            owner, users, version = _users.pop(self._directory.resolved, (0, None, ""))
            if users is not None:
                users.close()
            return version if owner == os.getpid() else None

    def _exclusive(self) -> AbstractContextManager[None]:
        return self._locked("dataset_version")

    @contextlib.contextmanager
    def _locked(self, name: str) -> Generator[None]:
        with self._directory.open(name) as lock:
            lock.lock()
            yield

    def _in_use(self, recorded: str) -> ConfigurationError:
        return ConfigurationError(
            "local",
            str(self._directory.given),
            "a directory for this version of the dataset: another job, or another dataset or worker of this job, uses "
            f"it for another version ({recorded[:40]}); end that job, or pass another directory",
        )

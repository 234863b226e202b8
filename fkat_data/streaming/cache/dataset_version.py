"""The version of a dataset that a cache's files belong to; a new one replaces it once no process uses the old one."""

import contextlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fkat_data.errors import ConfigurationError
from fkat_data.files.index import INDEX_NAME
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.streaming.cache.cache_directory import NOT_WRITABLE, CacheDirectory, Temporary, suppress_unwritable
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.paths import BOOKKEEPING

_logger = logging.getLogger(__name__)

_RECORD = "dataset_version.json"
_MOST_BYTES = 1 << 18

#: By directory: the process that uses it, its lock that shows it, and the version it uses. No lock: it only reads.
_users: dict[str, tuple[int, LockFile | None, str]] = {}
_guard = threading.RLock()
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_guard.release)


class VersionRecord(NamedTuple):
    """The version that a directory records.

    Attributes:
        version: The version that its files belong to; None without a record, "" if the record is unreadable.
        label: What the process that recorded it knows the version by; "" if it knows nothing.
    """

    version: str | None
    label: str


class DatasetVersion:
    """The version of a dataset that the files of a cache's directory belong to.

    Two versions may have files of the same names and sizes with different data. So the directory records one version,
    and every process that uses the directory holds a shared lock until it ends.

    A directory whose bookkeeping this process cannot write to is used as it is, if its files are of the version, or
    have no record.

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
        return self.record.version

    @property
    def record(self) -> "VersionRecord":
        """The recorded version and the ``label`` that was passed with it last, from one moment."""
        try:
            with (self._directory.path / BOOKKEEPING / _RECORD).open("rb") as file:
                content = json.loads(file.read(_MOST_BYTES))
                found = VersionRecord(content["version"], content.get("label", ""))
        except genuine(FileNotFoundError, NotADirectoryError, PermissionError):
            return VersionRecord(None, "")
        except genuine(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return VersionRecord("", "")
        return found if all(isinstance(text, str) for text in found) else VersionRecord("", "")

    def adopt(self, version: str, names: Callable[[str], Iterable[str]], *, label: str = "") -> None:
        """Use the directory for one version of the dataset until this process ends.

        Removes the files of another version first; keeps those of a directory without a record.

        Args:
            version: The version, 1 to 10,000 characters.
            names: Returns the names of the files of the recorded version, which it is called with ("" if the record
                is unreadable). If a process dies while it removes them, the next one calls it again; ``index.json``
                goes last.
            label: Any text of at most 10,000 characters to record beside the version; "": what is recorded stays.

        Raises:
            ConfigurationError: Another process uses the directory for another version, or this process cannot remove
                the files of another version.
            OSError: The disk failed.
        """
        if not 1 <= len(version) <= 10_000:
            raise ConfigurationError("version", version, "1 to 10,000 characters")
        if len(label) > 10_000:
            raise ConfigurationError("label", label, "at most 10,000 characters")
        with self._exclusive():
            recorded, label_before = self.record
            if recorded not in (None, version):
                self._empty(recorded, names)
            if recorded != version or label not in ("", label_before):
                self._record(version, label)
            self._version = version
            self._join(version)
            recorded = self.recorded
            if recorded not in (None, version):
                # This process cannot lock, and one that can has adopted another version meanwhile.
                raise self._in_use(recorded or "")

    def making(self) -> AbstractContextManager[None]:
        """Return a context in which no other process of the node is in such a context of this directory.

        Where the directory is not writable, processes do not exclude each other.

        Raises:
            OSError: The disk failed.
        """
        return self._locked("making_index")

    def names(self) -> list[str]:
        """Return the names of all files in the directory, except the cache's bookkeeping."""
        return [file.name for file in self._directory.files()]

    def hold(self) -> None:
        """Have this process use the adopted version; cheap if it already does.

        If the user has emptied the directory meanwhile, it records the version again.

        Raises:
            ConfigurationError: No version was adopted, or another process has adopted another one since.
            OSError: The disk failed.
        """
        with _guard:
            owner, users, version = _users.get(self._directory.resolved, (0, None, ""))
            # A lock on a removed file shows no process that this one uses the directory.
            if owner == os.getpid() and version == self._version and (users is None or users.is_there):
                return
        with self._exclusive():
            recorded = self.recorded
            if self._version is None or recorded not in (None, self._version):
                raise self._in_use(str(recorded))
            if recorded is None:
                self._record(self._version, "")
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
        except BaseException as error:
            if before is not None:
                self._join(before)
            if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
                raise ConfigurationError(
                    "local",
                    str(self._directory.given),
                    f"a directory that this process may write to: its files belong to another version of the dataset "
                    f"({recorded[:40]}) and must be replaced ({error})",
                ) from error
            raise

    def _record(self, version: str, label: str) -> None:
        content = json.dumps({"version": version, "label": label}).encode()

        def write(file: BinaryIO) -> None:
            file.write(content)

        # Where nothing can be written, the files that are there are of this version, or unrecorded.
        with suppress_unwritable(), Temporary(self._directory, len(content)) as temporary:
            temporary.fill(_RECORD, write)
            temporary.path.replace(self._directory.path / BOOKKEEPING / _RECORD)
            # Nor a new file without the record: a directory without one is used as it is.
            self._directory.sync([f"{BOOKKEEPING}/{_RECORD}"])

    def _join(self, version: str) -> None:
        with _guard:
            users = self._users_lock()
            if users is None:
                _logger.info("%s: no lock shows that this process reads it", self._directory.given)
            else:
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
        lock = None
        # Else this process keeps nothing there, and looks at the record again once it has joined.
        with suppress_unwritable():
            lock = self._directory.open(name)
        if lock is None:
            yield
            return
        with lock:
            lock.lock()
            yield

    def _users_lock(self) -> LockFile | None:
        """Open the file that users lock, to read alone if need be; None if that is impossible, too."""
        for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
            with suppress(FileNotFoundError), suppress_unwritable():
                return self._directory.open("users", flags)
        return None

    def _in_use(self, recorded: str) -> ConfigurationError:
        return ConfigurationError(
            "local",
            str(self._directory.given),
            "a directory for this version of the dataset: another job, or another dataset or worker of this job, uses "
            f"it for another version ({recorded[:40]}); end that job, or pass another directory",
        )


def remove_if_unused(directory: Path) -> bool:
    """Remove a cache's directory with all that is in it, unless a process of this node uses it; return whether it did.

    If a process dies meanwhile, the next one removes the rest.

    Raises:
        ConfigurationError: It is not safe to use.
        OSError: It cannot be removed.
    """
    cache = CacheDirectory(directory, is_announced=False)
    with cache.open("users") as users:
        if not users.try_lock():
            return False
        shutil.rmtree(cache.path)
    with suppress(OSError):  # another node's folder may be in it
        directory.rmdir()
    return True

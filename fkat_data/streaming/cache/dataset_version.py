"""Which state of a dataset a cache's files belong to; a newer one replaces it when nobody uses the older one."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import BinaryIO

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache.cache_directory import CacheDirectory
from fkat_data.streaming.cache.locks import LockFile
from fkat_data.streaming.cache.paths import BOOKKEEPING
from fkat_data.streaming.cache.temporary import Temporary
from fkat_data.streaming.formats.index import INDEX_NAME

__all__ = ["DatasetVersion"]

_RECORD = "generation.json"
_MOST_BYTES = 1 << 18

#: The lock by which this process says that it uses a directory, and for which state of the dataset.
_users: dict[str, tuple[int, LockFile, str]] = {}
_guard = threading.RLock()
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_guard.release)


class DatasetVersion:
    """Which state of a dataset the files of a cache's directory belong to.

    Two states may have files with the same names and sizes and other data, which a size does not tell apart. So the
    directory remembers one text, the index's version, and every process that uses it holds a lock until it ends.

    Thread-safe; it pickles, and a process that it was sent to, or that was forked, calls ``hold``.

    Args:
        directory: The directory, as it was given to ``Room``.

    Raises:
        ConfigurationError: It is not safe to use.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = CacheDirectory(directory)
        self._version: str | None = None

    @property
    def recorded(self) -> str | None:
        """The version that the directory's files belong to; None without a record, empty if it cannot be read."""
        try:
            with (self._directory.path / BOOKKEEPING / _RECORD).open("rb") as file:
                version = json.loads(file.read(_MOST_BYTES))["version"]
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, RecursionError):
            return ""
        return version if isinstance(version, str) else ""

    def adopt(self, version: str, names: Callable[[str], Iterable[str]]) -> None:
        """Use the directory for one state of the dataset, from now on until this process ends.

        Files of another state are removed first; those of a directory without a record are kept.

        Args:
            version: The state, 1 to 10,000 characters.
            names: Given the version that the directory was used for, empty if its record cannot be read, the names of
                its files. It is asked again if a process dies while it removes them, and ``index.json`` is the last
                of them to go.

        Raises:
            ConfigurationError: Another process uses the directory for another state.
            OSError: The directory cannot be written to.
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
            self._take_part(version)

    def hold(self) -> None:
        """Take part in the state that was adopted, in the process that calls; cheap if it does already.

        Raises:
            ConfigurationError: Nothing was adopted, or the directory was used for another state since.
        """
        with _guard:
            owner, _, version = _users.get(self._directory.resolved, (0, None, ""))
            if owner == os.getpid() and version == self._version:
                return
        with self._exclusive():
            recorded = self.recorded
            if self._version is None or recorded != self._version:
                raise self._in_use(str(recorded))
            self._take_part(self._version)

    def _empty(self, recorded: str, names: Callable[[str], Iterable[str]]) -> None:
        before = self._let_go()
        try:
            with self._directory.open("users") as users:
                # Nobody begins to use it meanwhile: for that, too, one has to be alone.
                if not users.try_lock():
                    raise self._in_use(recorded)
                removed = list(names(recorded))
                for name in removed:
                    self._directory.remove(name)
                self._directory.remove(INDEX_NAME)
                # After a power loss, nothing of the old state may stand beside a record of the new one.
                self._directory.sync(removed)
        except BaseException:
            if before is not None:
                self._take_part(before)
            raise

    def _record(self, version: str) -> None:
        content = json.dumps({"version": version}).encode()

        def write(file: BinaryIO) -> None:
            file.write(content)

        with Temporary(self._directory, len(content)) as temporary:
            temporary.fill(_RECORD, write)
            temporary.path.replace(self._directory.path / BOOKKEEPING / _RECORD)
            # Nor may a file be there whose record is not: a directory without one is taken as it is.
            self._directory.sync([f"{BOOKKEEPING}/{_RECORD}"])

    def _take_part(self, version: str) -> None:
        with _guard:
            users = self._directory.open("users")
            users.lock(shared=True)
            _users[self._directory.resolved] = os.getpid(), users, version

    def _let_go(self) -> str | None:
        """Return the state for which this process had taken part; None if it had not."""
        with _guard:
            owner, users, version = _users.pop(self._directory.resolved, (0, None, ""))
            if users is not None:
                users.close()
            return version if owner == os.getpid() else None

    @contextlib.contextmanager
    def _exclusive(self) -> Generator[None]:
        with self._directory.open("generation") as lock:
            lock.lock()
            yield

    def _in_use(self, recorded: str) -> ConfigurationError:
        return ConfigurationError(
            "local",
            str(self._directory.given),
            "a directory for this state of the dataset: another job, or another dataset or worker of this one, uses it "
            f"with another one ({recorded[:40]}); end that job, or give another directory",
        )

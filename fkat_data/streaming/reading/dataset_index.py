"""A dataset's index in its store: what it says, which version of the dataset it is, and whether it still is."""

import time
from collections.abc import Mapping
from hashlib import blake2s
from pathlib import Path
from typing import NamedTuple

from fkat_data.background import BackgroundCall
from fkat_data.errors import DownloadError, ShardCorruptError, ShardNotFoundError
from fkat_data.interruption import suppress
from fkat_data.streaming.formats.entry import ShardEntry
from fkat_data.streaming.formats.files import file_size
from fkat_data.streaming.formats.index import INDEX_NAME, parse_index
from fkat_data.streaming.store.directory_client import version_of
from fkat_data.streaming.store.store import Store
from fkat_data.streaming.store.timed import moment_of

_LARGEST_INDEX_BYTES = 256 << 20
#: The shortest interval between two checks that the dataset is still the same.
_CHECK_INTERVAL_S = 30.0
#: How often two copies are compared until they agree.
_MOST_READS = 10
#: The reports that are known to be of the same dataset. A store may have many hosts.
_MOST_REPORTS = 16


class FoundIndex(NamedTuple):
    """An index that was read.

    Attributes:
        content: Its bytes.
        entries: What it says about the shards, in its order.
        report: What the store reports as its version; "" if it reports none.
    """

    content: bytes
    entries: list[ShardEntry]
    report: str

    @property
    def version(self) -> str:
        """The version of the dataset: it changes when the data may have changed.

        Hashes in the index determine the data. Without them, a dataset that is written again may have an index of the
        same bytes, and the time of writing tells them apart.
        """
        digest = digest_of(self.content)
        files = [info for entry in self.entries for pair in entry.files for info in pair if info is not None]
        is_told = all(info.hashes for info in files) or not self.report
        return digest if is_told else f"{digest} {moment_of(self.report)}"


class DatasetIndex:
    """The index of a dataset in its store. It pickles; threads may share it.

    A store's hosts, and the mounts of one directory, may report different versions of one index, and so does an index
    that is copied over itself. So a report that differs is followed by a look at the bytes.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = ""
        self._reports: tuple[str, ...] = ()
        self._checked_at_s = 0.0

    @property
    def location(self) -> str:
        """The URL or path of the index."""
        return f"{self._store.url}/{INDEX_NAME}"

    def report(self) -> str:
        """Return what the store reports as the version of the index; "" if it reports none.

        Raises:
            ShardNotFoundError: The store has no index.
            DownloadError: The store does not answer.
        """
        return self._store.version(INDEX_NAME, is_timed=True)

    def read(self) -> FoundIndex:
        """Return the index.

        Nothing states the index's own size or hash, and a changed byte may turn a number into another one. So it is
        read twice at the same time, until both copies agree.

        Raises:
            ShardNotFoundError: The store has no index.
            ShardCorruptError: The index is malformed, or the copies never agree.
            DownloadError: The store does not answer.
        """
        earlier: set[str] = set()
        for _ in range(_MOST_READS):
            # Not in a pool: a store that does not answer must not keep the process alive.
            second, reported = BackgroundCall(self._read), BackgroundCall(self.report)
            content, name = self._read()
            is_equal = content == second.result()[0]
            report = reported.result()
            # If another host reported it, a report from before these reads tells that the content is as old.
            if is_equal and (report.startswith(name) or moment_of(report) in earlier):
                return FoundIndex(content, parse_index(content, self.location), report)
            earlier.add(moment_of(report))
        raise ShardCorruptError(self.location, f"{_MOST_READS} pairs of downloads differ")

    def read_in_place(self, directory: Path) -> FoundIndex:
        """Return the index of a directory that is the store.

        Raises:
            ShardNotFoundError: The directory has no index.
            ShardCorruptError: The index is malformed.
        """
        path = directory / INDEX_NAME
        file_size(path)
        report = self.report()
        content = path.read_bytes()
        return FoundIndex(content, parse_index(content, str(path)), report)

    def use(self, version: str, report: str) -> None:
        """Compare with this version of the dataset from now on.

        Args:
            version: The version.
            report: What the store reports for it; "": nothing is compared.
        """
        self._version = version
        self._reports = (report,) if report else ()
        self._checked_at_s = time.monotonic()

    def check(self, *, at_once: bool = False) -> None:
        """Return if the store still has the version in use, or cannot be asked; asks at most every 30 s.

        Args:
            at_once: Whether to ask now.

        Raises:
            ShardCorruptError: The dataset was written again.
        """
        now_s = time.monotonic()
        if not self._reports or (now_s - self._checked_at_s < _CHECK_INTERVAL_S and not at_once):
            return
        self._checked_at_s = now_s
        report = ""
        try:
            report = self.report()
            version = self._version if report in self._reports else self._present(report)
        except DownloadError:
            return
        except ShardNotFoundError:
            version = "no index"
        if version != self._version:
            raise ShardCorruptError.of_field(
                self.location, "version", f"{self._version}, from before the dataset was written again", version
            )
        if report not in self._reports:
            self._reports = (*self._reports, report)[-_MOST_REPORTS:]

    def check_in_place(self, directory: Path) -> None:
        """Return if a directory that is the store still has the version in use. Takes one look at its index.

        Raises:
            ShardCorruptError: The dataset was written again.
        """
        with suppress(OSError):
            if version_of((directory / INDEX_NAME).stat()) in self._reports:
                return
        self.check(at_once=True)

    def _present(self, report: str) -> str:
        """Return the version that the store has now."""
        content, _ = self._read()
        # One copy may be damaged, and is not likely to be so into the bytes that are expected.
        if self._version in (digest := digest_of(content), f"{digest} {moment_of(report)}"):
            return self._version
        return self.read().version

    def _read(self) -> tuple[bytes, str]:
        return self._store.read(INDEX_NAME, _LARGEST_INDEX_BYTES)

    def __getstate__(self) -> Mapping[str, object]:
        return self.__dict__ | {"_checked_at_s": 0.0}


def digest_of(content: bytes) -> str:
    """Return a digest of an index's bytes, the beginning of the version of its dataset."""
    return f"blake2s {blake2s(content, digest_size=16).hexdigest()}"

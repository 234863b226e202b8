"""A dataset's index: the one in its store, or one that is made of its files and cached."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2s
from pathlib import Path
from typing import Any, NamedTuple

from fkat_data.errors import ConfigurationError, DownloadError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.formats import LISTED_SUFFIXES, listed_format, module_of
from fkat_data.files.index import INDEX_NAME, parse_index
from fkat_data.files.shard import DescribedFile, ShardEntry, version_prefix
from fkat_data.files.signatures import START_BYTES, signature_of
from fkat_data.files.stored import file_size
from fkat_data.files.token_shards import TokenWindowing, check_windowing, index_of
from fkat_data.runtime.background import BackgroundCall, in_parallel
from fkat_data.runtime.interruption import suppress
from fkat_data.storage.file_identity import FileIdentity
from fkat_data.storage.folders import say_partitions
from fkat_data.storage.location import load_cached, save_cached
from fkat_data.streaming.reading.file_pattern import FilePattern
from fkat_data.streaming.reading.stream import Stream
from fkat_data.streaming.store.client import ListedFile, moment_of
from fkat_data.streaming.store.directory_client import version_of
from fkat_data.streaming.store.store import Store, reason_against

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
        return f"{self._store.url.rstrip('/')}/{INDEX_NAME}"

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
            if version_of(FileIdentity.of_path(directory / INDEX_NAME)) in self._reports:
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
        content, name = self._store.read(INDEX_NAME, _LARGEST_INDEX_BYTES)
        kind = signature_of(content[:START_BYTES])
        if kind is not None:
            expected = (
                f"an index as it is stored; its first bytes are {kind.name}: if the server compresses it on its way "
                "(Content-Encoding), though no encoding was asked for, switch this off; otherwise, decompress it"
            )
            raise ConfigurationError("remote", self.location, expected)
        return content, name

    def __getstate__(self) -> Mapping[str, object]:
        return self.__dict__ | {"_checked_at_s": 0.0}


def digest_of(content: bytes) -> str:
    """Return a digest of an index's bytes, the beginning of the version of its dataset."""
    return f"blake2s {blake2s(content, digest_size=16).hexdigest()}"


_logger = logging.getLogger(__name__)

_VERSION = 4
#: Files that are described at a time.
_NUM_THREADS = 16
#: What is read in the time that another reading takes to begin: of a local file, and from a store.
_HOP_BYTES, _HOP_IN_STORE_BYTES = 16 << 10, 2 << 20
#: Room for what a cache appends to a name, within the 255 bytes that a file system allows.
_LONGEST_NAME_BYTES = 200


class Generated(NamedTuple):
    """An index that was made.

    Attributes:
        format: The format of the files, as the table of formats names it.
        files: The files, sorted by name.
        columns: The columns to read; None: all.
        url: The directory of the files, for messages.
        windowing: How tokens become samples; None for files of other formats.
    """

    format: str
    files: list[DescribedFile]
    columns: tuple[str, ...] | None
    url: str
    windowing: TokenWindowing | None = None

    @property
    def version(self) -> str:
        """The version of all files together."""
        listed = "\n".join(f"{file.name} {file.size_bytes} {file.listed}" for file in self.files)
        return f"files {blake2s(os.fsencode(listed), digest_size=16).hexdigest()}"

    def entries(self, *, is_in_place: bool) -> list[ShardEntry]:
        """Return the shards.

        Raises:
            ConfigurationError: A chosen column does not exist, the samples of a column are not of one type in all files, or
                files of tokens and ``tokens`` are not together.
            ShardCorruptError: A file of tokens contradicts its index.
        """
        check_windowing(self.windowing, self.format, self.files[0].name)
        kind = module_of(self.format)
        try:
            return kind.entries_of(self.files, self.columns, self.windowing, is_in_place=is_in_place)
        except ShardCorruptError as error:
            raise _located(error, self.url) from error

    def stale(self, names: Iterable[str]) -> list[str]:
        """Return the files of a cache that are parts of other files, or of other versions of these files."""
        prefixes = {None, *(file.parts_prefix for file in self.files)}
        return [name for name in names if version_prefix(name) not in prefixes]


class GeneratedIndex:
    """An index that is made of the files of a directory, and cached. It pickles.

    The descriptions are cached in one file, with the size and the version of each file. The next reading lists the
    directory, describes the files that are new or have changed, and no other.

    Args:
        stream: Says which files it consists of, which of their columns to read, and how tokens become samples.
        store: The directory.
        path: Where the descriptions are cached. A missing, torn or unwritable file is no error.
    """

    def __init__(self, stream: Stream, store: Store, path: Path) -> None:
        self._windowing = stream.tokens
        self._store = store
        self._pattern = stream.file_pattern or FilePattern("")
        self._columns = stream.columns
        self._path = path

    def read(self, lock: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Generated:
        """Return the index as the directory is now.

        Args:
            lock: Returns a context in which no other process of the node makes the same index.

        Raises:
            ShardNotFoundError: No file matches.
            ConfigurationError: The files have several formats, or a package is missing.
            ShardCorruptError: A file is not of its format, or is torn.
            DownloadError: The store does not answer.
        """
        listed = self._listed()
        kind = _kind_of(self._location, listed)
        made = self._joined(kind, listed)
        if made is not None:
            return made
        with lock():
            # Another process may have made it meanwhile.
            return self._joined(kind, listed) or self._made(kind, listed)

    def cached(self) -> Generated | None:
        """Return the index as it was cached, without asking the store; None if there is none."""
        facts, files = load_cached(self._path, _VERSION) or ({}, [])
        return self._generated(facts["format"], [DescribedFile(*file) for file in files]) if files else None

    @property
    def _location(self) -> str:
        return f"{self._url}/{self._pattern.name or self._pattern.text}".rstrip("/")

    @property
    def _url(self) -> str:
        return self._store.url.rstrip("/")

    def _listed(self) -> list[ListedFile]:
        listed = self._store.listing(self._pattern.prefix, self._pattern.may_be_in)
        pattern = self._pattern.among([file.name for file in listed])
        if any(file.name == f"{pattern.name}/{INDEX_NAME}" for file in listed):
            raise ConfigurationError("remote", self._location, "a slash at its end, because it has an index.json")
        found = [file for file in listed if pattern.matches(file.name)]
        if not found:
            raise ShardNotFoundError(
                self._location,
                f"no file matches, with a name that ends with {LISTED_SUFFIXES} (a web server lists no files: name one)",
            )
        # An array beside tables is no part of their stream, nor are tables part of one of tokens.
        of_kind = [file for file in found if (listed_format(file.name) == "tokens") == (self._windowing is not None)]
        found = of_kind or found
        if of_kind and self._windowing is not None:
            found = sorted({*found, *self._indices_of(pattern.name, found, listed)})
        for file in found:
            self._check_name(file.name)
        say_partitions(self._url, (file.name for file in found))
        return found

    def _check_name(self, name: str) -> None:
        reason = reason_against(name)
        if max(len(part.encode(errors="replace")) for part in name.split("/")) > _LONGEST_NAME_BYTES:
            reason = f"expected names of files and folders of at most {_LONGEST_NAME_BYTES} bytes"
        if reason is not None:
            raise ConfigurationError(
                "remote", f"{self._url}/{name}", f"files that a stream takes: rename it ({reason})"
            )

    def _indices_of(
        self, named: str | None, found: Sequence[ListedFile], listed: Sequence[ListedFile]
    ) -> list[ListedFile]:
        """Return the indices beside files of tokens, also where the pattern is of the files alone."""
        there = {file.name: file for file in listed}
        names = [index_of(file.name) for file in found]
        if named == found[0].name and names[0] not in there:
            # A server may refuse what it does not have.
            with suppress(DownloadError):
                there |= {file.name: file for file in self._store.listing(names[0])}
        return [there[name] for name in names if name in there]

    def _joined(self, kind: str, listed: Sequence[ListedFile]) -> Generated | None:
        """Return the cached index if it has every file as it is listed."""
        files = self._known(kind, listed)
        if any(file is None for file in files):
            return None
        return self._generated(kind, [file for file in files if file is not None])

    def _generated(self, kind: str, files: list[DescribedFile]) -> Generated:
        return Generated(kind, files, self._columns, self._url, self._windowing)

    def _known(self, kind: str, listed: Sequence[ListedFile]) -> list[DescribedFile | None]:
        found = self.cached()
        cached = {file.name: file for file in found.files} if found is not None and found.format == kind else {}
        return [
            known if (known := cached.get(file.name)) is not None and _is_same(known, file) else None for file in listed
        ]

    def _made(self, kind: str, listed: Sequence[ListedFile]) -> Generated:
        known = self._known(kind, listed)
        missing = [file for file, described in zip(listed, known, strict=True) if described is None]
        _logger.info("reading the structure of %d of %d files of %s", len(missing), len(listed), self._location)
        described = iter(in_parallel(lambda file: self._described(module_of(kind), file), missing, _NUM_THREADS))
        made = self._generated(kind, [next(described) if file is None else file for file in known])
        save_cached(self._path, _VERSION, made.files, format=kind)
        return made

    def _described(self, kind: Any, file: ListedFile) -> DescribedFile:
        stored = _StoredFile(self._store, file)
        try:
            description = kind.describe(stored)
        except ShardCorruptError as error:
            raise (_located(error, self._url) if error.shard == file.name else error) from error
        return DescribedFile(file.name, file.size_bytes, file.version, stored.version, description)


class _StoredFile:
    """A file whose reads are all of one version."""

    def __init__(self, store: Store, file: ListedFile) -> None:
        self._store = store
        self.name = file.name
        self.size_bytes = file.size_bytes
        self.hop_bytes = _HOP_BYTES if store.is_local else _HOP_IN_STORE_BYTES
        self.version = ""

    def read(self, start: int, stop: int) -> bytes:
        content, self.version = self._store.read_range(
            self.name, start, stop, size_bytes=self.size_bytes, version=self.version
        )
        return content


def _located(error: ShardCorruptError, url: str) -> ShardCorruptError:
    """Return an error that names a file of a directory with the directory's URL before the name."""
    return ShardCorruptError(f"{url}/{error.shard}", error.reason, error.field, error.expected, error.found)


def _is_same(known: DescribedFile, listed: ListedFile) -> bool:
    # Without a version, a new content of the same size would not be noticed.
    return bool(listed.version) and (known.size_bytes, known.listed) == (listed.size_bytes, listed.version)


def _kind_of(location: str, listed: Iterable[ListedFile]) -> str:
    kinds = {str(listed_format(file.name)): file.name for file in listed}
    if len(kinds) > 1:
        (_, first), (_, second), *_ = kinds.items()
        raise ConfigurationError(
            "remote", location, f"files of one format; it has {first} and {second}: pass a pattern, such as *.parquet"
        )
    return next(iter(kinds))

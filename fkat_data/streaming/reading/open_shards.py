"""Read samples by their numbers: open shards on demand, and read many rows of a shard together."""

import functools
import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import data

import fkat_data.files.mds  # noqa: F401 # pyright: ignore[reportUnusedImport] - no first batch waits for it
from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.errors.sample_errors import note_misfit
from fkat_data.files.formats import DECODED_LIMIT_BYTES, open_shard
from fkat_data.files.lru_cache import RowGroupCache
from fkat_data.files.mapping import WatchedFiles, num_maps
from fkat_data.files.shard import ShardReader
from fkat_data.observe.stages import reading
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.lifetime import on_collected
from fkat_data.runtime.registry import Registrations
from fkat_data.streaming.cache.locks import pauses
from fkat_data.streaming.cache.mapped_files import register_map_owner
from fkat_data.streaming.reading.catalog import Catalog
from fkat_data.streaming.reading.read_ahead import ReadAhead

#: With more of the disk free than this part, what is mapped does no harm.
_PART_FREE = 8


class ReaderPool:
    """A pool of open shards by their numbers, in the order of their last use.

    One thread reads. Any thread may have all be closed, so each method is one operation on a dict at a time. A reader
    in use stays open until its user drops it.
    """

    def __init__(self) -> None:
        self._readers: dict[int, tuple[ShardReader, WatchedFiles, int]] = {}

    @classmethod
    def of_cached_shards(cls) -> "ReaderPool":
        """Return one whose readers are closed when a cache of this process needs their space, and in forked children."""
        made = cls()
        register_map_owner(made)
        return made

    def __contains__(self, shard: int) -> bool:
        return shard in self._readers

    def use(self, shard: int) -> tuple[ShardReader, WatchedFiles] | None:
        """Return an open shard and its files, and count it as used now; None if it is not open."""
        found = self._readers.pop(shard, None)
        if found is None:
            return None
        self._readers[shard] = found
        return found[:2]

    def add(self, shard: int, reader: ShardReader, files: WatchedFiles, size_bytes: int) -> None:
        """Add an open shard, as used now."""
        self._readers[shard] = reader, files, size_bytes

    def drop(self, shard: int) -> None:
        """Close a shard if it is open."""
        self._readers.pop(shard, None)

    def close_coldest(self, most: int, most_bytes: int | None) -> None:
        """Close the shards that were used longest ago until at most ``most`` are left, of ``most_bytes`` together."""
        num_bytes = 0 if most_bytes is None else sum(size_bytes for *_, size_bytes in list(self._readers.values()))
        for shard in list(self._readers):
            if len(self._readers) <= most and (most_bytes is None or num_bytes <= most_bytes):
                return
            found = self._readers.pop(shard, None)
            num_bytes -= 0 if found is None else found[2]

    def give_back(self) -> None:
        """Close all shards that are not being read."""
        self._readers.clear()


def share_of_disk(directory: Path, num_processes: int) -> int | None:
    """Return how many bytes a process may keep mapped of a directory's files; None: any number.

    The files of a full disk can only be evicted if no process keeps them mapped.

    Args:
        directory: The directory.
        num_processes: The processes that read its files.
    """
    try:
        disk = os.statvfs(directory)
    except genuine(OSError):
        return None
    return None if disk.f_bavail * _PART_FREE >= disk.f_blocks else disk.f_bavail * disk.f_frsize // (2 * num_processes)


_Integers = npt.NDArray[np.int64]
_Part = TypeVar("_Part")
_Found = TypeVar("_Found")

# torch's annotation of it is partial.
_collate = cast("Callable[[list[Any]], Any]", data.default_collate)

#: Shards that stay open. In a cache, each holds a lock, and every lock makes the kernel's list of them longer.
_MOST_OPEN = 4096
_MOST_CACHED_OPEN = 1024
#: The kernel allows a process some 65,000 maps. With this many, samples no longer keep those of their shards.
_MOST_MAPS = 16384
#: What a process keeps mapped of a limited cache, and fetches ahead, are these parts of its share of the limit. What is
#: read together needs at most the last part of new shards. A shard is read before as much was fetched and read since as
#: evicts it: twice what is fetched ahead and two readings are three quarters.
_PART_MAPPED = 4
_PART_AHEAD = 4
_PART_TOGETHER = 16
#: Shards that are fetched at a time.
_NUM_THREADS = 8
#: The interval at which a shard in use is marked as used, and its files are looked at.
_TOUCH_S = 1.0
#: A shard that was evicted before it was opened is fetched again this often at least, and for this long at least: the
#: process that evicts it may have to wait for a processor.
_LEAST_FETCHES = 10
_LEAST_WAIT_S = 5.0


class _IterationLife:
    """An object that lives as long as an iteration does."""

    __slots__ = ("__weakref__",)


class OpenShards:
    """The samples of a catalog. It pickles without its open shards.

    Args:
        catalog: The shards.
        allow_unsafe_types: Whether columns of pickles may be read.
        arrays: Whether ``ndarray`` columns give NumPy arrays or torch tensors.
        writable: Whether NumPy arrays of single samples belong to the caller.
        decoded_limit_bytes: What decoded row groups of Parquet may take in this process.
        num_processes: Returns how many processes of this node read at the same time; None: one does.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        allow_unsafe_types: bool,
        arrays: Literal["numpy", "torch"],
        writable: bool,
        decoded_limit_bytes: int = DECODED_LIMIT_BYTES,
        num_processes: Callable[[], int] | None = None,
    ) -> None:
        self._catalog = catalog
        self._allow_unsafe_types = allow_unsafe_types
        self._arrays: Literal["numpy", "torch"] = arrays
        self._writable = writable
        self._decoded = RowGroupCache(decoded_limit_bytes)
        self._readers = _reader_pool(catalog)
        self._num_processes = num_processes
        self._touched_s: dict[int, float] = {}
        self._read_ahead: ReadAhead[Any] | None = None
        self._failed_shard: int | None = None
        self._failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Let every reading in this process from now on raise an error."""
        self._failure = error

    def sample(self, sample_id: int) -> dict[str, Any]:
        """Return a sample."""
        shard, row = self._catalog.spanner[sample_id]
        return self._read(shard, lambda reader: reader.sample(row))

    def samples(self, sample_ids: _Integers) -> list[dict[str, Any]]:
        """Return samples in the order of their ids."""
        found: list[Any] = [None] * len(sample_ids)
        for samples, positions in self._by_shard(sample_ids, lambda reader, rows: reader.samples(rows)):
            for position, sample in zip(positions.tolist(), samples, strict=True):
                found[position] = sample
        return found

    def in_turn(self, sample_ids: _Integers) -> Iterable[dict[str, Any]]:
        """Return samples, read together. If that fails, the samples before the faulty one still come first."""

        def parts() -> list[_Integers]:
            return [sample_ids[position : position + 1] for position in range(len(sample_ids))]

        return self._in_order(parts, lambda: self.samples(sample_ids), lambda ids: self.samples(ids)[0])

    def collated(self, batches: Sequence[_Integers]) -> Iterable[Any]:
        """Return batches as torch's default collate makes them, read together.

        If that fails, the batches before the faulty one still come first.

        Args:
            batches: The ids of each batch; none is empty.
        """
        return self._in_order(lambda: batches, lambda: self._collated(batches), lambda ids: self._collated([ids])[0])

    def _collated(self, batches: Sequence[_Integers]) -> list[Any]:
        sample_ids = np.concatenate(batches) if len(batches) != 1 else batches[0]
        groups = list(self._by_shard(sample_ids, lambda reader, rows: reader.column_arrays(rows)))
        columns = _joined([columns for columns, _ in groups])
        if columns is None:
            samples = [
                {name: writable_array(value) for name, value in sample.items()} for sample in self.samples(sample_ids)
            ]
            try:
                return [_whole(part) for part in _split(samples, batches)]
            except genuine(KeyError) as error:
                self._catalog.note_columns(error)
                raise
        position_of = np.empty(len(sample_ids), np.int64)
        position_of[np.concatenate([positions for _, positions in groups])] = np.arange(len(sample_ids))
        return [_batch(columns, positions) for positions in _split(position_of, batches)]

    def with_read_ahead(
        self,
        parts: Iterable[_Part],
        ids_of: Callable[[_Part], _Integers],
        *,
        num_ahead: int,
        is_opened: bool,
    ) -> Iterator[_Part]:
        """Yield parts as they come, while threads fetch the shards of the parts that follow.

        Only the latest of these iterators fetches ahead.

        Args:
            parts: What will be read; the caller reads each part before it takes the next.
            ids_of: Maps a part to its samples.
            num_ahead: Samples to look ahead. A small limit of the caches reduces it.
            is_opened: Whether this process will read the shards; if not, they are only fetched.

        Raises:
            Exception: Why a shard could not be fetched, when it is read.
        """
        self._end_read_ahead()
        if self._catalog.is_in_place:
            yield from parts
            return
        # A shard is opened where it is read: one that waits for that must not keep the disk's space.
        read_ahead = self._read_ahead = ReadAhead(self._fetch, _NUM_THREADS, holds_results=is_opened)
        share_bytes = self._share_bytes()

        def needed(part: _Part) -> tuple[list[int], int]:
            ids = ids_of(part)
            shards = self._catalog.shards_of(ids)
            wanted = [shard for shard in shards if shard not in self._readers and self._is_due(shard, is_opened)]
            if share_bytes is None:
                return wanted, len(ids)
            wanted_bytes = sum(self._catalog.entries[shard].raw_bytes for shard in wanted)
            return wanted, max(len(ids), num_ahead * wanted_bytes * _PART_AHEAD // share_bytes)

        # Python closes a generator that is dropped in the caller's thread: what is raised there then would be lost.
        iteration = _IterationLife()
        on_collected(iteration, functools.partial(self._end, read_ahead))
        yield from read_ahead.iterate(parts, needed, num_ahead)
        self._end(read_ahead)

    def num_together(self, sample_ids: _Integers) -> int:
        """Return how many of the first samples to read together: a small cache cannot hold the shards of all."""
        share_bytes = self._share_bytes()
        if share_bytes is None or not len(sample_ids):
            return len(sample_ids)
        shards, firsts = np.unique(self._catalog.spanner.shards(sample_ids), return_index=True)
        new_bytes = np.zeros(len(sample_ids), np.int64)
        for shard, first in zip(shards.tolist(), firsts.tolist(), strict=True):
            if shard not in self._readers:
                new_bytes[first] = self._catalog.entries[shard].raw_bytes
        return max(1, int(np.searchsorted(np.cumsum(new_bytes), share_bytes // _PART_TOGETHER, side="right")))

    def _share_bytes(self) -> int | None:
        """Return this process's share of the limit of the caches; None: there is no limit."""
        budget = self._catalog.cache_budget
        if budget is None or budget.limit_bytes is None:
            return None
        num_processes = self._num_processes() if self._num_processes else 1
        return max(1, (budget.limit_bytes - self._catalog.indices_bytes) // num_processes)

    def close(self) -> None:
        """Close all shards; they reopen when they are needed."""
        self._end_read_ahead()
        self._readers.give_back()
        self._touched_s.clear()

    def _end(self, read_ahead: ReadAhead[Any]) -> None:
        """End the look-ahead of an iteration, in any thread."""
        read_ahead.close()
        if self._read_ahead is read_ahead:
            self._read_ahead = None
            # A process that waits for its next epoch must not keep the disk's space.
            self._readers.give_back()

    def _end_read_ahead(self) -> None:
        read_ahead, self._read_ahead = self._read_ahead, None
        if read_ahead is not None:
            read_ahead.close()

    def _in_order(
        self,
        parts: Callable[[], Sequence[_Integers]],
        together: Callable[[], list[_Part]],
        alone: Callable[[_Integers], _Part],
    ) -> Iterable[_Part]:
        self._failed_shard = None
        try:
            return together()
        except genuine(Exception) as error:
            # It is raised at its position in the order.
            return self._one_by_one(parts(), alone, error)

    def _one_by_one(
        self, parts: Sequence[_Integers], read: Callable[[_Integers], _Part], error: Exception
    ) -> Iterator[_Part]:
        """Read parts one by one that could not be read together, up to the faulty one.

        Raises:
            Exception: What is wrong with the faulty part. A shard that failed is not fetched again.
        """
        failed_shard = self._failed_shard
        for sample_ids in parts:
            if len(parts) == 1 or failed_shard in self._catalog.shards_of(sample_ids):
                raise error
            yield read(sample_ids)

    def _is_due(self, shard: int, is_opened: bool) -> bool:
        """Return whether to fetch a shard that is not open, or to mark it as used again."""
        if is_opened:
            return True
        now_s = time.monotonic()
        is_due = now_s - self._touched_s.get(shard, -_TOUCH_S) >= _TOUCH_S
        if is_due:
            self._touched_s[shard] = now_s
        return is_due

    def _by_shard(
        self, sample_ids: _Integers, read: Callable[[ShardReader, _Integers], _Found]
    ) -> Iterator[tuple[_Found, _Integers]]:
        """Yield what ``read`` returns for a shard and rows, and the positions of those samples in ``sample_ids``.

        The files of one shard are in use at a time.
        """
        shards, rows = self._catalog.spanner.locate(sample_ids)
        order = np.argsort(shards, kind="stable")
        edges = np.flatnonzero(np.diff(shards[order], prepend=-1)).tolist()
        for start, stop in pairwise([*edges, len(order)]):
            positions = order[start:stop]
            chosen = rows[positions]
            yield self._read(int(shards[positions[0]]), lambda reader, chosen=chosen: read(reader, chosen)), positions

    def _read(self, shard: int, read: Callable[[ShardReader], _Found]) -> _Found:
        # No variable holds the reader: while the next shard is fetched, this one may have to be unmapped.
        return read(self._reader(shard))

    def _reader(self, shard: int) -> ShardReader:
        if self._failure is not None:
            raise self._failure
        found = self._readers.use(shard)
        if found is not None:
            self._touch(shard, found[1])
            return found[0]
        read_ahead = self._read_ahead
        try:
            with reading():
                if read_ahead and read_ahead.holds_results and not read_ahead.is_closed:
                    read_ahead.take(shard)
                reader, files = self._open(shard)
        except Exception:
            self._failed_shard = shard
            raise
        self._readers.add(shard, reader, files, self._catalog.entries[shard].raw_bytes)
        self._touched_s[shard] = time.monotonic()
        self._close_coldest(shard)
        return reader

    def _open(self, shard: int) -> tuple[ShardReader, WatchedFiles]:
        """Fetch and open a shard; return it with its files."""
        entry, source = self._catalog.entries[shard], self._catalog.source_of(shard)
        began_s = time.monotonic()
        for attempt, pause_s in enumerate(pauses(), start=1):
            directory = source.fetch(entry)
            if directory is None:
                raise RuntimeError(f"shard {shard} is missing after it was fetched")
            files = WatchedFiles(source.map_register)
            try:
                reader = open_shard(
                    directory,
                    entry,
                    allow_unsafe_types=self._allow_unsafe_types,
                    arrays=self._arrays,
                    writable=self._writable,
                    decoded=self._decoded,
                    # Samples that the caller keeps must not keep an evicted file on the disk.
                    is_copied=source.map_register is not None or num_maps() > _MOST_MAPS,
                    register=files,
                )
                source.check_unchanged(entry)
            except ShardNotFoundError:
                # Another process has just evicted it, or is about to.
                if source.is_in_place or (attempt >= _LEAST_FETCHES and time.monotonic() - began_s > _LEAST_WAIT_S):
                    raise
                time.sleep(pause_s)
            else:
                return reader, files
        raise AssertionError("pauses() has no end")

    def _fetch(self, shard: int, wait: bool) -> Path | None:
        return self._catalog.source_of(shard).fetch(self._catalog.entries[shard], wait=wait)

    def _touch(self, shard: int, files: WatchedFiles) -> None:
        now_s = time.monotonic()
        if now_s - self._touched_s.get(shard, now_s) > _TOUCH_S:
            try:
                files.check()
            except ShardCorruptError:
                # The next reading opens it again, and finds a copy that a cache has repaired.
                self._readers.drop(shard)
                self._failed_shard = shard
                raise
            self._touched_s[shard] = now_s
            self._catalog.source_of(shard).touch(self._catalog.entries[shard])

    def _close_coldest(self, shard: int) -> None:
        """Close shards after one more was opened: a mapped file cannot be evicted."""
        source = self._catalog.source_of(shard)
        if source.map_register is None:
            self._readers.close_coldest(_MOST_OPEN, None)
            return
        most_bytes = share_of_disk(source.directory, self._num_processes() if self._num_processes else 1)
        share_bytes = self._share_bytes()
        if share_bytes is not None:
            mapped_bytes = share_bytes // _PART_MAPPED
            most_bytes = mapped_bytes if most_bytes is None else min(most_bytes, mapped_bytes)
        self._readers.close_coldest(_MOST_CACHED_OPEN, most_bytes)

    def __getstate__(self) -> dict[str, Any]:
        # What reads them elsewhere knows the same encodings and shuffles.
        of_this_process = {"_readers": None, "_read_ahead": None, "_failed_shard": None, "_failure": None}
        return {"_registrations": Registrations()} | self.__dict__ | of_this_process | {"_touched_s": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = {name: value for name, value in state.items() if name != "_registrations"}
        self.__dict__ |= state | {"_readers": _reader_pool(state["_catalog"])}


def _reader_pool(catalog: Catalog) -> ReaderPool:
    return ReaderPool() if catalog.is_in_place else ReaderPool.of_cached_shards()


def _joined(groups: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the columns of several shards end to end; None if they differ in kind."""
    first = groups[0]
    if len(groups) == 1:
        return first
    if any(group.keys() != first.keys() for group in groups):
        return None
    joined: dict[str, Any] = {}
    for name, values in first.items():
        parts = [group[name] for group in groups]
        if isinstance(values, np.ndarray):
            kind = _kind(cast("object", values))
            if any(_kind(part) != kind for part in parts):
                return None
            joined[name] = np.concatenate(parts)
        elif all(isinstance(part, list) for part in parts):
            joined[name] = [value for part in parts for value in part]
        else:
            return None
    return joined


def _kind(values: object) -> object:
    if not isinstance(values, np.ndarray):
        return None
    array = cast("npt.NDArray[Any]", values)
    return array.dtype, array.shape[1:]


def _split(values: Any, batches: Sequence[_Integers]) -> Iterator[Any]:
    start = 0
    for batch in batches:
        yield values[start : start + len(batch)]
        start += len(batch)


def _batch(columns: dict[str, Any], positions: _Integers) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            batch[name] = torch.from_numpy(values.take(positions, axis=0))
        else:
            picked = [values[position] for position in positions.tolist()]
            kinds = {*map(type, picked)}
            if kinds == {str}:  # torch's collate, which is asked for each batch, returns the list itself
                batch[name] = picked
                continue
            if any(issubclass(kind, np.ndarray) for kind in kinds):
                picked = [*map(writable_array, picked)]
            batch[name] = _whole(picked, name)
    return batch


def _whole(values: list[Any], name: str | None = None) -> Any:
    """Collate samples, or the values of one column; if that fails, say which column is the cause."""
    try:
        return _collate(values)
    except genuine(TypeError, RuntimeError) as error:
        samples = values if name is None else [{name: value} for value in values]
        found = next((key for sample in samples for key, value in sample.items() if value is None), None)
        if found is None:
            note_misfit(error, samples)
            raise
        raise TypeError(
            f"column {found!r} has nulls, which torch's default collate does not take: pass a collate_fn that does, or "
            "choose the columns without it, columns=[...]"
        ) from error


def writable_array(value: Any) -> Any:
    """Return a writable copy of a read-only array, and any other value itself."""
    # torch warns about read-only arrays, and views of a shard are read-only.
    if not isinstance(value, np.ndarray):
        return value
    array = cast("npt.NDArray[Any]", value)
    if array.flags.owndata:
        array.flags.writeable = True
    return array if array.flags.writeable else array.copy()


def index_tree(
    index: Any, num_samples: int, one: Callable[[int], Any], many: Callable[[npt.NDArray[np.int64]], list[Any]]
) -> Any:
    """Return the sample at an index, or lists of samples with the nesting of the index.

    Args:
        index: From ``-num_samples`` to ``num_samples - 1``, or a slice, list, tuple or array.
        num_samples: Number of samples.
        one: Returns a sample by its number.
        many: Returns samples in the order of their numbers.

    Raises:
        IndexError: The sample does not exist.
        ConfigurationError: The index has another type.
    """
    if isinstance(index, slice):
        return many(np.arange(num_samples)[index])
    if isinstance(index, np.ndarray) and index.ndim:
        index = cast("Any", index).tolist()
    if isinstance(index, (list, tuple)):
        items = cast("list[Any]", index)
        if any(isinstance(item, (list, tuple, np.ndarray, slice)) for item in items):
            return [index_tree(item, num_samples, one, many) for item in items]
        return many(np.array([_number(item, num_samples) for item in items], np.int64))
    return one(_number(index, num_samples))


def _number(index: Any, num_samples: int) -> int:
    if isinstance(index, bool):
        raise ConfigurationError("index", index, "an integer, a slice, or a list or array of integers")
    try:
        number = operator.index(index)
    except genuine(TypeError):
        raise ConfigurationError("index", index, "an integer, a slice, or a list or array of integers") from None
    if not -num_samples <= number < num_samples:
        raise IndexError(f"sample {number} of {num_samples}")
    return number % num_samples

"""Samples by their numbers: shards opened when they are needed, and as many rows of each at once as there are."""

import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import data

from fkat_data.streaming.catalog import Catalog
from fkat_data.streaming.formats.open import open_shard
from fkat_data.streaming.formats.reader import ShardReader

__all__ = ["OpenShards"]

_Integers = npt.NDArray[np.int64]

# torch's annotation of it is partial.
_collate = cast("Callable[[list[Any]], Any]", data.default_collate)

#: Each takes a descriptor.
_MOST_OPEN = 4096


class OpenShards:
    """The samples of a catalog. It pickles without the shards that are open.

    Args:
        catalog: The shards.
        allow_unsafe_types: Whether columns of pickles may be read.
        arrays: Whether ``ndarray`` columns give NumPy arrays or torch tensors.
        writable: Whether NumPy arrays of single samples belong to the caller.
    """

    def __init__(
        self, catalog: Catalog, *, allow_unsafe_types: bool, arrays: Literal["numpy", "torch"], writable: bool
    ) -> None:
        self._catalog = catalog
        self._allow_unsafe_types = allow_unsafe_types
        self._arrays: Literal["numpy", "torch"] = arrays
        self._writable = writable
        self._readers: OrderedDict[int, ShardReader] = OrderedDict()
        self._most_open = _most_open()

    def sample(self, sample_id: int) -> dict[str, Any]:
        """Return a sample."""
        shard, row = self._catalog.spanner[sample_id]
        return self._reader(shard).sample(row)

    def samples(self, sample_ids: _Integers) -> list[dict[str, Any]]:
        """Return samples in the order of their ids."""
        found: list[Any] = [None] * len(sample_ids)
        for reader, places, rows in self._by_shard(sample_ids):
            for place, sample in zip(places.tolist(), reader.samples(rows), strict=True):
                found[place] = sample
        return found

    def collated(self, batches: Sequence[_Integers]) -> list[Any]:
        """Return batches as torch's default collate makes them of the samples, all of them read at once.

        Args:
            batches: The ids of each batch, of which none is empty.
        """
        sample_ids = np.concatenate(batches) if len(batches) != 1 else batches[0]
        groups = list(self._by_shard(sample_ids))
        columns = _joined([reader.column_arrays(rows) for reader, _, rows in groups])
        if columns is None:
            samples = [{name: _own(value) for name, value in sample.items()} for sample in self.samples(sample_ids)]
            return [_collate(part) for part in _split(samples, batches)]
        place_of = np.empty(len(sample_ids), np.int64)
        place_of[np.concatenate([places for _, places, _ in groups])] = np.arange(len(sample_ids))
        return [_batch(columns, places) for places in _split(place_of, batches)]

    def close(self) -> None:
        """Close all shards; they open again when they are needed."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _by_shard(self, sample_ids: _Integers) -> Iterator[tuple[ShardReader, _Integers, _Integers]]:
        """Yield each shard with the places of its samples in ``sample_ids`` and their rows."""
        shards, rows = self._catalog.spanner.locate(sample_ids)
        order = np.argsort(shards, kind="stable")
        edges = np.flatnonzero(np.diff(shards[order], prepend=-1)).tolist()
        for start, stop in pairwise([*edges, len(order)]):
            places = order[start:stop]
            yield self._reader(int(shards[places[0]])), places, rows[places]

    def _reader(self, shard: int) -> ShardReader:
        reader = self._readers.get(shard)
        if reader is None:
            catalog = self._catalog
            entry = catalog.entries[shard]
            directory = catalog.sources[int(catalog.stream_per_shard[shard])].fetch(entry)
            reader = open_shard(
                directory,
                entry,
                allow_unsafe_types=self._allow_unsafe_types,
                arrays=self._arrays,
                writable=self._writable,
            )
            self._readers[shard] = reader
            if len(self._readers) > self._most_open:
                # Views of it that are still in use keep the file in memory.
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(shard)
        return reader

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readers": OrderedDict()}


def _most_open() -> int:
    # Half of what a process may have leaves room for sockets, pipes and the user's own files.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_OPEN if limit == resource.RLIM_INFINITY else max(1, min(_MOST_OPEN, limit // 2))


def _joined(groups: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the columns of several shards end to end; None where they are not alike."""
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


def _batch(columns: dict[str, Any], places: _Integers) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            batch[name] = torch.from_numpy(values.take(places, axis=0))
        else:
            batch[name] = _collate([_own(values[place]) for place in places.tolist()])
    return batch


def _own(value: Any) -> Any:
    # torch warns of arrays that are read-only, which views of a shard are.
    if not isinstance(value, np.ndarray):
        return value
    array = cast("npt.NDArray[Any]", value)
    return array if array.flags.writeable else array.copy()

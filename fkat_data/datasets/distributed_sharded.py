"""A rank's samples from many shards: one shard is open, and the next one loads in the background."""

import json
import operator
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from hashlib import blake2b
from itertools import accumulate, islice, pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, cast

from torch.utils.data import Dataset

from fkat_data.datasets.item_index import EpochOrder, counted_from_start, items_at
from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.errors.arguments import boolean, checked_state, function, integer, saved_integer
from fkat_data.errors.wording import Described
from fkat_data.permutation import permutation
from fkat_data.plan.growth import log_growth
from fkat_data.runtime.background import BackgroundCall, in_parallel
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import call_in_forks
from fkat_data.storage.location import replacing

_Item_co = TypeVar("_Item_co", covariant=True)
_STATE_VERSION = 1
# Number of forks between the first process and this one. os.getpid() takes longer than reading a sample.
_num_forks = [0]


class _Entered(NamedTuple):
    """An open shard, and the indices that are in it: one value, which threads read and replace as a whole."""

    first: int
    stop: int
    offset: int
    position: int | None
    samples: Sequence[int] | None
    shard: Any


# No index belongs to a shard, so that the next access looks it up.
_NOWHERE = _Entered(0, 0, 0, None, None, None)


class DistributedShardedDataset(EpochOrder, Described, Dataset[_Item_co]):
    """The samples of many shards in sequence, of which each rank sees one contiguous block.

    In an epoch, the shards are sorted by key or shuffled, and so are the samples of each. The tail of the epoch is
    dropped so that all ranks have the same number of samples, and each rank takes an equal block of the rest. The
    order is a function of (seed, epoch) and the shards' sizes, and uses no random generator.

    One shard is open at a time. While its samples are read in order, the rank's next shard loads in the background,
    so that at most two shards are in memory. An error in the background is raised at the first sample of that shard. A
    sampler that jumps between shards loads one for each jump: pass ``shuffle`` here and use a sequential sampler, such
    as ``ResumableSequentialSampler``. Do not use a ``DistributedSampler``: this dataset splits the samples over ranks.

    Args:
        dataset_type: Called with a shard's arguments; returns a map-style dataset. It may run in a background thread:
            if it draws from a global random generator, pass ``prefetch=False`` to make the draws reproducible.
        shard_params: Positional and keyword arguments of ``dataset_type``, by shard key.
        rank: Index of this rank, from 0 to ``world_size - 1``.
        world_size: Number of ranks.
        shuffle: Whether to shuffle the shards in each epoch (see ``set_epoch``). If false, they are sorted by key.
        seed: Any integer; the same on every rank.
        shuffle_samples: Whether to shuffle the samples of each shard in each epoch; None: as ``shuffle``.
        shard_sizes: Number of samples by shard key. Without it, the constructor opens each shard once to count them.
        sizes_cache: JSON file that stores counted sizes, created if missing. It identifies shards only by key.
        num_counting_threads: Number of shards to open, and hold in memory, at a time while counting.
        prefetch: Whether to load the next shard in the background.

    Raises:
        ConfigurationError: An argument is invalid, a shard has no length, or there are fewer samples than ranks.
        Exception: Any exception of ``dataset_type``.
    """

    is_seed_drawn = False

    def __init__(
        self,
        dataset_type: Callable[..., Any],
        shard_params: Mapping[str, tuple[Sequence[Any], Mapping[str, Any]]],
        *,
        rank: int,
        world_size: int,
        shuffle: bool = False,
        seed: int = 0,
        shuffle_samples: bool | None = None,
        shard_sizes: Mapping[str, int] | None = None,
        sizes_cache: str | os.PathLike[str] | None = None,
        num_counting_threads: int = 4,
        prefetch: bool = True,
    ) -> None:
        self.dataset_type: Callable[..., Any] = function("dataset_type", dataset_type)
        if not isinstance(shard_params, Mapping) or not shard_params:
            raise ConfigurationError("shard_params", shard_params, "a mapping with at least one shard")
        self.shard_params: dict[str, tuple[Sequence[Any], Mapping[str, Any]]] = dict(shard_params)
        for key, params in self.shard_params.items():
            if not _is_call(params):
                raise ConfigurationError(
                    f"shard_params[{key!r}]", params, "a pair of a list of arguments and a dict of keyword arguments"
                )
        self.world_size: int = integer("world_size", world_size, minimum=1)
        self.rank: int = integer("rank", rank, minimum=0, maximum=self.world_size - 1)
        self.shuffle: bool = boolean("shuffle", shuffle)
        self.seed: int = integer("seed", seed)
        self.shuffle_samples: bool = shuffle if shuffle_samples is None else boolean("shuffle_samples", shuffle_samples)
        self.prefetch: bool = boolean("prefetch", prefetch)
        integer("num_counting_threads", num_counting_threads, minimum=1)
        self._keys: list[str] = sorted(self.shard_params)
        self._sizes = (
            cached_sizes(self._keys, self.load_shard, sizes_cache, num_counting_threads)
            if shard_sizes is None
            else checked_sizes(self._keys, shard_sizes)
        )
        # Number of shards in each epoch that was begun before others were appended.
        self._begun_lengths: Mapping[int, int] = {}
        self._has_followed = False
        self.total_samples: int = self._total(self._keys)
        """Number of samples in the epoch over all ranks, without the dropped tail."""
        if self.total_samples == 0:
            raise ConfigurationError(
                "world_size", self.world_size, f"at most {sum(self._sizes.values())}, the number of samples"
            )
        self._forget()
        self._go_to(0)

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("epoch", self._epoch),
            ("shards", len(self._keys)),
            ("samples", self.total_samples),
            ("rank", self.rank),
            ("world_size", self.world_size),
            ("dataset_type", self.dataset_type),
        ]

    @classmethod
    def from_uris(cls, uris: str | Sequence[str], *, dataset_type: Callable[..., Any], **options: Any) -> Self:
        """Return a dataset of shards that are opened by URI.

        Args:
            uris: One or more URIs, which are also the shards' keys.
            dataset_type: Called with a URI as its only argument.
            options: Other arguments of the constructor.

        Raises:
            ConfigurationError: As in the constructor.
        """
        keys = [uris] if isinstance(uris, str) else list(uris)
        return cls(dataset_type, {key: ((key,), {}) for key in keys}, **options)

    @property
    def shard_keys(self) -> list[str]:
        """Keys of the shards in the epoch's order."""
        return list(self._order)

    @property
    def shard_indices(self) -> dict[str, tuple[int, int]]:
        """Global indices of each shard as (start, stop), without the dropped tail."""
        edges = (min(edge, self.total_samples) for edge in self._edges)
        return dict(zip(self._order, pairwise(edges), strict=True))

    def __len__(self) -> int:
        return self.total_samples // self.world_size

    def __getitem__(self, rank_index: int) -> _Item_co:
        rank_index = operator.index(rank_index)  # a narrow NumPy integer would overflow below
        entered = self._entered
        if not entered.first <= rank_index < entered.stop or self._num_forks != _num_forks[0]:
            del entered  # freed before the next one opens
            rank_index, entered = self._enter(rank_index)
        _, _, offset, _, samples, shard = entered
        sample_index = rank_index - offset
        return shard[sample_index if samples is None else samples[sample_index]]

    def __getitems__(self, rank_indices: Sequence[int]) -> list[_Item_co]:
        """Return the samples at ``rank_indices``; neighbours in one shard are read in one call of ``__getitems__``.

        Raises:
            IndexError: An index is out of range.
            ShardCorruptError: A shard's length has changed since it was counted.
        """
        indices = [counted_from_start(index, len(self)) for index in rank_indices]
        items: list[_Item_co] = []
        while len(items) < len(indices):
            _, (first, stop, offset, _, samples, shard) = self._enter(indices[len(items)])
            run = takewhile(range(first, stop).__contains__, islice(indices, len(items), None))
            in_shard = [index - offset for index in run]
            items += items_at(shard, in_shard if samples is None else [samples[index] for index in in_shard])
            del shard  # freed before the next one opens
        return items

    def __iter__(self) -> Iterator[_Item_co]:
        index = 0
        while index < len(self):
            _, (_, stop, offset, _, samples, shard) = self._enter(index)
            in_shard = range(index - offset, stop - offset)
            for sample_index in in_shard if samples is None else samples[in_shard.start : in_shard.stop]:
                yield shard[sample_index]
            index = stop
            del shard  # freed before the next one opens

    def rank_index_to_global_index(self, rank_index: int) -> int:
        """Return a sample's index in the epoch's order of all ranks.

        Raises:
            IndexError: ``rank_index`` is out of range.
        """
        return self.rank * len(self) + counted_from_start(rank_index, len(self))

    def rank_index_to_shard_index(self, rank_index: int) -> tuple[str, int]:
        """Return the key of a sample's shard, and the sample's index in that shard.

        Raises:
            IndexError: ``rank_index`` is out of range.
        """
        global_index = self.rank_index_to_global_index(rank_index)
        position = bisect_right(self._edges, global_index) - 1
        sample_index = global_index - self._edges[position]
        entered = self._entered
        samples = entered.samples if position == entered.position else self._shuffled(position)
        return self._order[position], sample_index if samples is None else samples[sample_index]

    def load_shard(self, shard_key: str) -> Any:
        """Open a shard and return its dataset."""
        args, kwargs = self.shard_params[shard_key]
        return self.dataset_type(*args, **kwargs)

    def follow_epoch(self, epoch: int) -> None:
        """Do as ``set_epoch``, unless that was called or nothing is shuffled: a ``fkat_data.DataLoader`` calls this."""
        is_numbered = self.shuffle or self.shuffle_samples
        if self._begun_lengths and not is_numbered and not self._has_followed:
            # The number in the state has followed none.
            self._begun_lengths = dict.fromkeys([epoch], *self._begun_lengths.values())
        if is_numbered or self._begun_lengths:
            super().follow_epoch(epoch)
        self._has_followed = True

    def _set_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._go_to(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the settings as plain values: the same on every rank."""
        return self._state_over(self._keys[: self._begun_lengths.get(self._epoch)])

    def _state_over(self, keys: Sequence[str]) -> dict[str, Any]:
        sizes = "\n".join(f"{self._sizes[key]} {key}" for key in keys)
        return {
            "version": _STATE_VERSION,
            "epoch": self._epoch,
            "world_size": self.world_size,
            "shuffle": self.shuffle,
            "shuffle_samples": self.shuffle_samples,
            "seed": self.seed,
            "total_samples": self._total(keys),
            "shards": blake2b(sizes.encode(errors="surrogateescape"), digest_size=8).hexdigest(),
        }

    def _total(self, keys: Sequence[str]) -> int:
        return sum(self._sizes[key] for key in keys) // self.world_size * self.world_size

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Switch to the epoch of ``state_dict``, over the shards of then if others, with keys behind theirs, were appended.

        Raises:
            StateMismatchError: The state has other settings or shards.
        """
        count, num_shards = self._num_saved(state_dict), len(self._keys)
        state = checked_state(state_dict, self._state_over(self._keys[:count]), "epoch")
        epoch = saved_integer("epoch", state["epoch"], minimum=0)
        self._begun_lengths, self._has_followed = {epoch: count} if count < num_shards else {}, False
        if self._begun_lengths:
            log_growth("shard", num_shards - count, epoch)
        self._go_to(epoch)

    def _num_saved(self, state_dict: Mapping[str, Any]) -> int:
        """Return how many of the first shards a state has; all where it has others."""
        made, num_shards = blake2b(digest_size=8), len(self._keys)
        for count, key in enumerate(self._keys, 1):
            made.update(f"{'' if count == 1 else chr(10)}{self._sizes[key]} {key}".encode(errors="surrogateescape"))
            if isinstance(state_dict, Mapping) and made.hexdigest() == state_dict.get("shards"):
                return count
        return num_shards

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def _forget(self) -> None:
        # A forked child inherits the parent's shard, whose files share one offset, and a call whose thread is missing.
        self._num_forks = _num_forks[0]
        self._lock = threading.RLock()
        self._shard: Any = None
        self._key: str | None = None
        self._next: tuple[str, BackgroundCall[Any]] | None = None
        self._entered: _Entered = _NOWHERE

    def _go_to(self, epoch: int) -> None:
        keys: list[str] = self._keys[: self._begun_lengths.get(epoch)]
        order: list[str] = keys
        if self.shuffle:
            indices = permutation(len(keys), b"fkat_data shards", self.seed, epoch)
            order = [keys[index] for index in indices.tolist()]
        with self._lock:  # another thread may be opening a shard of the epoch before
            self._epoch, self._order, self.total_samples = epoch, order, self._total(keys)
            self._edges = [0, *accumulate(self._sizes[key] for key in order)]
            self._entered = _NOWHERE

    def _shuffled(self, position: int) -> Sequence[int] | None:
        if not self.shuffle_samples:
            return None
        key = self._order[position]
        # Keyed by the index among the sorted keys, so that the samples' order does not depend on the shards' order.
        key_index = self._keys.index(key)
        return permutation(self._sizes[key], b"fkat_data sample", self.seed, self._epoch, key_index).data

    def _enter(self, rank_index: int) -> "tuple[int, _Entered]":
        """Open the shard that holds a sample; return the sample's non-negative index, and the shard."""
        rank_index = counted_from_start(rank_index, len(self))
        if self._num_forks != _num_forks[0]:
            self._forget()
        with self._lock:
            before = self._entered
            if before.first <= rank_index < before.stop:
                return rank_index, before
            rank_start = self.rank * len(self)
            position = bisect_right(self._edges, rank_start + rank_index) - 1
            is_in_order = before.position is None or self._following(before.position) == position
            del before
            self._entered = _NOWHERE
            self._open(self._order[position])
            first, stop = self._edges[position : position + 2]
            entered = self._entered = _Entered(
                max(0, first - rank_start),
                min(len(self), stop - rank_start),
                first - rank_start,
                position,
                self._shuffled(position),
                self._shard,
            )
            if self.prefetch and is_in_order:
                self._prefetch(self._following(position))
            return rank_index, entered

    def _following(self, position: int) -> int | None:
        # Skips empty shards, and stops at the end of this rank's block.
        rank_stop = (self.rank + 1) * len(self)
        for following in range(position + 1, len(self._order)):
            if self._edges[following] >= rank_stop:
                return None
            if self._edges[following] < self._edges[following + 1]:
                return following
        return None

    def _open(self, key: str) -> None:
        if key == self._key:
            return
        # Freed first, so that at most two shards are in memory.
        self._key = self._shard = None
        if self._next is not None and self._next[0] == key:
            call, self._next = self._next[1], None
            shard = call.result()
        else:
            shard = self.load_shard(key)
        size = size_of(key, shard)
        if size != self._sizes[key]:
            raise ShardCorruptError(key, f"it has {size} samples, but had {self._sizes[key]} when it was counted")
        self._key, self._shard = key, shard

    def _prefetch(self, position: int | None) -> None:
        key = None if position is None else self._order[position]
        last = self._next
        if last is not None and last[0] == key:
            return
        self._next = None
        if last is not None:
            last[1].drop()
        if key is not None and key != self._key:
            self._next = (key, BackgroundCall(lambda: self.load_shard(key), last and last[1]))


_OF_THIS_PROCESS = {"_num_forks", "_lock", "_shard", "_key", "_next", "_entered"}


def _is_call(params: object) -> bool:
    if not isinstance(params, Sequence) or isinstance(params, str):
        return False
    parts = cast("Sequence[object]", params)
    if len(parts) != 2:
        return False
    # A string instead of a list of arguments would be split into letters.
    return isinstance(parts[0], Sequence) and not isinstance(parts[0], str) and isinstance(parts[1], Mapping)


def _count_fork() -> None:
    _num_forks[0] += 1


call_in_forks(_count_fork)


_CACHE_VERSION = 1


def size_of(shard_key: str, shard: object) -> int:
    """Return a shard's number of samples.

    Raises:
        ConfigurationError: The shard is not a map-style dataset.
    """
    if not isinstance(shard, Sized) or not hasattr(shard, "__getitem__"):
        raise ConfigurationError(
            "dataset_type", shard, f"a dataset with __len__() and __getitem__(index) for shard {shard_key!r}"
        )
    return len(shard)


def checked_sizes(shard_keys: list[str], shard_sizes: object) -> dict[str, int]:
    """Return the given sizes after checking them.

    Raises:
        ConfigurationError: ``shard_sizes`` is not a mapping with exactly the shards' keys, or a size is negative or not
            an integer.
    """
    if not isinstance(shard_sizes, Mapping):
        raise ConfigurationError("shard_sizes", shard_sizes, "a mapping from shard keys to numbers of samples")
    sizes = cast("Mapping[str, Any]", shard_sizes)
    if set(sizes) != set(shard_keys):
        unmatched = sorted(map(str, set(sizes) ^ set(shard_keys)))
        raise ConfigurationError("shard_sizes", unmatched, "the keys of shard_params; these are in only one of the two")
    return {key: integer(f"shard_sizes[{key!r}]", sizes[key], minimum=0) for key in shard_keys}


def cached_sizes(
    shard_keys: list[str],
    load_shard: Callable[[str], object],
    path: str | os.PathLike[str] | None,
    num_threads: int,
) -> dict[str, int]:
    """Return the shards' sizes. Those missing in the file at ``path`` are counted and added to it.

    Args:
        shard_keys: Keys of the shards.
        load_shard: Opens a shard by key.
        path: JSON file for the sizes, which several ranks may share; None: store nothing.
        num_threads: Number of shards to open at a time.

    Raises:
        ConfigurationError: The file is not one that this function wrote, or a shard has no length.
        Exception: Any exception of ``load_shard``.
    """

    def count(key: str) -> int:
        return size_of(key, load_shard(key))

    file = None if path is None else Path(path).expanduser()
    known = {} if file is None else _read(file)
    unknown = [key for key in shard_keys if key not in known]
    if unknown:
        known |= zip(unknown, in_parallel(count, unknown, num_threads), strict=True)
        if file is not None:
            _write(file, known)
    return {key: known[key] for key in shard_keys}


def _read(path: Path) -> dict[str, int]:
    try:
        content = json.loads(path.read_bytes())
    except genuine(FileNotFoundError):
        return {}
    except genuine(ValueError) as error:
        raise ConfigurationError("sizes_cache", str(path), f"a JSON file of shard sizes: {error}") from error
    if not isinstance(content, dict) or cast("dict[str, Any]", content).get("version") != _CACHE_VERSION:
        raise ConfigurationError("sizes_cache", str(path), f"a file of shard sizes with version {_CACHE_VERSION}")
    sizes = cast("dict[str, Any]", content).get("sizes")
    if not isinstance(sizes, dict):
        raise ConfigurationError("sizes_cache", str(path), "a file of shard sizes with a mapping `sizes`")
    entries = cast("dict[str, Any]", sizes)
    return {key: integer(f"sizes_cache[{key!r}]", size, minimum=0) for key, size in entries.items()}


def _write(path: Path, sizes: dict[str, int]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"version": _CACHE_VERSION, "sizes": sizes}, indent=1, sort_keys=True), "utf-8")

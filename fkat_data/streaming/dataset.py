"""The streaming dataset: samples of shards in an order that is arithmetic, from any place on."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, StaleIteratorError
from fkat_data.sizes import count_of, size_bytes_of
from fkat_data.streaming.audit import Coverage, SampleRecord, coverage_of, records_of
from fkat_data.streaming.cache_control import CacheControl
from fkat_data.streaming.epoch.epoch_state import check_fingerprint, resume_point_of, state_of
from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.rank_batches import RankBatches
from fkat_data.streaming.epoch.resume_point import ResumePoint, SharedResumePoint
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.epoch.weight_schedule import WeightSchedule
from fkat_data.streaming.epoch.world import World
from fkat_data.streaming.names import DatasetNames
from fkat_data.streaming.order.batching import BATCHING_METHODS
from fkat_data.streaming.order.epoch_order import SHUFFLES, OrderSettings
from fkat_data.streaming.order.partition import PARTITIONS
from fkat_data.streaming.order.weights import StreamWeight
from fkat_data.streaming.reading.catalog import Catalog
from fkat_data.streaming.reading.index_tree import index_tree
from fkat_data.streaming.reading.open_shards import OpenShards
from fkat_data.streaming.reading.stream import Stream, given_streams

__all__ = ["StreamingDataset"]

_logger = logging.getLogger(__name__)

#: Samples that a bare loop reads together.
_READ_TOGETHER = 64
#: What is fetched ahead, if nothing is said.
_READ_AHEAD_BYTES = 128 << 20

_Part = TypeVar("_Part")


class StreamingDataset(DatasetNames, CacheControl, IterableDataset[dict[str, Any]]):
    """Samples of one or several streams of shards, in an order that is the same for any number of ranks and workers.

    Each ``iter`` is the next epoch, or the rest of one after ``load_state_dict``. A rank gets its part by RANK,
    WORLD_SIZE and LOCAL_WORLD_SIZE, a DataLoader's worker its part of that. Samples are dicts from column to value.
    Use ``StreamingDataLoader`` to make batches: it knows where the trainer is. No process group is made or used.

    Args:
        streams: The streams; or else ``remote`` and ``local`` say where the only one is.
        remote: The directory that shards come from: a path, or a URL of any store that fsspec opens.
        local: The directory of this node that they are kept and read in; without ``remote``, where they are.
        split: A directory within both.
        download_retry: How often a failed download is tried again; a copy from a directory of this machine is not.
        download_timeout: Seconds that an attempt may take for each 64 MiB; a copy from a directory of this machine
            takes what it takes.
        validate_hash: A hash of the index that files are compared with; None: none, but their sizes always.
        keep_zip: Whether compressed files stay once they are decompressed.
        epoch_size: Samples of an epoch, a number or a text such as ``"2m"``; None: as many as the streams give.
        predownload: Samples whose shards are fetched ahead of those that are read, by each rank; None: as many as 128
            MiB hold, and 8 batches at least. With a ``cache_limit`` it is less where the cache is small.
        cache_limit: Bytes, a number or a text such as ``"10gb"``, that all streams' files on this node may take; the
            shards that were not used for the longest time go first. Data that are read where they are do not count.
        sampling_method: ``"balanced"``: each epoch takes other samples of a stream that gives a part of itself;
            ``"fixed"``: all take the same.
        sampling_granularity: Samples of a shard that are taken together.
        partition_algo: ``"relaxed"``, or ``"orig"``, which asks that canonical and physical nodes divide.
        num_canonical_nodes: Parts that the order is made of, each with shards of its own; None: the number of nodes,
            and 64 times that for ``py1s`` and ``py2s``.
        batch_size: Samples of a rank's batch; the order depends on it.
        shuffle: Whether samples are shuffled.
        shuffle_algo: ``"block"`` (recommended), or the reference's ``"py1e"``, ``"py1br"``, ``"py1b"``, ``"py1s"``,
            ``"py2s"`` and ``"naive"``, number for number.
        shuffle_seed: Decides on every random order.
        shuffle_block_size: Over how many samples a shard is spread; None: 4 million divided by the canonical nodes,
            and 262,144 at least.
        batching_method: ``"random"``: streams are mixed sample by sample; ``"stratified"``: each global batch has
            every stream's share; ``"device_stratified"``: the same global batches, dealt so that each rank's batch has
            it too; ``"per_stream"``: each global batch is of one stream; ``"device_per_stream"``: each rank's batch is.
        allow_unsafe_types: Whether columns of pickles may be read, which runs code of the files' author.
        replication: So many consecutive ranks get the same samples.
        stream_name: The kind of stream that ``stream_config`` makes; there is ``"stream"``.
        stream_config: Arguments of the only stream, in place of ``streams``, ``remote`` and ``local``.
        arrays: Whether ``ndarray`` columns give NumPy arrays or torch tensors.
        writable: Whether arrays belong to the caller; otherwise they are read-only views of the shard.
        skip: What must not be delivered: a list of ``{"epoch": 0, "batches": [100, 120]}``, global batches of an
            epoch, and ``{"samples": [17, 4]}``. Every other sample keeps its place.
        weight_schedule: Proportions of the streams that change as training goes on: a list of
            ``{"from_sample": 0, "weights": [3, 1]}``.
        storage_options: What fsspec's file systems of the streams' remotes take, where they do not say it themselves.
        world: Who this process is; None: the environment says.

    Raises:
        ConfigurationError: An argument is none of these, or they do not go together.
        ShardNotFoundError: A stream has no index.
        ShardCorruptError: An index makes no sense, or a stream has no samples.
        DownloadError: A store does not hand over its index.
    """

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        arrays: Literal["numpy", "torch"] = "numpy",
        writable: bool = False,
        skip: Sequence[Mapping[str, Any]] | None = None,
        weight_schedule: Sequence[Mapping[str, Any]] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        world: World | None = None,
    ) -> None:
        super().__init__()
        self.predownload = None if predownload is None else arguments.integer("predownload", predownload, minimum=0)
        self.cache_limit = size_bytes_of("cache_limit", cache_limit) if cache_limit else None
        self._skips = SampleSkips(skip)
        settings = OrderSettings(
            (),
            shuffle=arguments.boolean("shuffle", shuffle),
            shuffle_algo=arguments.choice("shuffle_algo", shuffle_algo, SHUFFLES),
            shuffle_block_size=_number("shuffle_block_size", shuffle_block_size),
            sampling_method=arguments.choice("sampling_method", sampling_method, ("balanced", "fixed")),
            sampling_granularity=arguments.integer("sampling_granularity", sampling_granularity, minimum=1),
            partition_algo=arguments.choice("partition_algo", partition_algo, PARTITIONS),
            batching_method=arguments.choice("batching_method", batching_method, BATCHING_METHODS),
        )
        arguments.choice("arrays", arrays, ("numpy", "torch"))
        arguments.boolean("writable", writable)
        self.streams = [
            stream.filled(
                split=split,
                download_retry=arguments.integer("download_retry", download_retry, minimum=0),
                download_timeout=arguments.seconds("download_timeout", download_timeout),
                validate_hash=validate_hash or None,
                keep_zip=arguments.boolean("keep_zip", keep_zip),
                storage_options=storage_options,
            )
            for stream in given_streams(streams, remote, local, stream_name, stream_config)
        ]
        self.catalog = Catalog(
            self.streams,
            allow_unsafe_types=arguments.boolean("allow_unsafe_types", allow_unsafe_types),
            cache_limit=self.cache_limit,
        )
        if self.cache_limit is not None and self.catalog.room is None:
            _logger.warning("cache_limit has no effect: all data are read where they are")
        self._shards = OpenShards(self.catalog, allow_unsafe_types=allow_unsafe_types, arrays=arrays, writable=writable)
        self._skips.check(self.num_samples)
        weights = [stream.weight for stream in self.streams]
        size = arguments.integer("epoch_size", count_of("epoch_size", epoch_size), minimum=0) if epoch_size else 0
        self.epochs = Epochs(
            settings=replace(settings, shard_sizes=self.catalog.shard_sizes),
            weights=weights,
            schedule=_schedule(weight_schedule, weights, size or self.catalog.num_samples),
            epoch_size=size or None,
            shuffle_seed=arguments.integer("shuffle_seed", shuffle_seed, minimum=0),
            num_canonical_nodes=_number("num_canonical_nodes", num_canonical_nodes or None),
            batch_size=_number("batch_size", batch_size),
            replication=replication,
            fixed_world=world,
        )
        self.epochs.check()
        self._place = SharedResumePoint()
        self._iteration = 0
        self._round = (0, 0)

    @property
    def skips(self) -> SampleSkips:
        """What is not delivered, what a loaded state said included."""
        return self._skips

    @property
    def next_epoch(self) -> int:
        """The epoch that the next ``iter`` begins or goes on with. Setting it lets that begin at its start."""
        return self._place.next().epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        arguments.integer("next_epoch", epoch, minimum=0)
        self._place.go_to(replace(self._place.next(), epoch=epoch, sample_in_epoch=0))

    @property
    def batch_size(self) -> int | None:
        """Samples of a rank's batch; it may be set where there is none."""
        return self.epochs.batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        epochs = replace(self.epochs, batch_size=_number("batch_size", batch_size))
        epochs.check()
        self.epochs = epochs

    @property
    def num_ahead(self) -> int:
        """Samples, at least, whose shards are fetched ahead of those that are read."""
        if self.predownload is not None:
            return self.predownload
        return max(8 * (self.batch_size or 8), self.samples_in(_READ_AHEAD_BYTES))

    def __len__(self) -> int:
        """Return how many samples a rank gets of a whole epoch."""
        if self.batch_size is None:
            return math.ceil(self.epoch_size / self.epochs.world().num_ranks)
        batching = self.epochs.batching(ResumePoint())
        return batching.num_rank_samples(batching.num_even_batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Begin the next epoch; yields this worker's samples of it.

        Raises:
            ConfigurationError: There is no ``batch_size``, or the place of a loaded state does not fit.
            StaleIteratorError: A later ``iter`` of this process has replaced this one.
        """
        batches = self.rank_batches(self.begin_epoch())
        self._iteration += 1
        return self._samples(batches, self.epochs.world(), self._iteration)

    def _samples(self, batches: RankBatches, world: World, iteration: int) -> Iterator[dict[str, Any]]:
        def parts() -> Iterator[npt.NDArray[np.int64]]:
            together = _READ_TOGETHER if self.catalog.is_immediate else 1
            for _, chunk in batches.chunks(part=world.worker_of_rank, num_parts=world.workers_per_rank):
                ids = np.concatenate(chunk) if chunk else np.empty(0, np.int64)
                start = 0
                while start < len(ids):
                    yield ids[start : start + together]
                    start += together
                    together = min(2 * together, _READ_TOGETHER)

        for part in self.follow(parts(), lambda ids: ids):
            for sample in self._shards.in_turn(part):
                if self._iteration != iteration:
                    raise StaleIteratorError("a later iter() of this StreamingDataset has begun another epoch")
                yield sample

    def follow(
        self, parts: Iterable[_Part], ids_of: Callable[[_Part], npt.NDArray[np.int64]], *, is_opened: bool = True
    ) -> Iterator[_Part]:
        """Yield parts of what is to be read, while the shards of those that follow are fetched.

        Args:
            parts: What is to be read.
            ids_of: From a part to its samples.
            is_opened: Whether this process will read them; if not, they are only fetched.

        Raises:
            Exception: Where a shard is read that could not be fetched: whatever was wrong.
        """
        if self.catalog.is_immediate:
            return iter(parts)
        most_bytes = None
        if self.cache_limit is not None:
            # Half of it is for what is being read.
            most_bytes = max(1, self.cache_limit // (2 * self.epochs.world().ranks_per_node))
        return self._shards.follow(parts, ids_of, num_ahead=self.num_ahead, most_bytes=most_bytes, is_opened=is_opened)

    def begin_epoch(self) -> ResumePoint:
        """Return where the next epoch begins, for this process to read it; nothing in it is open."""
        info = get_worker_info()
        # What the workers of one iteration of a DataLoader have in common, and no other has.
        key = 0 if info is None else (info.seed - info.id) | 1
        if key != self._round[0]:
            self._round = (key, 0)
        place = self._place.begin(*self._round)
        self._round = (key, self._round[1] + 1)
        return self.epochs.settled(place)

    def rank_batches(self, place: ResumePoint) -> RankBatches:
        """Return what this rank reads from a place on."""
        return RankBatches(self.epochs.plan(place), place, self.epochs.world().rank, self._skips)

    def __getitem__(self, index: Any) -> Any:
        """Return a sample by its number, or samples by a slice, or by a list or array of numbers, nested or not.

        Raises:
            IndexError: There is no such sample.
            ConfigurationError: It is none of these.
        """
        return index_tree(index, self.num_samples, self._shards)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples by their numbers, read together."""
        return self[list(indices)]

    def collated(self, batches: Sequence[npt.NDArray[np.int64]]) -> Iterable[Any]:
        """Return batches of samples as torch's default collate makes them, read together.

        Where that fails, the batches before the one at fault come first.
        """
        return self._shards.collated(batches)

    def samples(self, sample_ids: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return samples by their numbers, read together."""
        return self._shards.samples(sample_ids)

    def samples_in(self, size_bytes: int) -> int:
        """Return about how many samples have that many bytes."""
        total_bytes = sum(entry.raw_bytes for entry in self.catalog.entries)
        return max(1, size_bytes * self.num_samples // max(total_bytes, 1))

    def samples_of(self, step: int, epoch: int | None = None) -> list[SampleRecord]:
        """Return every sample of a global batch, of all ranks, recomputed from the order.

        Args:
            step: The global batch: of the epoch, or of the whole run where no epoch is given.
            epoch: The epoch.

        Raises:
            ConfigurationError: There is no such global batch.
        """
        return records_of(self.epochs, self.catalog, self._skips, step, epoch)

    def coverage(self, epoch: int = 0, num_steps: int | None = None) -> Coverage:
        """Return what has been seen of an epoch after some global batches, recomputed from the order.

        Args:
            epoch: The epoch.
            num_steps: Global batches; None: all of the epoch.

        Raises:
            ConfigurationError: The epoch has fewer global batches.
        """
        return coverage_of(self.epochs, self.catalog, self._skips, epoch, num_steps)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Return where the trainer is, as plain values; ``StreamingDataLoader.state_dict`` knows the arguments.

        Args:
            num_samples: Samples that all ranks have received, those left out by ``skip`` included.
            from_beginning: Whether they are counted from the epoch's start, and not from where it was resumed.
        """
        arguments.integer("num_samples", num_samples, minimum=0)
        arguments.boolean("from_beginning", from_beginning)
        place = self.epochs.settled(self._place.current() or self._place.next())
        offset = 0 if from_beginning else place.sample_in_epoch
        state = state_of(replace(place, sample_in_epoch=offset + num_samples))
        state["fingerprint"] = self.epochs.fingerprint()
        if self._skips:
            state["skip"] = self._skips.plain()
        if self.epochs.schedule is not None:
            state["weight_schedule"] = self.epochs.schedule.plain()
        return state

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Let the next epoch go on where a state was taken, by this library or by the reference.

        Raises:
            StateMismatchError: It is no such state, or another configuration wrote it.
            ConfigurationError: The place does not fit this world.
        """
        place = resume_point_of(obj)
        if "fingerprint" in obj:
            check_fingerprint(obj["fingerprint"], self.epochs.fingerprint())
        if self.epochs.schedule is not None and "weight_schedule" in obj:
            self.epochs.schedule.check_past(obj["weight_schedule"], place.epoch, place.sample_in_epoch)
        skips = self._skips.also(SampleSkips(obj.get("skip")))
        skips.check(self.num_samples)
        if self.batch_size is not None:
            self.epochs.batching(place)
        self._skips = skips
        self._place.go_to(place)


def _number(argument: str, value: int | None) -> int | None:
    return None if value is None else arguments.integer(argument, value, minimum=1)


def _schedule(given: Any, weights: Sequence[StreamWeight], epoch_size: int) -> WeightSchedule | None:
    if given is None:
        return None
    if any(weight.kind is not None for weight in weights):
        raise ConfigurationError("weight_schedule", given, "streams without weights of their own")
    return WeightSchedule(given, len(weights), epoch_size)

"""The streaming dataset: samples of shards in an order that is computed, from any position on."""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from fkat_data.errors import ConfigurationError, StaleIteratorError, arguments
from fkat_data.errors.acceptance import Acceptance, accepted_in
from fkat_data.errors.arguments import count_of, size_bytes_of
from fkat_data.errors.wording import Described, counted
from fkat_data.files.formats import DECODED_LIMIT_BYTES
from fkat_data.files.tar import DecoderName
from fkat_data.loaders.sample_records import SampleRecord
from fkat_data.streaming.audit import Coverage, coverage_of, records_of, where_is
from fkat_data.streaming.epoch.delivery_tracker import DeliveryTracker
from fkat_data.streaming.epoch.epochs import Epochs, WeightSchedule
from fkat_data.streaming.epoch.rank_batches import PickedSamples, RankBatches, SampleSkips, joined
from fkat_data.streaming.epoch.shared_resume import LARGEST_NUMBER, ResumePoint
from fkat_data.streaming.epoch.world import World
from fkat_data.streaming.loader_source import DatasetSource
from fkat_data.streaming.order.batching import BATCHING_METHODS, BatchingMethod
from fkat_data.streaming.order.epoch_order import (
    LAST_EPOCH,
    SAMPLING_METHODS,
    OrderSettings,
    SamplingMethod,
    ShuffleName,
    shuffle_names,
)
from fkat_data.streaming.order.partition import PARTITIONS, PartitionName
from fkat_data.streaming.order.weights import StreamWeight
from fkat_data.streaming.properties import DatasetProperties
from fkat_data.streaming.reader import StreamReader, StreamState, reader_of
from fkat_data.streaming.reading.catalog import Catalog
from fkat_data.streaming.reading.open_shards import OpenShards
from fkat_data.streaming.reading.pinned_commits import check_saved
from fkat_data.streaming.reading.stream import Stream, given_streams
from fkat_data.streaming.sample_access import SampleAccess, SampleMaker
from fkat_data.worker.fingerprints import check_files, has_appended

_logger = logging.getLogger(__name__)

#: The number of samples that iterating the dataset itself reads together.
_READ_TOGETHER = 64


class StreamingDataset(Described, DatasetProperties, SampleAccess, IterableDataset[Any]):
    """Samples of one or more streams of shards, in an order that is the same for any number of ranks and workers.

    Each ``iter`` begins the next epoch, or continues one after ``load_state_dict``. The process group of
    torch.distributed determines a rank's part, or RANK and WORLD_SIZE without one; each worker of a DataLoader reads
    its part of that. Samples are dicts from column to value. Use ``StreamingDataLoader`` to make batches: it tracks the
    trainer's position. The dataset does not communicate between ranks.

    Args:
        streams: The streams; for a single one, ``remote`` and ``local`` suffice.
        remote: The directory of the shards: a path, or a URL of any store that fsspec opens.
        local: The directory of this node that caches the shards; without ``remote``, the directory of the shards.
        split: A directory within both.
        download_retry: How often a failed download is retried; a copy from a directory of this machine is not.
        download_timeout: Seconds that an attempt may take for each 64 MiB; a copy from a directory of this machine
            has no limit.
        validate_hash: The hash of the index to compare files with; None: compare their sizes alone.
        keep_zip: Whether compressed files stay after they are decompressed.
        epoch_size: Samples of an epoch, a number or a text such as ``"2m"``; None: determined by the streams.
        predownload: Samples whose shards each rank fetches ahead; None: those of 128 MiB, and at least 8 batches. A
            small ``cache_limit`` reduces it.
        cache_limit: Bytes, a number or a text such as ``"10gb"``, that the files of all streams on this node may take.
            The least recently used shards go first. What is being fetched may come on top. Data that are read in
            place do not count.
        sampling_method: ``"balanced"``: each epoch takes other samples of a stream that is shown in part; ``"fixed"``:
            all take the same.
        sampling_granularity: Samples of a shard that are taken together.
        partition_algo: ``"relaxed"``; or ``"orig"``, which requires that canonical and physical nodes divide.
        num_canonical_nodes: Parts of the order, each with its own shards; None: the number of nodes, times 64 for
            ``py1s`` and ``py2s``.
        batch_size: Samples of a rank's batch; the order depends on it.
        shuffle: Whether samples are shuffled.
        shuffle_algo: ``"block"``, recommended for a new run; or the reference's ``"py1e"``, ``"py1br"``, ``"py1b"``,
            ``"py1s"``, ``"py2s"`` and ``"naive"``, number for number; or one that
            ``fkat_data.extensions.register_shuffle`` names. The default is the reference's own, ``"py1e"``, so that its
            scripts and checkpoints keep their order here.
        shuffle_seed: The seed of every random order.
        shuffle_block_size: The number of samples that a shard is spread over; None: 4 million divided by the canonical
            nodes, at least 262,144.
        batching_method: ``"random"``: streams are mixed sample by sample; ``"stratified"``: each global batch has
            every stream's share; ``"device_stratified"``: so has each rank's batch, in the same global batches;
            ``"per_stream"``: each global batch comes from one stream; ``"device_per_stream"``: each rank's batch does.
        allow_unsafe_types: Whether columns of pickles may be read, which runs code of the files' author.
        replication: The number of consecutive ranks that get the same samples.
        stream_name: The kind of stream that ``stream_config`` makes: ``"stream"``.
        stream_config: Arguments of the only stream, instead of ``streams``. The dataset's own arguments precede them,
            unless they have their default.
        arrays: Whether ``ndarray`` columns give NumPy arrays or torch tensors.
        writable: Whether arrays belong to the caller; otherwise they are read-only. Those of shards that are read in
            place are views.
        skip: What must not be delivered: a list of ``{"epoch": 0, "batches": [100, 120]}``, global batches of an
            epoch, and ``{"samples": [17, 4]}``. Every other sample keeps its position.
        weight_schedule: Proportions of the streams that change during training: a list of
            ``{"from_sample": 0, "weights": [3, 1]}``.
        storage_options: The options of fsspec's file systems for streams that give none.
        columns: The columns to read, for streams that give none; None: all.
        decode: How members of tar files are decoded, for streams that do not say; see ``Stream``.
        tokens: How files of tokens become samples, for streams that do not say; see ``Stream``.
        decoded_limit: Bytes, a number or a text such as ``"2gb"``, that decoded row groups of Parquet may take in each
            process that reads; the least recently used ones are dropped. None: 512 MiB.
        world: The rank and world of this process; None: those of torch.distributed, or of the environment variables.
        transform: Called with each sample where it is read; returns what the dataset gives instead. Its random draws
            are exact in any world if it draws from ``fkat_data.item_generators``.

    Raises:
        ConfigurationError: An argument is invalid, or arguments contradict each other.
        ShardNotFoundError: A stream has no index.
        ShardCorruptError: An index is malformed.
        DownloadError: A store does not deliver its index.
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
        sampling_method: SamplingMethod = "balanced",
        sampling_granularity: int = 1,
        partition_algo: PartitionName = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: ShuffleName = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: BatchingMethod = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        arrays: Literal["numpy", "torch"] = "numpy",
        writable: bool = False,
        skip: Sequence[Mapping[str, Any]] | None = None,
        weight_schedule: Sequence[Mapping[str, Any]] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        decode: Mapping[str, DecoderName] | DecoderName | None = None,
        tokens: Mapping[str, Any] | None = None,
        decoded_limit: int | str | None = None,
        world: World | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.predownload: int | None = _number("predownload", predownload, minimum=0)
        self.cache_limit: int | None = size_bytes_of("cache_limit", cache_limit) if cache_limit else None
        self.allow_unsafe_types: bool = arguments.boolean("allow_unsafe_types", allow_unsafe_types)
        skips = SampleSkips(skip)
        self._transform = None if transform is None else arguments.function("transform", transform)
        settings = OrderSettings(
            (),
            shuffle=arguments.boolean("shuffle", shuffle),
            shuffle_algo=arguments.choice("shuffle_algo", shuffle_algo, shuffle_names()),
            shuffle_block_size=_number("shuffle_block_size", shuffle_block_size),
            sampling_method=arguments.choice("sampling_method", sampling_method, SAMPLING_METHODS),
            sampling_granularity=arguments.integer("sampling_granularity", sampling_granularity, minimum=1),
            partition_algo=arguments.choice("partition_algo", partition_algo, PARTITIONS),
            batching_method=arguments.choice("batching_method", batching_method, BATCHING_METHODS),
        )
        arguments.choice("arrays", arrays, ("numpy", "torch"))
        arguments.boolean("writable", writable)
        defaults = {
            "split": split,
            "download_retry": arguments.integer("download_retry", download_retry, minimum=0),
            "download_timeout": arguments.seconds("download_timeout", download_timeout),
            "validate_hash": validate_hash or None,
            "keep_zip": arguments.boolean("keep_zip", keep_zip),
            "storage_options": storage_options,
            "columns": columns,
            "decode": decode,
            "tokens": tokens,
        }
        given = given_streams(streams, stream_name, stream_config, remote=remote, local=local, **defaults)
        filled = [stream.filled(**defaults) for stream in given]
        catalog = Catalog(filled, allow_unsafe_types=self.allow_unsafe_types, cache_limit=self.cache_limit)
        if self.cache_limit is not None and catalog.cache_budget is None:
            _logger.warning("cache_limit has no effect: all data are read in place")
        shards = OpenShards(
            catalog,
            allow_unsafe_types=self.allow_unsafe_types,
            arrays=arrays,
            writable=writable,
            decoded_limit_bytes=size_bytes_of("decoded_limit", decoded_limit) if decoded_limit else DECODED_LIMIT_BYTES,
            num_processes=partial(_num_processes, world),
        )
        skips.check(catalog.num_samples)
        weights = [stream.weight for stream in filled]
        size = arguments.integer("epoch_size", count_of("epoch_size", epoch_size), minimum=0) if epoch_size else 0
        epochs = Epochs(
            settings=replace(settings, shard_sizes=catalog.shard_sizes),
            weights=weights,
            schedule=_schedule(weight_schedule, weights, size or catalog.num_samples),
            epoch_size=size or None,
            shuffle_seed=arguments.integer("shuffle_seed", shuffle_seed, minimum=0, maximum=LARGEST_NUMBER),
            num_canonical_nodes=_number("num_canonical_nodes", num_canonical_nodes or None),
            batch_size=_number("batch_size", batch_size),
            replication=replication,
            fixed_world=world,
        )
        epochs.check()
        for caveat in epochs.caveats():
            _logger.warning("%s", caveat)
        if self.predownload is not None and batch_size is not None and self.predownload < batch_size:
            _logger.warning("predownload = %d is less than batch_size = %d", self.predownload, batch_size)
        shares = epochs.shares(0)
        parts = zip(filled, shares.proportion, shares.repeat, shares.choose, strict=True)
        streams = [stream.weighted(proportion, repeat, choose) for stream, proportion, repeat, choose in parts]
        super().__init__(streams, StreamState(catalog, epochs, skips, shards))

    @property
    def _loader_source(self) -> DatasetSource:
        return DatasetSource(
            StreamReader(self, self._stream_state, self._sample_maker), has_own_iter=has_own_iter(self)
        )

    @property
    def _sample_maker(self) -> SampleMaker:
        return SampleMaker(self, self._stream_state.shards, self._transform)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next ``iter`` begins or continues. After it is set, that epoch begins at its start."""
        return self._stream_state.resume_point.next().epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        arguments.integer("next_epoch", epoch, minimum=0, maximum=LAST_EPOCH)
        resume_point = self._stream_state.resume_point
        resume_point.go_to(replace(resume_point.next(), epoch=epoch, sample_in_epoch=0))

    @property
    def batch_size(self) -> int | None:
        """Samples of a rank's batch."""
        return self._stream_state.epochs.batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        epochs = replace(self._stream_state.epochs, batch_size=_number("batch_size", batch_size))
        epochs.check()
        self._stream_state.epochs = epochs

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "num_samples", self.num_samples
        yield "num_shards", self.num_shards
        yield "num_streams", self.num_streams
        yield "batch_size", self.batch_size
        yield "shuffle", self.shuffle_algo if self.shuffle else False

    def __len__(self) -> int:
        """Return the number of samples that a rank gets in a whole epoch."""
        if self.batch_size is None:
            return math.ceil(self.epoch_size / self._stream_state.epochs.world_sizes().num_ranks)
        batching = self._stream_state.epochs.batching(ResumePoint())
        return batching.num_rank_samples(batching.num_even_batches)

    @property
    def length(self) -> int:
        """The same as ``len``."""
        return len(self)

    def on_exception(self, future: Future[Any]) -> None:
        """Raise the exception of a call in the background, if it had one; nothing more is read in this process then.

        The dataset does not call it. As a callback, ``future.add_done_callback(dataset.on_exception)``, it ends a
        training loop whose own calls in the background fail: the next sample raises that exception.

        Args:
            future: A call that has ended.

        Raises:
            BaseException: What the call raised.
        """
        error = future.exception()
        if error is not None:
            self._stream_state.shards.fail(error)
            raise error

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch and yield this worker's samples.

        Raises:
            ConfigurationError: ``batch_size`` is missing, or the position of a loaded state does not fit this world.
            StaleIteratorError: A later ``iter`` of this process has replaced this one.
        """
        reader = reader_of(self)
        batches, world = reader.rank_batches(reader.begin_epoch()), reader.epochs.world()
        delivery_tracker = DeliveryTracker(batches, world.worker_of_rank, world.workers_per_rank)
        self._stream_state.delivery_tracker = delivery_tracker
        return self._samples(reader, batches, world, delivery_tracker)

    def _samples(
        self, reader: StreamReader, batches: RankBatches, world: World, delivery_tracker: DeliveryTracker
    ) -> Iterator[Any]:
        def parts() -> Iterator[PickedSamples]:
            together = _READ_TOGETHER if reader.catalog.is_in_place else 1
            own = {"part": world.worker_of_rank, "num_parts": world.workers_per_rank}
            for indices, chunk in batches.picks(**own, with_positions=reader.maker.has_user_code):
                delivery_tracker.plan(indices.tolist(), [len(batch.ids) for batch in chunk])
                rest = joined(chunk)
                while len(rest.ids):
                    part, rest = rest.split(reader.num_together(rest.ids[:together]))
                    yield part
                    together = min(2 * together, _READ_TOGETHER)

        for part in reader.with_read_ahead(parts(), lambda part: part.ids):
            for sample in reader.maker.picked(part):
                if self._stream_state.delivery_tracker is not delivery_tracker:
                    raise StaleIteratorError("a later iter() of this StreamingDataset has begun another epoch")
                delivery_tracker.num_samples += 1
                yield sample

    def source_location(self, index: int) -> str:
        """Return the shard of a sample, and its row there."""
        _, shard, row, _ = where_is(self._stream_state.catalog, index)
        return f"row {row} of {shard}"

    def samples_of(self, step: int, epoch: int | None = None) -> list[SampleRecord]:
        """Return every sample of a global batch, of all ranks, recomputed from the order.

        Args:
            step: The global batch of the epoch; or of the whole run, if no epoch is given.
            epoch: The epoch.

        Raises:
            ConfigurationError: The global batch does not exist.
        """
        return records_of(self._stream_state.epochs, self._stream_state.catalog, self._stream_state.skips, step, epoch)

    def coverage(self, epoch: int = 0, num_steps: int | None = None) -> Coverage:
        """Return what an epoch has shown after some global batches, recomputed from the order.

        Args:
            epoch: The epoch.
            num_steps: Global batches; None: all of the epoch.

        Raises:
            ConfigurationError: The epoch has fewer global batches.
        """
        state = self._stream_state
        return coverage_of(state.epochs, state.catalog, state.skips, epoch, num_steps)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Return the trainer's position as plain values; ``StreamingDataLoader.state_dict`` supplies the arguments.

        Args:
            num_samples: Samples that all ranks together have received, including those left out by ``skip``.
            from_beginning: Whether the count begins at the start of the epoch, or where it was resumed.
        """
        arguments.integer("num_samples", num_samples, minimum=0)
        arguments.boolean("from_beginning", from_beginning)
        point = self._stream_state.resume_point.current() or self._stream_state.resume_point.next()
        offset = 0 if from_beginning else point.sample_in_epoch
        point = self._stream_state.epochs.with_defaults(point)
        return reader_of(self).state_at(replace(point, sample_in_epoch=offset + num_samples))

    @property
    def acceptable_fields(self) -> tuple[str, ...]:
        """The fields of a state that ``load_state_dict`` can accept where they differ."""
        return ("commits", "files")

    def load_state_dict(self, obj: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Continue with the next epoch where a state was taken, by this library or by the reference.

        Args:
            obj: The state.
            accept: Fields that may differ, of ``acceptable_fields``. The log says what did, and the price, and the states
                that follow keep it.

        Raises:
            StateMismatchError: It is no such state, or another configuration wrote it, a dataset of the Hugging Face hub has
                other data than at the commit that it was saved with, or a file of tokens has changed since. The message
                says which difference can be accepted, and at which price.
            ConfigurationError: Its position does not fit this world, or ``accept`` names another field.
        """
        acceptance = Acceptance(accept, self.acceptable_fields)
        epochs = self._stream_state.epochs.as_begun(obj)
        point = epochs.resume_point(obj)
        price = (
            f"samples keep their numbers: the {counted(point.sample_in_epoch, 'sample')} that all ranks had of epoch "
            f"{point.epoch} do not come again, and the rest is read from the present data; no number is lost or comes again"
        )
        check_saved(self._stream_state.catalog.commits, obj, acceptance, price)
        files, catalog = obj.get("files") if point.sample_in_epoch else None, self._stream_state.catalog
        check_files(None if epochs.begun and has_appended(files, catalog) else files, catalog, acceptance, price)
        skips = self._stream_state.skips.also(SampleSkips(obj.get("skip")))
        skips.check(self.num_samples)
        self._stream_state.accepted = acceptance.after(accepted_in(obj), point.epoch, point.sample_in_epoch)
        self._stream_state.skips = skips
        self._stream_state.epochs = epochs if point.sample_in_epoch else replace(epochs, begun=None)
        self._stream_state.resume_point.go_to(point)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stream_state": self._stream_state.copied()}


#: Before anybody patches it.
_OWN_ITER = vars(StreamingDataset)["__iter__"]


def has_own_iter(dataset: StreamingDataset) -> bool:
    """Return whether a subclass or a patch overrides ``__iter__``."""
    return type(dataset).__iter__ is not _OWN_ITER


def _number(argument: str, value: int | None, *, minimum: int = 1) -> int | None:
    return None if value is None else arguments.integer(argument, value, minimum=minimum)


def _schedule(given: Any, weights: Sequence[StreamWeight], epoch_size: int) -> WeightSchedule | None:
    if given is None:
        return None
    if any(weight.kind is not None for weight in weights):
        raise ConfigurationError("weight_schedule", given, "streams without weights of their own")
    return WeightSchedule(given, len(weights), epoch_size)


def _num_processes(world: World | None) -> int:
    """Return how many processes of this node read the dataset."""
    info = get_worker_info()
    return (world or World.of_job()).ranks_per_node * (1 if info is None else info.num_workers)


def open_epoch(epoch: str, **options: Any) -> StreamingDataset:
    """Return a dataset whose next epoch is the given one.

    As the ``dataset_generator`` of a ``DataLoaderFactory`` it makes each epoch a shard of a ``ShardedDataLoader``,
    which its workers read. All ranks get the same epochs, and each reads its own part of them.

    Args:
        epoch: The number of the epoch as text.
        **options: The options of ``StreamingDataset``.

    Raises:
        ConfigurationError: ``epoch`` is no number, or an option is invalid.
        Exception: Whatever ``StreamingDataset`` raises.
    """
    if not isinstance(epoch, str) or not epoch.isdecimal():
        raise ConfigurationError("epoch", epoch, 'the number of an epoch as text, such as "0"')
    dataset = StreamingDataset(**options)
    dataset.next_epoch = int(epoch)
    return dataset

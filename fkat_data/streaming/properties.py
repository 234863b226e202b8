"""The properties of a streaming dataset: what it knows of its data and its settings."""

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.files.shard import ShardEntry
from fkat_data.streaming.epoch.shared_resume import ResumePoint
from fkat_data.streaming.order.epoch_order import LAST_EPOCH
from fkat_data.streaming.order.spans import Spanner
from fkat_data.streaming.reader import StreamState
from fkat_data.streaming.reading.stream import Stream

_Integers = npt.NDArray[np.int64]


class DatasetProperties:
    """The properties that follow from a dataset's streams, catalog and settings; and access to its shards by their numbers.

    Args:
        streams: The streams, with every setting filled in.
        state: What the dataset holds.
    """

    def __init__(self, streams: list[Stream], state: StreamState) -> None:
        super().__init__()
        self.streams = streams
        self._stream_state = state

    def _present_point(self) -> ResumePoint:
        """Return where the present iteration began, with every setting filled in; before one, what was loaded."""
        state = self._stream_state
        point = state.resume_point.current()
        return state.resume_point.next() if point is None else state.epochs.with_defaults(point)

    def resample_streams(self, epoch: int, stream_id: int | None = None) -> tuple[_Integers, _Integers]:
        """Return the samples that an epoch takes of all streams, or of one, before they are shuffled.

        Args:
            epoch: The epoch.
            stream_id: The number of the stream; None: all streams.

        Returns:
            The sizes of the shuffle units, and the numbers of their samples, unit by unit. A unit is a whole shard, once
            for each time that the epoch takes it, or the part of a shard that it takes besides.

        Raises:
            ConfigurationError: There is no such epoch or stream.
        """
        arguments.integer("epoch", epoch, minimum=0, maximum=LAST_EPOCH)
        if stream_id is not None:
            arguments.integer("stream_id", stream_id, minimum=0, maximum=self.num_streams - 1)
        return self._stream_state.epochs.resampled(epoch, self.shuffle_seed, stream_id)

    @property
    def cache_usage(self) -> int:
        """Bytes that the streams' directories on this node take, counted now; 0 if all data are read in place."""
        budget = self._stream_state.catalog.cache_budget
        return 0 if budget is None else budget.usage_bytes

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard unless it is cached.

        Args:
            shard_id: The number of the shard.
            blocking: Whether to wait if another process is fetching it.

        Raises:
            ConfigurationError: The shard does not exist, or does not fit the cache.
            Exception: Why the shard could not be fetched.
        """
        shard, catalog = self._shard(shard_id), self._stream_state.catalog
        catalog.source_of(shard).fetch(catalog.entries[shard], wait=arguments.boolean("blocking", blocking))

    def evict_shard(self, shard_id: int) -> int:
        """Remove a shard from this node if it can be fetched again; return the size of its files in bytes.

        Processes that have it open continue to read it.

        Args:
            shard_id: The number of the shard.

        Raises:
            ConfigurationError: The shard does not exist.
            OSError: A file cannot be removed.
        """
        shard, catalog = self._shard(shard_id), self._stream_state.catalog
        return catalog.source_of(shard).evict(catalog.entries[shard])

    def evict_coldest_shard(self) -> int:
        """Remove the least recently used file; return its size in bytes, 0 if there is none.

        Raises:
            OSError: The file cannot be removed.
        """
        budget = self._stream_state.catalog.cache_budget
        return 0 if budget is None else budget.evict(1)

    def _shard(self, shard: object) -> int:
        number = arguments.integer("shard_id", shard, minimum=0)
        if number >= self.num_shards:
            raise ConfigurationError("shard_id", number, f"one of the {self.num_shards} shards")
        return number

    @property
    def num_streams(self) -> int:
        """Number of streams."""
        return len(self.streams)

    @property
    def shards(self) -> list[ShardEntry]:
        """The entries of all shards in the indices."""
        return self._stream_state.catalog.entries

    @property
    def num_shards(self) -> int:
        """Number of shards in all streams."""
        return len(self._stream_state.catalog.entries)

    @property
    def num_samples(self) -> int:
        """Number of samples in all streams, each counted once."""
        return self._stream_state.catalog.num_samples

    @property
    def size(self) -> int:
        """The same as ``num_samples``."""
        return self.num_samples

    @property
    def epoch_size(self) -> int:
        """Samples of an epoch over all ranks."""
        return self._stream_state.epochs.shares(0).epoch_size

    @property
    def spanner(self) -> Spanner:
        """Maps a sample's number to its shard and row: ``spanner[number]``."""
        return self._stream_state.catalog.spanner

    @property
    def samples_per_shard(self) -> _Integers:
        """Samples of each shard."""
        return self._stream_state.catalog.samples_per_shard

    @property
    def sample_offset_per_shard(self) -> _Integers:
        """The first sample of each shard."""
        return self._stream_state.catalog.sample_offset_per_shard

    @property
    def stream_per_shard(self) -> _Integers:
        """The stream of each shard."""
        return self._stream_state.catalog.stream_per_shard

    @property
    def shards_per_stream(self) -> _Integers:
        """Shards of each stream."""
        return self._stream_state.catalog.shards_per_stream

    @property
    def shard_offset_per_stream(self) -> _Integers:
        """The first shard of each stream."""
        return self._stream_state.catalog.shard_offset_per_stream

    @property
    def samples_per_stream(self) -> _Integers:
        """Samples of each stream."""
        return self._stream_state.catalog.samples_per_stream

    @property
    def sample_offset_per_stream(self) -> _Integers:
        """The first sample of each stream."""
        return self._stream_state.catalog.sample_offset_per_stream

    @property
    def shuffle(self) -> bool:
        """Whether samples are shuffled."""
        return self._stream_state.epochs.settings.shuffle

    @property
    def shuffle_algo(self) -> str:
        """The algorithm of the shuffle."""
        return self._stream_state.epochs.settings.shuffle_algo

    @property
    def shuffle_seed(self) -> int:
        """The seed of the shuffle: that of a loaded state, else the argument."""
        seed = self._present_point().shuffle_seed
        return self._stream_state.epochs.shuffle_seed if seed is None else seed

    @property
    def shuffle_block_size(self) -> int | None:
        """The number of samples that a shard is spread over; None before the first iteration: not yet derived."""
        settings, num_canonical_nodes = self._stream_state.epochs.settings, self._present_point().num_canonical_nodes
        return settings.shuffle_block_size if num_canonical_nodes is None else settings.block_size(num_canonical_nodes)

    @property
    def sampling_method(self) -> str:
        """Whether each epoch takes other samples (``"balanced"``) or the same ones (``"fixed"``)."""
        return self._stream_state.epochs.settings.sampling_method

    @property
    def sampling_granularity(self) -> int:
        """Samples of a shard that are taken together."""
        return self._stream_state.epochs.settings.sampling_granularity

    @property
    def partition_algo(self) -> str:
        """The algorithm that divides samples among nodes."""
        return self._stream_state.epochs.settings.partition_algo

    @property
    def mixes_streams(self) -> bool:
        """Whether a rank's batch may have samples of several streams."""
        return self.num_streams > 1 and not self.batching_method.endswith("per_stream")

    @property
    def batching_method(self) -> str:
        """The way in which streams are mixed."""
        return self._stream_state.epochs.settings.batching_method

    @property
    def num_canonical_nodes(self) -> int | None:
        """Parts of the order: those of a loaded state, else the argument; None before the first iteration: a default."""
        return self._present_point().num_canonical_nodes or self._stream_state.epochs.num_canonical_nodes

    @property
    def initial_physical_nodes(self) -> int | None:
        """The number of nodes that the epoch under way began on; None before the first iteration."""
        return self._present_point().initial_physical_nodes

    @property
    def epoch_seed_change(self) -> bool:
        """Whether each epoch takes other samples of a shard that it takes in part: shuffled, and ``"balanced"``."""
        return self.shuffle and self.sampling_method == "balanced"

    @property
    def max_shard_size_across_all_streams(self) -> int:
        """The size of the largest shard, in bytes: of its uncompressed and compressed files together."""
        return max(sum(info.bytes for pair in entry.files for info in pair if info) for entry in self.shards)

    @property
    def replication(self) -> int | None:
        """The number of consecutive ranks that get the same samples."""
        return self._stream_state.epochs.replication

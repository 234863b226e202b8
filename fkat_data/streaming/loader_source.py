"""The loader's side of a streaming dataset."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.audit import where_is
from fkat_data.streaming.epoch.rank_batches import PickedSamples
from fkat_data.streaming.epoch.world import World
from fkat_data.streaming.loader_plan import (
    BatchRange,
    BatchRangeProduct,
    StreamEpochs,
    StreamPlan,
    StreamWindows,
    writable,
)
from fkat_data.streaming.reader import StreamReader
from fkat_data.streaming.reading.catalog import Catalog
from fkat_data.streaming.reading.pinned_commits import check_ranks
from fkat_data.streaming.user_iterator import UserIteratorBatches, UserIteratorPlan
from fkat_data.types import StreamSource, stream_source_of
from fkat_data.worker.epoch_factory import Strand


class DatasetSource(StreamSource[StreamEpochs, StreamWindows]):
    """The ``StreamSource`` of a ``StreamingDataset``.

    Args:
        reader: The dataset's.
        has_own_iter: Whether a subclass or a patch overrides its ``__iter__``.
    """

    def __init__(self, reader: StreamReader, *, has_own_iter: bool) -> None:
        self.reader: StreamReader = reader
        self._has_own_iter = has_own_iter

    @property
    def batch_size(self) -> int | None:
        """Samples of a rank's batch; None: not yet given."""
        return self.reader.dataset.batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        self.reader.dataset.batch_size = batch_size

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration begins or continues; one that is set begins at its start."""
        return self.reader.dataset.next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self.reader.dataset.next_epoch = epoch

    @property
    def seed(self) -> int:
        """The seed of its orders."""
        return self.reader.epochs.shuffle_seed

    @property
    def fetches_shards(self) -> bool:
        """Whether threads fetch what is read."""
        return any(stream.remote is not None for stream in self.reader.dataset.streams)

    @property
    def shipment(self) -> dict[str, Any]:
        """All that workers have of the dataset: all but its resume point."""
        attributes = cast("dict[str, Any]", vars(self.reader.dataset))
        return {
            name: value for name, value in attributes.items() if name != "_stream_state"
        } | self.reader.state.shipped()

    @property
    def files(self) -> Catalog:
        """The object that writes into a state what the files of tokens were, and checks it at a load."""
        return self.reader.catalog

    def ranks(self) -> tuple[int, int]:
        """Return the number of ranks that windows are dealt out to, and which of them this one is.

        Raises:
            RankMismatchError: Another rank reads another commit of the Hugging Face hub, with other data.
        """
        check_ranks(self.reader.catalog.commits)
        world = self.reader.epochs.world()
        return world.num_ranks, world.rank

    def set_ranks(self, num_ranks: int, rank: int) -> None:
        """Deal samples out to that many ranks, of which this process is one, from the next iteration on.

        Raises:
            ConfigurationError: The dataset was given ``replication``.
        """
        epochs = self.reader.epochs
        if epochs.replication is not None:
            raise ConfigurationError(
                "replication", epochs.replication, "None: the loader's mesh says which ranks get the same"
            )
        self.reader.state.epochs = replace(epochs, fixed_world=World.of_job().of_ranks(num_ranks, rank))

    @property
    def acceptable_fields(self) -> tuple[str, ...]:
        """The fields of a state that may be accepted where they differ."""
        return self.reader.dataset.acceptable_fields

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = (), /) -> None:
        """Go to a position that ``state_dict`` of the dataset says; ``accept``: the fields that may differ."""
        # A subclass of a user's may take the state alone.
        self.reader.dataset.load_state_dict(state_dict, *([accept] if accept else []))

    def plan(self, dp_rank: int, *, num_workers: int, collate_fn: Any, **settings: bool) -> StreamEpochs:
        """Return the plan of this rank's batches, for a loader with these settings of ``StreamEpochs``."""
        if self._has_own_iter:
            return UserIteratorPlan(self.reader, dp_rank, num_workers=num_workers, **settings)
        return StreamPlan(self.reader, dp_rank, is_read_here=not num_workers, collate_fn=collate_fn, **settings)

    def windows(self, window_size: int, *, is_read_here: bool) -> StreamWindows:
        """Return the order that the windows of a window function are cut from.

        Raises:
            ConfigurationError: They cannot be cut from this dataset's order.
        """
        epochs, skips = self.reader.epochs, self.reader.skips
        method = epochs.settings.batching_method
        if self._has_own_iter:
            expected = "a dataset without an __iter__ of its own, with window_fn or on_sample_error: windows are cut from its order"
            raise ConfigurationError("dataset", cast("type[Any]", type(self.reader.dataset)), expected)
        if method != "random":
            expected = (
                "'random', with window_fn or on_sample_error: windows are cut from an order of samples, not of batches"
            )
            raise ConfigurationError("batching_method", method, expected)
        if skips:
            expected = "nothing, with window_fn or on_sample_error: a function of the window can leave samples out"
            raise ConfigurationError("skip", skips.plain(), expected)
        if epochs.replication is not None:
            expected = "None, with window_fn or on_sample_error: each rank gets windows of its own"
            raise ConfigurationError("replication", epochs.replication, expected)
        return StreamWindows(self.reader, window_size, is_read_here=is_read_here)

    def window_fingerprint(self) -> dict[str, Any]:
        """Return the fields of a state that the order of the windows depends on."""
        return {f"stream_{name}": value for name, value in self.reader.epochs.fingerprint().items()}

    def product(
        self, task: BatchRange | Strand, collate_fn: Callable[[list[Any]], Any]
    ) -> BatchRangeProduct | UserIteratorBatches:
        """Return the batches of a task of the plan, where they are made."""
        kind: Any = UserIteratorBatches if isinstance(task, Strand) else BatchRangeProduct
        return kind(self.reader, collate_fn, task)

    def samples(self, sample_ids: list[int]) -> list[Any]:
        """Return the samples of a window; their arrays may be written to."""
        return [writable(sample) for sample in self.reader.maker.picked(PickedSamples(np.array(sample_ids, np.int64)))]

    def where(self, sample_id: int) -> tuple[int, str, int]:
        """Return a sample's stream, the name of its shard, and its row there."""
        return where_is(self.reader.catalog, sample_id)[:3]

    def note_columns(self, error: Exception) -> None:
        """Note on an error of a batch that the streams its samples are from have other columns, if they have."""
        self.reader.catalog.note_columns(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return stream_source_of, (self.reader.dataset,)  # of the dataset's copy

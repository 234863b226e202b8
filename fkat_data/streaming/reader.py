"""The order and the shards of a streaming dataset, from any position on: what its plans and its iterations read by."""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors.acceptance import AcceptedField, accepted_field
from fkat_data.streaming.epoch.delivery_tracker import DeliveryTracker
from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.rank_batches import RankBatches, SampleSkips
from fkat_data.streaming.epoch.shared_resume import (
    ResumePoint,
    SharedResumePoint,
    iteration_here,
    iteration_that_starts,
)
from fkat_data.streaming.reading.catalog import Catalog
from fkat_data.streaming.reading.open_shards import OpenShards
from fkat_data.streaming.reading.pinned_commits import check_ranks, saved_commits
from fkat_data.streaming.sample_access import SampleMaker
from fkat_data.types import stream_source_of
from fkat_data.worker.fingerprints import files_field

#: The default of what is fetched ahead.
_READ_AHEAD_BYTES = 128 << 20

_Part = TypeVar("_Part")
_Integers = npt.NDArray[np.int64]


@dataclass
class StreamState:
    """What a streaming dataset holds; each copy of the dataset has one of its own.

    Attributes:
        catalog: The shards of its streams.
        epochs: The order's settings.
        skips: The batches and samples to skip, including the ``skip`` of a loaded state.
        shards: Those that are open.
        resume_point: Where the present iteration has begun, and where the next one does.
        delivery_tracker: The count of the iteration that was begun last.
        accepted: What differed where a state was loaded, and was accepted.
    """

    catalog: Catalog
    epochs: Epochs
    skips: SampleSkips
    shards: OpenShards
    resume_point: SharedResumePoint = field(default_factory=SharedResumePoint)
    delivery_tracker: DeliveryTracker | None = None
    accepted: tuple[AcceptedField, ...] = ()

    def copied(self) -> "StreamState":
        """Return a copy for a copy of the dataset, which no iteration goes through."""
        return replace(self, delivery_tracker=None)

    def shipped(self) -> dict[str, Any]:
        """Return what an iteration does not change."""
        return {"catalog": self.catalog, "epochs": self.epochs, "skips": self.skips, "shards": self.shards}


@dataclass
class StrandEpochs:
    """The epochs of a loader's strand, which goes through the ``__iter__`` of a user's dataset.

    Attributes:
        state: The dataset's.
        next_point: Where the next epoch begins that the dataset's own iteration begins for this strand.
    """

    state: StreamState
    next_point: ResumePoint

    def samples(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yield what the dataset's ``__iter__`` does, which begins this strand's epochs."""
        iterator = self._call(iter, dataset)
        while (sample := self._call(next, iterator, _END)) is not _END:
            yield sample

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # Not for longer: in the caller's own thread, others may iterate the dataset between two samples.
        before = _running_strand.get()
        try:
            try:
                _running_strand.set(self)
                return function(*arguments)
            finally:
                _running_strand.set(before)
        finally:  # an interruption may have come before the first one
            _running_strand.set(before)


_END = object()
#: The strand whose dataset's code runs now.
_running_strand: ContextVar[StrandEpochs | None] = ContextVar("fkat_data_strand", default=None)


class StreamReader:
    """A reader of a streaming dataset, which refers to it and keeps nothing of its own.

    Args:
        dataset: The ``StreamingDataset``.
        state: What it holds.
        maker: Makes its samples.
    """

    def __init__(self, dataset: Any, state: StreamState, maker: SampleMaker) -> None:
        self.dataset: Any = dataset
        self.state: StreamState = state
        self.maker: SampleMaker = maker

    @property
    def catalog(self) -> Catalog:
        """The shards of its streams."""
        return self.state.catalog

    @property
    def epochs(self) -> Epochs:
        """The order's settings."""
        return self.state.epochs

    @property
    def skips(self) -> SampleSkips:
        """The batches and samples to skip."""
        return self.state.skips

    @property
    def batch_size(self) -> int:
        """Samples of a rank's batch, where it is known."""
        return cast("int", self.epochs.batch_size)

    @property
    def fitting(self) -> Callable[[_Integers], int] | None:
        """What ``num_together`` is of a cache that has a limit; None: it has none."""
        return None if self.dataset.cache_limit is None else self.num_together

    @property
    def num_ahead(self) -> int:
        """The least number of samples whose shards are fetched ahead."""
        if self.dataset.predownload is not None:
            return self.dataset.predownload
        return max(8 * (self.epochs.batch_size or 8), self.samples_in(_READ_AHEAD_BYTES))

    def samples_in(self, size_bytes: int) -> int:
        """Return the approximate number of samples in a number of bytes."""
        return max(1, size_bytes * self.catalog.num_samples // max(self.catalog.raw_bytes, 1))

    def num_together(self, sample_ids: _Integers) -> int:
        """Return how many of the first samples to read together, so that a small cache holds the shards of all."""
        return self.state.shards.num_together(sample_ids)

    def with_read_ahead(
        self, parts: Iterable[_Part], ids_of: Callable[[_Part], _Integers], *, is_opened: bool = True
    ) -> Iterator[_Part]:
        """Yield parts of what will be read, while the shards of the parts that follow are fetched.

        Args:
            parts: What will be read.
            ids_of: Maps a part to its samples.
            is_opened: Whether this process will read the shards; if not, they are only fetched.

        Raises:
            Exception: Why a shard could not be fetched, when it is read.
        """
        if self.catalog.is_in_place:
            return iter(parts)
        return self.state.shards.with_read_ahead(parts, ids_of, num_ahead=self.num_ahead, is_opened=is_opened)

    def collated(self, batches: Sequence[_Integers]) -> Iterable[Any]:
        """Return batches of samples as torch's default collate makes them, read together, without user code.

        If that fails, the batches before the faulty one still come first.
        """
        return self.state.shards.collated(batches)

    def next_point(self) -> ResumePoint:
        """Return the point where the next ``iter`` begins."""
        return self.state.resume_point.next()

    def begin_at(self, point: ResumePoint) -> None:
        """Let the next ``iter`` begin at a point that ``next_point`` returned."""
        self.state.resume_point.go_to(point)

    def dataset_at(self, point: ResumePoint) -> Any:
        """Return a dataset that shares all with this one, but where its next ``iter`` begins."""
        found = copy.copy(self.dataset)
        reader = reader_of(found)
        reader.state.resume_point = SharedResumePoint()
        reader.begin_at(point)
        return found

    def begin_epoch(self) -> ResumePoint:
        """Return the point where the next epoch of this process begins, with every setting filled in.

        Raises:
            RankMismatchError: Another rank reads another commit of the Hugging Face hub, with other data.
        """
        state = self.state
        strand = _running_strand.get()
        if strand is not None and strand.state is state:
            point = strand.next_point
            strand.next_point = replace(point, epoch=point.epoch + 1, sample_in_epoch=0, initial_grid=None)
            return point
        check_ranks(self.catalog.commits)
        is_order_needed = self.epochs.world().num_ranks > 1
        return self.epochs.with_defaults(state.resume_point.begin(iteration_here(), is_order_needed=is_order_needed))

    def rank_batches(self, point: ResumePoint) -> RankBatches:
        """Return the batches of this rank from a point on."""
        return RankBatches(self.epochs.plan(point), point, self.epochs.world().rank, self.skips)

    def state_at(self, point: ResumePoint) -> dict[str, Any]:
        """Return the state of which ``load_state_dict`` goes to a point."""
        commits = saved_commits(self.catalog.commits)
        state = {**self.epochs.state(self.epochs.with_defaults(point)), "skip": tuple(self.skips.plain())}
        state |= accepted_field(self.state.accepted)
        files = {name: tuple(value) for name, value in files_field(self.catalog).items()}
        return {**state, **files, "commits": commits} if commits else {**state, **files}


def reader_of(dataset: object) -> StreamReader:
    """Return the reader of a ``StreamingDataset``."""
    return cast("Any", stream_source_of(dataset)).reader


def _announce_forked() -> None:
    """Begin the iteration of which a worker is about to be forked: nothing of the dataset is pickled then."""
    starting = iteration_that_starts()
    reader = None if starting is None else getattr(stream_source_of(starting[1]), "reader", None)
    if starting is not None and isinstance(reader, StreamReader):
        reader.state.resume_point.announce(starting[0])


os.register_at_fork(before=_announce_forked)

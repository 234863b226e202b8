"""A DataLoader for a streaming dataset, which makes the order's batches and tracks the trainer's position."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import currentframe
from typing import Any, TypeVar, cast

from torch.utils.data import DataLoader, Dataset, Sampler

from fkat_data.arguments import integer
from fkat_data.description import Described
from fkat_data.errors import ConfigurationError, FkatDataError, StaleIteratorError, StateMismatchError
from fkat_data.missing_place import watch_checkpoints
from fkat_data.stepping_over import NotSteppedOver, accelerator_that_asks
from fkat_data.streaming.batch_iterator import BatchIterator
from fkat_data.streaming.batch_maker import batch_maker, collate_of_samples
from fkat_data.streaming.dataset import StreamingDataset, has_own_iter
from fkat_data.streaming.epoch.rank_batches import BatchGroup, PickedSamples, RankBatches, ids_of, in_groups
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.handed_out import BatchEnd
from fkat_data.streaming.own_iteration import FailedBatch, IteratedBatches
from fkat_data.streaming.reading.read_commit import check_merged
from fkat_data.tracebacks import fold

__all__ = ["StreamingDataLoader", "batches_together"]

_logger = logging.getLogger(__name__)

_OF_ITERATION = {
    *("num_samples_yielded", "_iteration", "_workers", "_is_watched", "_epoch", "_sample_in_epoch", "_after"),
    *("_is_in_step", "_is_last", "_numbered", "_numbered_batches", "_next_numbered"),
}

#: All that is raised in an iteration, but what closes one that is dropped: no call runs then that could be interrupted.
_RAISED = (Exception, KeyboardInterrupt, SystemExit)
_Made = TypeVar("_Made")

#: Enough samples to make the visit of a shard worthwhile, and few enough bytes to spare memory.
_READ_TOGETHER = 1024
_READ_TOGETHER_BYTES = 4 << 20


class StreamingDataLoader(  # pyright: ignore[reportIncompatibleVariableOverride] # what torch declares as a variable is a property
    Described, NotSteppedOver, DataLoader[Any]
):
    """Batches of a ``StreamingDataset``, with the trainer's position as state.

    The trainer's process plans the order; workers receive the numbers of the samples to read, and keep no position.
    With torch's default collate a batch is gathered column by column, with the same result. For any other dataset this
    is torch's DataLoader and has no state.

    Where a subclass of ``StreamingDataset`` overrides ``__iter__``, it is iterated, in the workers if there are any. Its
    state is exact while it yields one sample for each that ``super().__iter__()`` hands to it.

    ``accelerator.prepare`` leaves the batches as they are, moves them to its device, and saves and loads the state. See
    ``fkat_data.huggingface`` for ``skip_first_batches``.

    Args:
        dataset: The dataset.
        batch_size: Samples of a rank's batch; not needed if the dataset has a batch size.
        **options: The options of torch's DataLoader.

    Raises:
        ConfigurationError: The dataset has another batch size, none is given, or ``in_order`` is false: the state
            counts batches in their order.
        ValueError: torch refuses an option.

    Attributes:
        num_samples_yielded: Samples of this rank that the present iteration has delivered.
    """

    # Of the iteration under way; a copy has none.
    num_samples_yielded: int = 0
    _iteration: int = 0
    _workers: DataLoader[Any] | None = None
    _is_watched: bool = False
    _epoch: int | None = None
    _sample_in_epoch: int | None = None
    _after: ResumePoint | None = None
    _is_in_step: bool = True
    _is_last: bool = False
    _numbered: Iterator[Any] | None = None
    _numbered_batches: RankBatches | None = None
    _next_numbered: int = 0

    def __init__(self, dataset: Dataset[Any], batch_size: int | None = None, **options: Any) -> None:
        if isinstance(dataset, StreamingDataset):
            batch_size = _agreed(dataset, batch_size)
            if not options.get("in_order", True):
                raise ConfigurationError(
                    "in_order", options["in_order"], "True: the state counts batches in their order"
                )
        super().__init__(dataset, 1 if batch_size is None else batch_size, **options)
        self._options = options
        self._collate = cast("Callable[[list[Any]], Any]", self.collate_fn)
        self._tasks = _Tasks()
        self._is_prepared = False
        if self._has_own_iter:
            # What an ``__iter__`` does with the first batches shows only when it runs: this loader is not ``Skippable``.
            vars(self)["skip"] = None

    @property
    def _has_own_iter(self) -> bool:
        return isinstance(self.dataset, StreamingDataset) and has_own_iter(self.dataset)

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What accelerate reads to find out whether the batches are this rank's already, and sets afterwards."""
        accelerator = accelerator_that_asks(currentframe())
        if accelerator is not None and not self._is_watched and self.use_stateful_dataloader:
            watch_checkpoints(self, accelerator)
            self._is_watched = True
        return self.use_stateful_dataloader

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        self._is_prepared = is_prepared

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether the loader has a state of its own; accelerate then saves and loads it."""
        return isinstance(self.dataset, StreamingDataset)

    def _check_parts(self, num_ranks: int, rank: int) -> None:
        if num_ranks > 1:
            expected = "accelerator.prepare(loader), which returns this loader: its batches are this rank's already"
            raise ConfigurationError("prepare_data_loader", f"a fkat_data.streaming.{type(self).__name__}", expected)
        _logger.warning(
            "accelerate's prepare_data_loader makes another DataLoader of rank %d's dataset, without the place of this one. "
            "accelerator.prepare(loader) keeps it",
            rank,
        )

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "epoch", self._epoch
        yield "num_samples_yielded", self.num_samples_yielded
        yield "batch_size", self.batch_size
        yield "num_workers", self.num_workers
        yield "dataset", self.dataset

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch on this rank."""
        if not isinstance(self.dataset, StreamingDataset):
            return super().__len__()
        whole, rest = divmod(len(self.dataset), cast("int", self.batch_size))
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Any:
        """Begin the next epoch, or continue the one of a loaded state.

        Raises:
            StaleIteratorError: A later iterator has replaced this one.
        """
        if not isinstance(self.dataset, StreamingDataset):
            return super().__iter__()
        if self._is_prepared:
            return self._accelerated(self.dataset)
        return BatchIterator(self._begin(self.dataset, 0), self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy begins with: the same options, and the next epoch of the dataset, or what was loaded."""
        kept = {name: value for name, value in vars(self).items() if name not in _OF_ITERATION}
        return {**kept, "_tasks": _Tasks()}

    def skip(self, count: int) -> "_RestOfEpoch":
        """Return the batches of the next epoch after the first ``count``, which are not read.

        A ``ShardedDataLoader`` whose factory returns this loader uses it to resume exactly.

        Raises:
            ConfigurationError: The dataset is no ``StreamingDataset``, or ``count`` is negative.
        """
        if not isinstance(self.dataset, StreamingDataset):
            raise ConfigurationError("dataset", self.dataset, "a StreamingDataset")
        return _RestOfEpoch(self._begin, self.dataset, integer("count", count, minimum=0))

    @property
    def num_microbatches(self) -> int:
        """Batches of the next epoch, for a ``ShardedDataLoader`` whose workers make them together.

        Raises:
            AttributeError: The batches are not made one by one: workers of torch's make them, the dataset is no
                ``StreamingDataset``, or a subclass overrides ``__iter__``.
        """
        is_made_here = not self.num_workers and not self.pin_memory and not self._has_own_iter
        if not isinstance(self.dataset, StreamingDataset) or not is_made_here:
            raise AttributeError("num_microbatches")
        return len(self)

    def microbatch(self, index: int) -> Any:
        """Return one batch of the next epoch, by its place in it; fast where places grow from call to call.

        The first call begins the epoch, as ``iter`` does. The shards that the batches behind it need are fetched
        meanwhile.

        Raises:
            ConfigurationError: The dataset is no ``StreamingDataset``, or ``index`` is negative.
            IndexError: The epoch has no such batch.
        """
        dataset = self.dataset
        if not isinstance(dataset, StreamingDataset):
            raise ConfigurationError("dataset", dataset, "a StreamingDataset")
        integer("index", index, minimum=0)
        if self._numbered is None or index < self._next_numbered:
            batches = self._numbered_batches = self._numbered_batches or dataset.rank_batches(dataset.begin_epoch())
            wanted = self._wanted(dataset, batches, index)
            self._numbered = dataset.follow(in_groups(wanted, 1, 1), ids_of, is_opened=False)
            self._next_numbered = index
        for _, (picks,) in self._numbered:
            self._next_numbered += 1
            if self._next_numbered == index + 1:
                return next(iter(batch_maker(dataset, self._collate)([picks])))
        raise IndexError(f"the epoch has no batch {index}")

    def state_dict(self) -> dict[str, Any] | None:
        """Return the trainer's position; None for a dataset that is no ``StreamingDataset``.

        Prefetched batches do not count. All ranks return the same state.

        Raises:
            ConfigurationError: The dataset's own ``__iter__`` has not yielded one sample for each that it was handed,
                so that no place in the order says what it would yield next.
        """
        if not isinstance(self.dataset, StreamingDataset):
            return None
        if not self._is_in_step:
            raise ConfigurationError(
                "dataset",
                type(self.dataset),
                "an __iter__ that yields one sample for each of super().__iter__(), in turn: no state can say what "
                "another one yields next. To change single samples, pass transform= or override __getitem__",
            )
        if self._after is not None:
            return self.dataset.state_at(self._after)
        if self._sample_in_epoch is None:
            return self.dataset.state_dict(0, False)
        return self.dataset.state_dict(self._sample_in_epoch, True)

    def local_state_dict(self) -> dict[str, Any] | None:
        """Return what ``state_dict`` returns: no state of this loader needs the other ranks."""
        return self.state_dict()

    @staticmethod
    def merge_state_dicts(local_state_dicts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return one state for all ranks, from each rank's ``local_state_dict``: they are the same.

        Raises:
            StateMismatchError: There are none.
            RankMismatchError: Ranks read different data: two commits of a dataset of the Hugging Face hub.
        """
        if not local_state_dicts:
            raise StateMismatchError("local_state_dicts", 0, "<one for each rank>")
        check_merged(local_state_dicts)
        return local_state_dicts[0]

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered: the next iteration begins the next epoch.

        Where nothing of the epoch was delivered, the next iteration begins that epoch again.

        Raises:
            ConfigurationError: As for ``state_dict``.
        """
        state = self.state_dict()
        if state is None:
            return
        if state["sample_in_epoch"]:
            # A new epoch begins in the present grid.
            kept = {name: value for name, value in state.items() if name != "initial_grid"}
            state = {**kept, "epoch": state["epoch"] + 1, "sample_in_epoch": 0}
        self.load_state_dict(state)

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Continue with the next iteration where a state was taken, in this world or another.

        Raises:
            StateMismatchError: It is no such state, or another configuration wrote it.
            ConfigurationError: Its position does not fit this world.
        """
        if isinstance(self.dataset, StreamingDataset):
            self.dataset.load_state_dict(obj)
            self._sample_in_epoch = self._after = self._epoch = None
            self._is_in_step = True
            self._iteration += 1

    def _accelerated(self, dataset: StreamingDataset) -> Iterator[Any]:
        follow = import_module("fkat_data.accelerated")
        may_be_over = dataset.next_point().sample_in_epoch > 0
        batches = follow.rest_or_next(
            lambda: self._begin(dataset, 0), may_be_over=may_be_over, num_workers=self.num_workers
        )
        return follow.accelerated(((batch, self._is_last) for batch in batches), follow.mover_to(follow.device_here()))

    def _begin(self, dataset: StreamingDataset, first: int) -> Iterator[Any]:
        self._after, self._is_in_step = None, True
        if self._has_own_iter:
            self._iteration += 1
            self.num_samples_yielded = 0
            self._after = dataset.next_point()
            self._epoch = self._after.epoch
            return self._iterated(dataset, self._iteration, self._after)
        point = dataset.begin_epoch()
        batches = dataset.rank_batches(point)
        self._iteration += 1
        self.num_samples_yielded = 0
        self._sample_in_epoch = point.sample_in_epoch
        self._epoch = point.epoch
        return self._delivered(dataset, batches, first, self._iteration)

    def _delivered(self, dataset: StreamingDataset, batches: RankBatches, first: int, iteration: int) -> Iterator[Any]:
        wanted = self._wanted(dataset, batches, first)
        if self.num_workers or self.pin_memory:
            made = self._made_by_torch(dataset, wanted)
        else:
            made = self._made_here(dataset, wanted)
        try:
            for (index, num_samples, batch), is_last in self._with_end(made):
                if self._iteration != iteration:
                    raise StaleIteratorError("a later iter(), or a loaded state, has replaced this one")
                self._is_last = is_last
                self.num_samples_yielded += num_samples
                self._sample_in_epoch = batches.sample_in_epoch_after(index)
                yield batch
        except _RAISED as error:
            fold(error)
            raise

    def _iterated(self, dataset: StreamingDataset, iteration: int, start: ResumePoint) -> Iterator[Any]:
        collate = collate_of_samples(self._collate)
        batch_size = cast("int", self.batch_size)
        made: Any = IteratedBatches(dataset, collate, batch_size, drop_last=self.drop_last)
        if self.num_workers or self.pin_memory:
            if self._workers is None:
                self._workers = self._torch_loader(made)
            made = self._workers
        last: BatchEnd | None = None
        try:
            for batch, is_last in self._with_end(made):
                if isinstance(batch, FailedBatch):
                    raise batch.error
                if self._iteration != iteration:
                    raise StaleIteratorError("a later iter(), or a loaded state, has replaced this one")
                end: BatchEnd | None = batch.end
                if last is None and end is not None and self._is_in_step:
                    _check_beginning(end, start)
                if self._is_in_step and end is not None and end.follows(last):
                    last, self._after = end, end.after
                else:
                    self._is_in_step = False
                self._is_last = is_last
                self.num_samples_yielded += batch.num_samples
                yield batch.made
        except _RAISED as error:
            fold(error)
            raise

    def _with_end(self, made: Iterable[_Made]) -> Iterator[tuple[_Made, bool]]:
        """Yield what was made, and whether it is the epoch's last, which only accelerate wants to know."""
        if self._is_prepared:
            return import_module("fkat_data.accelerated").with_end(made)
        return ((item, False) for item in made)

    def _wanted(self, dataset: StreamingDataset, batches: RankBatches, first: int) -> Iterator[BatchGroup]:
        for indices, chunk in batches.picks(first, has_places=dataset.has_user_code):
            numbers = indices.tolist()
            num_kept = len(numbers) - bool(self.drop_last and numbers and batches.is_short(numbers[-1]))
            yield numbers[:num_kept], chunk[:num_kept]

    def _made_here(self, dataset: StreamingDataset, wanted: Iterator[BatchGroup]) -> Iterator[tuple[int, int, Any]]:
        together = batches_together(dataset, cast("int", self.batch_size))
        make = batch_maker(dataset, self._collate)
        # If shards come from a store, the first batch must not wait for those of the batches after it.
        first = together if dataset.catalog.is_immediate else 1
        num_together = None if dataset.cache_limit is None else dataset.num_together
        for numbers, part in dataset.follow(in_groups(wanted, first, together, num_together), ids_of):
            for number, picks, batch in zip(numbers, part, make(part), strict=True):
                yield number, len(picks.ids), batch

    def _made_by_torch(self, dataset: StreamingDataset, wanted: Iterator[BatchGroup]) -> Iterator[tuple[int, int, Any]]:
        if self._workers is None:
            self._workers = self._torch_loader(_Batches(dataset, self._collate), sampler=self._tasks)
        # Workers share this node's cache and find there what this process fetches.
        handed_out = self._tasks.begin(dataset.follow(in_groups(wanted, 1, 1), ids_of, is_opened=False))
        for batch in self._workers:
            if isinstance(batch, FailedBatch):
                raise batch.error
            yield *handed_out.popleft(), batch

    def _torch_loader(self, dataset: Dataset[Any], **options: Any) -> DataLoader[Any]:
        kept = {name: value for name, value in self._options.items() if name not in ("collate_fn", "drop_last")}
        return DataLoader(dataset, batch_size=None, collate_fn=_unchanged, **options, **kept)


class _RestOfEpoch:
    """The batches of an epoch from one of them on."""

    def __init__(
        self, begin: Callable[[StreamingDataset, int], Iterator[Any]], dataset: StreamingDataset, first: int
    ) -> None:
        self._begin = begin
        self._dataset = dataset
        self._first = first

    def __iter__(self) -> Iterator[Any]:
        return self._begin(self._dataset, self._first)


class _Tasks(Sampler[Any]):
    """The sample ids of one batch after another, which torch's DataLoader hands to its workers."""

    def __init__(self) -> None:
        self._wanted: Iterator[BatchGroup] = iter(())
        self._handed_out: deque[tuple[int, int]] = deque()

    def begin(self, wanted: Iterator[BatchGroup]) -> deque[tuple[int, int]]:
        """Hand out these batches from now on; return the queue of their numbers and sizes."""
        self._wanted = wanted
        self._handed_out = deque()
        return self._handed_out

    def __iter__(self) -> Iterator[PickedSamples]:
        wanted, handed_out = self._wanted, self._handed_out
        for numbers, chunk in wanted:
            for number, picks in zip(numbers, chunk, strict=True):
                handed_out.append((number, len(picks.ids)))
                yield picks

    def __getstate__(self) -> dict[str, Any]:
        return {"_wanted": iter(()), "_handed_out": deque[tuple[int, int]]()}


class _Batches(Dataset[Any]):
    """The worker's side: makes a batch from sample ids."""

    def __init__(self, dataset: StreamingDataset, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate

    def __getitem__(self, picks: PickedSamples) -> Any:
        try:
            return next(iter(batch_maker(self._dataset, self._collate)([picks])))
        except FkatDataError as error:
            return FailedBatch.of(error)


def batches_together(dataset: StreamingDataset, batch_size: int) -> int:
    """Return the number of batches that are read together without workers."""
    return max(1, min(_READ_TOGETHER, dataset.samples_in(_READ_TOGETHER_BYTES)) // batch_size)


def _check_beginning(end: BatchEnd, start: ResumePoint) -> None:
    began = end.beginning
    if (began.epoch, began.sample_in_epoch) != (start.epoch, start.sample_in_epoch):
        raise StaleIteratorError(
            f"another iterator of the dataset has begun at sample {start.sample_in_epoch} of epoch {start.epoch}, which "
            f"this one was to read; it would read on from sample {began.sample_in_epoch} of epoch {began.epoch}"
        )


def _unchanged(batch: Any) -> Any:
    return batch


def _agreed(dataset: StreamingDataset, batch_size: int | None) -> int:
    if batch_size is None and dataset.batch_size is None:
        raise ConfigurationError("batch_size", None, "a number of samples, in the loader or in the dataset")
    if dataset.batch_size is None:
        dataset.batch_size = batch_size
    if batch_size not in (None, dataset.batch_size):
        raise ConfigurationError(
            "batch_size", batch_size, f"{dataset.batch_size}, the batch size of the dataset, which its order depends on"
        )
    return cast("int", dataset.batch_size)

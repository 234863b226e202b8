"""The DataLoader with the contract of the reference: its state is the dataset's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch.utils import data as torch_data

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.arguments import integer
from fkat_data.loaders.data_loader import DataLoader
from fkat_data.plan.commits import OUTSTANDING, outstanding_field
from fkat_data.runtime.distributed import gather
from fkat_data.streaming.dataset import StreamingDataset, has_own_iter
from fkat_data.streaming.epoch.rank_batches import RankBatches, ids_of, in_groups
from fkat_data.streaming.loader_plan import (
    StreamEpochs,
    batch_maker,
    batches_together,
    num_wanted_batches,
    wanted_batches,
)
from fkat_data.streaming.reader import reader_of
from fkat_data.streaming.reading.pinned_commits import check_merged
from fkat_data.streaming.user_iterator import UserIteratorBatches, UserIteratorPlan
from fkat_data.worker.adoption import adopt
from fkat_data.worker.microbatch_source import MicrobatchSource, Opening, SequentialSource
from fkat_data.worker.settings import current_worker

_EXPECTED = "a StreamingDataset that does not override __iter__, and no window functions"
_OF_NUMBERED = {"_numbered", "_numbered_batches", "_next_numbered"}


class StreamingDataLoader(DataLoader[Any]):
    """Batches of a ``StreamingDataset``, with the trainer's position as state, in the reference's form.

    The trainer's process plans the order; workers receive the numbers of the samples to read, and keep no position.
    With torch's default collate a batch is gathered column by column, with the same result. For any other dataset this
    is a ``fkat_data.DataLoader``.

    Where a subclass of ``StreamingDataset`` overrides ``__iter__``, each worker iterates it, and their batches come in
    turn. Its state is exact while it yields one sample for each that ``super().__iter__()`` hands to it.

    ``accelerator.prepare`` leaves the batches as they are, moves them to its device, and saves and loads the state. See
    ``fkat_data.huggingface`` for ``skip_first_batches``.

    Args:
        dataset: The dataset.
        batch_size: Samples of a rank's batch; not needed if the dataset has a batch size.
        **options: The options of ``fkat_data.DataLoader``.

    Raises:
        ConfigurationError: The dataset has another batch size, none is given, or ``in_order`` is false: the state
            counts batches in their order.
        ValueError: torch refuses an option.
    """

    _leaves_empty_rest = False

    # Of the epoch whose batches are asked for by their numbers.
    _numbered: Iterator[Any] | None = None
    _numbered_batches: RankBatches | None = None
    _next_numbered: int = 0

    def __init__(self, dataset: torch_data.Dataset[Any], batch_size: int | None = None, **options: Any) -> None:
        if isinstance(dataset, StreamingDataset) and batch_size is None:
            if dataset.batch_size is None:
                raise ConfigurationError("batch_size", None, "a number of samples, in the loader or in the dataset")
            batch_size = dataset.batch_size
        super().__init__(dataset, 1 if batch_size is None else batch_size, **options)
        self._collate = cast("Callable[[list[Any]], Any]", self.collate_fn)

    @property
    def _has_own_iter(self) -> bool:
        return isinstance(self.dataset, StreamingDataset) and has_own_iter(self.dataset)

    @property
    def _is_of_batches(self) -> bool:
        """Whether the stream's order is one of batches, and its state the loader's."""
        return self._session.source.kind == "stream"

    @property
    def _makes_by_number(self) -> bool:
        """Whether any batch can be made without those before: what a user's ``__iter__`` does with them shows only there."""
        return self._is_of_batches and not self._has_own_iter

    @property
    def num_samples_yielded(self) -> int:
        """Samples of this rank that the present iteration has delivered."""
        running = self._session.running
        if running is None or not isinstance(running.plan, StreamEpochs):
            return 0
        return running.plan.num_samples_before(running.engine.position)

    def __iter__(self) -> Any:
        """Begin the next epoch, or continue the one of a loaded state.

        Raises:
            StaleIteratorError: A later iterator has replaced this one.
        """
        if self._is_of_batches and current_worker() is not None:
            return self._made_here(
                cast("StreamingDataset", self.dataset), 0
            )  # the product of a factory: the loader that asks has an engine
        return super().__iter__()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy begins with: the same options, and the next epoch of the dataset, or what was loaded."""
        return {name: value for name, value in super().__getstate__().items() if name not in _OF_NUMBERED}

    def skip(self, count: int) -> Iterator[Any]:
        """Return the batches of the next epoch after the first ``count``, which are not read.

        A ``ShardedDataLoader`` whose factory returns this loader uses it to resume exactly.

        Raises:
            ConfigurationError: The dataset is no ``StreamingDataset`` or overrides ``__iter__``, microbatches are cut from
                rows of windows, or ``count`` is negative.
        """
        dataset = self.dataset
        if not isinstance(dataset, StreamingDataset) or not self._makes_by_number:
            raise ConfigurationError("dataset", dataset, _EXPECTED)
        return self._made_here(dataset, integer("count", count, minimum=0))

    def microbatch_source(self, opening: Opening) -> MicrobatchSource:
        """Return what a worker of a ``ShardedDataLoader`` makes whose factory returns this loader."""
        return (
            adopt(self, opening) if self._makes_by_number else SequentialSource(lambda _: (0, iter(self)), opening.rng)
        )

    @property
    def num_microbatches(self) -> int:
        """Batches of the next epoch, for a ``ShardedDataLoader`` whose workers make them together.

        Raises:
            AttributeError: The batches are not made one by one: the dataset is no ``StreamingDataset``, or a subclass
                overrides ``__iter__``.
        """
        if not self._makes_by_number:
            raise AttributeError("num_microbatches")
        reader = reader_of(self.dataset)
        point = reader.next_point() if self._numbered_batches is None else self._numbered_batches.point
        return num_wanted_batches(reader, point, drop_last=self.drop_last)

    def microbatch(self, index: int) -> Any:
        """Return one batch of the next epoch, by its index in it; fast where indices grow from call to call.

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
        reader = reader_of(dataset)
        if self._numbered is None or index < self._next_numbered:
            batches = self._numbered_batches = self._numbered_batches or reader.rank_batches(reader.begin_epoch())
            wanted = wanted_batches(reader, batches, index, drop_last=self.drop_last)
            self._numbered = reader.with_read_ahead(in_groups(wanted, 1, 1), ids_of, is_opened=False)
            self._next_numbered = index
        for _, (picks,) in self._numbered:
            self._next_numbered += 1
            if self._next_numbered == index + 1:
                return next(iter(batch_maker(reader, self._collate)([picks])))
        raise IndexError(f"the epoch has no batch {index}")

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's position, as the dataset's ``load_state_dict`` and the reference take it.

        Prefetched batches do not count. All ranks return the same state. For a dataset that is no ``StreamingDataset``,
        it is the state of a ``fkat_data.DataLoader``.

        Raises:
            ConfigurationError: The dataset's own ``__iter__`` has not yielded one sample for each that it was handed,
                so that no position in the order says what it would yield next.
        """
        if not self._is_of_batches:
            return super().state_dict()
        own = self.local_state_dict()
        return own if self._session.ledger is None else self.merge_state_dicts(gather(own))

    def local_state_dict(self) -> dict[str, Any]:
        """Return what ``state_dict`` returns: no state of a stream needs the other ranks."""
        if not self._is_of_batches:
            return super().local_state_dict()
        state = self._session.state(self)
        return {**state.plan_state["stream"], **outstanding_field([state.outstanding])}

    @staticmethod
    def merge_state_dicts(local_state_dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return one state for all ranks, from each rank's ``local_state_dict``: they are the same.

        Raises:
            StateMismatchError: There are none.
            RankMismatchError: Ranks read different data: two commits of a dataset of the Hugging Face hub.
        """
        if not local_state_dicts:
            raise StateMismatchError("local_state_dicts", 0, "<one for each rank>")
        if "sample_in_epoch" not in local_state_dicts[0]:
            return DataLoader.merge_state_dicts(local_state_dicts)
        check_merged(local_state_dicts)
        found = [state.get(OUTSTANDING) for state in local_state_dicts]
        return {**local_state_dicts[0], **outstanding_field(found)}

    def _made_here(self, dataset: StreamingDataset, first: int) -> Iterator[Any]:
        """Yield the batches of the next epoch from one of them on, in this process, without moving the position."""
        reader = reader_of(dataset)
        if self._has_own_iter:
            plan = UserIteratorPlan(reader, 0, num_workers=0, drop_last=self.drop_last, leaves_empty_rest=False)
            plan.begin(plan.first())
            yield from UserIteratorBatches(reader, self._collate, plan.payload(0, 0))
            return
        batches = reader.rank_batches(reader.begin_epoch())
        wanted = wanted_batches(reader, batches, first, drop_last=self.drop_last)
        together = batches_together(reader, cast("int", self.batch_size))
        make = batch_maker(reader, self._collate)
        # If shards come from a store, the first batch must not wait for those of the batches after it.
        at_first = together if reader.catalog.is_in_place else 1
        num_together = reader.fitting
        for _, part in reader.with_read_ahead(in_groups(wanted, at_first, together, num_together), ids_of):
            yield from make(part)

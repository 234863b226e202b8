"""What a worker makes of an epoch: batches by their indices, or a strand of an iterable dataset with its states."""

import copy
import hashlib
import logging
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
from torch.utils import data as torch_data
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from fkat_data.errors.sample_errors import early_end
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.seeding import (
    OwnGenerators,
    ShardRng,
    microbatch_seed,
    preserved_generators,
    report_initial_seed,
    worker_base_seed,
)
from fkat_data.types import Stateful, stream_source_of
from fkat_data.worker.batches import BatchSequence
from fkat_data.worker.fetch import direct_iteration
from fkat_data.worker.messages import ShardTrailer, WithPlanUpdate
from fkat_data.worker.microbatch_source import Collate, Opening, SequentialSource, ShardProduct
from fkat_data.worker.produce import EpochAware
from fkat_data.worker.settings import current_worker
from fkat_data.worker.stacked import StackedBatches
from fkat_data.worker.windows import CollateSpec, Window, WindowFunction, WindowProduct, called_in_turn

_MODULE = "datasets.iterable_dataset"


def is_of_datasets(dataset: object) -> bool:
    """Return whether a dataset is an ``IterableDataset`` of that library."""
    return any((base.__module__, base.__name__) == (_MODULE, "IterableDataset") for base in type(dataset).__mro__)


def has_whole_state(dataset: object) -> bool:
    """Return whether nothing is missing in a dataset's state, should it have one: that of a shuffle's buffer is."""
    if not is_of_datasets(dataset):
        return True
    sources = [type(source).__name__ for source in _sources(dataset)]
    return bool(sources) and "BufferShuffledExamplesIterable" not in sources


def order_of(dataset: Any) -> dict[str, Any] | None:
    """Return what the order of a dataset of that library depends on, besides its data; None: it is of another.

    Returns:
        A dictionary with the ``"epoch"``, and with a digest of its generators, ``"shuffle"``.
    """
    if not is_of_datasets(dataset):
        return None
    digest = hashlib.blake2b(digest_size=8)
    for source in _sources(dataset):
        for value in vars(source).values():
            if isinstance(value, np.random.Generator):
                digest.update(repr(value.bit_generator.state).encode())
    return {"epoch": int(dataset.epoch), "shuffle": digest.hexdigest()}


def _sources(value: object) -> Iterator[object]:
    """Yield what a dataset is made of, from the outermost to the innermost."""
    for part in vars(value).values():
        parts = cast("Iterable[Any]", part) if isinstance(part, (list, tuple)) else (part,)
        for each in parts:
            if type(each).__module__ == _MODULE and hasattr(each, "__dict__") and not is_of_datasets(each):
                yield each
                yield from _sources(each)


class Snapshot(NamedTuple):
    """An iterable dataset's own state at a position of its strand.

    Attributes:
        step: Microbatches of the epoch before it.
        state: The pickled state: a dictionary with those of the dataset and of its iterator; None: it has none.
    """

    step: int
    state: bytes


class Strand(NamedTuple):
    """One epoch of a strand, as a worker gets it.

    Attributes:
        epoch: The epoch.
        number: The strand's, from 0.
        num_strands: Strands of the loader; 0: the only one belongs to no worker, as with ``num_workers=0``.
        snapshot: Where the dataset can go on; None: at its beginning.
    """

    epoch: int
    number: int
    num_strands: int
    snapshot: Snapshot | None

    @property
    def in_words(self) -> str:
        """What messages call it."""
        return f"strand {self.number + 1} of {self.num_strands}" if self.num_strands > 1 else "the dataset"

    def __repr__(self) -> str:
        return f"<{self.in_words}>"


_logger = logging.getLogger(__name__)


class DatasetMemory:
    """What a worker remembers of a dataset that stays from epoch to epoch."""

    def __init__(self) -> None:
        self.ended: bytes | None = None
        """Its state since it has ended an epoch, pickled; None: an epoch is under way, or it has none."""
        self.begun: bytes | None = None
        """Its state when the newest epoch began, pickled; None: it has none."""
        self._replaced: list[Any] = []

    def leave_end(self, dataset: Any, *, is_resumed: bool) -> None:
        """Note that the dataset is about to be iterated; ``is_resumed``: from a position within an epoch."""
        self.ended = None
        if is_resumed and self.begun is None and isinstance(dataset, Stateful):
            # An older state does not say how its epoch began: if it is left, the next one begins as the dataset came here.
            with suppress(Exception):  # some have a state once they are iterated
                self.begun = pickle.dumps({"dataset": dataset.state_dict(), "iterator": None})

    def load(self, dataset: Any, load: Callable[[], None]) -> None:
        """Load a state into a dataset of the library ``datasets``, and remember what ``unload`` puts back."""
        self._replaced = [getattr(dataset, "_starting_state_dict", None)]
        load()

    def unload(self, dataset: Any) -> None:
        """Have the dataset's next iteration begin where it did before ``load``."""
        while self._replaced:
            dataset.load_state_dict(self._replaced.pop())


class EpochSpec(NamedTuple):
    """The part of a loader's arguments that workers need to make an epoch's microbatches.

    Attributes:
        collate_fn: The user's, or torch's.
        worker_init_fn: Called once with a worker's number, where the dataset is; None: nothing is called.
        num_workers: Workers, as ``get_worker_info`` tells the dataset; 0: the dataset is in no worker.
        batch_size: Samples of a microbatch, for an iterable dataset; None: its items are microbatches.
        drop_last: Whether an iterable dataset's smaller last microbatch is left out.
        is_batched: Whether indices come in batches.
        keeps_dataset: Whether an iterable dataset stays from epoch to epoch; False: each begins with a copy of what the
            caller has.
        snapshot_every_n_steps: Microbatches between two states of an iterable dataset that has one; 0: none is taken
            within an epoch.
        seed: The loader's.
        dp_rank: The data-parallel rank that the workers are numbered in; 0 where they are numbered over all ranks.
        keeps_workers: Whether workers stay as they are from epoch to epoch, with their seeds.
        window_fn: Called one on what the other has returned, the first on a window's samples; none: the samples are
            the rows.
        window_size: Samples of a window of an iterable dataset.
        skips_samples: Whether a sample of a window that raises is left out.
    """

    collate_fn: Callable[[Any], Any]
    worker_init_fn: Callable[[int], None] | None
    num_workers: int
    batch_size: int | None
    drop_last: bool
    is_batched: bool
    keeps_dataset: bool
    snapshot_every_n_steps: int
    seed: int
    dp_rank: int
    keeps_workers: bool
    window_fn: Sequence[WindowFunction]
    window_size: int
    skips_samples: bool


class StrandProduct(ShardProduct):
    """One epoch of a strand.

    Args:
        strand: The epoch, and where to go on.
        make: Returns the dataset, and what is remembered of it; None: it is a copy for this epoch alone.
        spec: The loader's.
    """

    def __init__(self, strand: Strand, make: Callable[[], tuple[Any, DatasetMemory | None]], spec: EpochSpec) -> None:
        self._strand = strand
        self._make = make
        self._spec = spec

    def microbatch_source(self, opening: Opening) -> SequentialSource:
        """Return the source, which goes on from the dataset's newest known state at or before the wanted microbatch."""
        return SequentialSource(partial(self._begun, opening.collate), opening.rng)

    def _begun(self, collate: Collate | None, first_microbatch: int) -> tuple[int, Iterator[Any]]:
        """Return where the dataset begins, at most at ``first_microbatch``, and the microbatches from there.

        Raises:
            Exception: The user's.
        """
        dataset, memory = self._make()
        replaced = None
        if memory is not None and is_of_datasets(dataset):
            # What an epoch leaves behind is none of its states: each begins as the first did.
            memory.unload(dataset)
            memory, replaced = None, memory
        snapshot = self._snapshot(first_microbatch, memory)
        state = {} if snapshot is None else cast("dict[str, Any]", pickle.loads(snapshot.state))
        first = 0 if snapshot is None else snapshot.step
        if memory is not None:
            memory.leave_end(dataset, is_resumed=first > 0)
        if state.get("is_over"):  # the iterator has ended within the last microbatch
            return first, _end_of(state, dataset, memory)
        if state.get("dataset") is not None and replaced is not None:
            replaced.load(dataset, partial(_load, dataset, state))
        elif state.get("dataset") is not None:
            _load(dataset, state)
        tracked, spec = self._tracked(dataset, state), self._spec
        loader = TorchDataLoader(
            tracked, batch_size=spec.batch_size, drop_last=spec.drop_last, collate_fn=cast("Any", spec.collate_fn)
        )
        microbatches = direct_iteration(loader, collate)
        if replaced is not None and state.get("dataset") is not None:
            microbatches = _unloaded(microbatches, dataset, replaced)
        if state.get("iterator") is not None:
            tracked.iterator.load_state_dict(state["iterator"])
        if not tracked.has_state or not has_whole_state(dataset):
            return first, microbatches
        if memory is not None and not first:
            memory.begun = tracked.state()
        return first, self._stamped(first, microbatches, tracked, memory)

    def _tracked(self, dataset: Any, state: Mapping[str, Any]) -> "_TrackedDataset":
        if not self._spec.window_fn:
            return _TrackedDataset(dataset)
        return _TrackedWindows(dataset, self._spec.window_fn, self._spec.window_size, self._strand, state)

    def _snapshot(self, first_microbatch: int, memory: DatasetMemory | None) -> Snapshot | None:
        snapshot = self._strand.snapshot
        if memory is not None and snapshot is not None and memory.ended == snapshot.state:
            return None  # the dataset is at that position already
        if snapshot is not None and snapshot.step <= first_microbatch:
            return snapshot
        return None if memory is None or memory.begun is None else Snapshot(0, memory.begun)

    def _stamped(
        self, first: int, microbatches: Iterator[Any], tracked: "_TrackedDataset", memory: DatasetMemory | None
    ) -> Iterator[Any]:
        every = self._spec.snapshot_every_n_steps
        for index, microbatch in enumerate(microbatches, first + 1):
            is_due = every and index % every == 0
            yield WithPlanUpdate(microbatch, tracked.state()) if is_due else microbatch
        if memory is not None:
            memory.ended = tracked.state(is_over=True)
            yield ShardTrailer(memory.ended)


def _unloaded(microbatches: Iterator[Any], dataset: Any, memory: DatasetMemory) -> Iterator[Any]:
    """Yield the microbatches; from the first on, a copy of the dataset begins where the dataset did before the load."""
    for microbatch in islice(microbatches, 1):
        memory.unload(dataset)
        yield microbatch
    yield from microbatches


def _load(dataset: Any, state: dict[str, Any]) -> None:
    try:
        dataset.load_state_dict(state["dataset"])
    except genuine(Exception) as error:
        # A dataset that is its own iterator may have nothing to load into before iter(), which then begins an epoch.
        if not state.get("is_own_iterator"):
            raise
        _logger.warning("%s begins its epoch without a state: %r", type(dataset).__name__, error)


def _end_of(state: dict[str, Any], dataset: Any, memory: DatasetMemory | None) -> Iterator[Any]:
    if memory is not None:
        is_own_iterator = isinstance(dataset, Stateful) and state["dataset"] is None
        saved = state["iterator" if is_own_iterator else "dataset"]
        yield ShardTrailer(pickle.dumps({"dataset": saved, "iterator": None, "is_own_iterator": is_own_iterator}))


class _TrackedDataset(IterableDataset[Any]):
    """A dataset whose iterator is known."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.iterator: Any = iter(())
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        self.iterator = iter(self._dataset)
        return self._samples()

    def _samples(self) -> Iterator[Any]:
        # Neither `for` nor `yield from`: each calls iter() again, and a dataset that is its own iterator would begin again.
        while True:
            try:
                sample = next(self.iterator)
            except genuine(StopIteration):
                break
            yield sample
        self._is_over = True

    @property
    def has_state(self) -> bool:
        """Whether the dataset or its iterator has torchdata's ``state_dict`` and ``load_state_dict``."""
        return isinstance(self.iterator, Stateful) or isinstance(self._dataset, Stateful)

    def state(self, *, is_over: bool = False) -> bytes:
        """Return the pickled states of both; ``is_over``: for an epoch to come, with another iterator."""
        try:
            return pickle.dumps(self._states(is_over=is_over))
        except genuine(StopIteration) as error:
            raise early_end("state_dict()") from error

    def _states(self, *, is_over: bool) -> dict[str, Any]:
        # A dataset that is its own iterator gets its state after iter(); for an epoch to come, before it, as it has then.
        has_dataset = isinstance(self._dataset, Stateful) and (is_over or self.iterator is not self._dataset)
        has_iterator = isinstance(self.iterator, Stateful) and not is_over
        return {
            "dataset": self._dataset.state_dict() if has_dataset else None,
            "iterator": self.iterator.state_dict() if has_iterator else None,
            "is_over": self._is_over and not is_over,
            "is_own_iterator": self.iterator is self._dataset,
        }


class _TrackedWindows(_TrackedDataset):
    """A dataset whose samples become rows, window by window: its state is that before a window, and a row of it.

    Args:
        dataset: The user's.
        functions: Called one on what the other has returned.
        window_size: Samples of a window.
        strand: The epoch.
        saved: The state that the dataset goes on with.
    """

    def __init__(
        self,
        dataset: Any,
        functions: Sequence[WindowFunction],
        window_size: int,
        strand: Strand,
        saved: Mapping[str, Any],
    ) -> None:
        super().__init__(dataset)
        self._functions = functions
        self._window_size = window_size
        self._strand = strand
        self._seed: int = microbatch_seed() or 0  # of the stream under which the epoch is begun
        self._number: int = saved.get("window", 0)
        self._row: int = saved.get("row", 0)
        self._num_rows = 0
        # The states before the window whose rows are under way; None: no window is.
        self._before: dict[str, Any] | None = None

    def _samples(self) -> Iterator[Any]:
        samples = super()._samples()
        first_row = self._row
        while True:
            self._before = self._states(is_over=False) if self.has_state else {}
            rows, is_last = self._rows(samples)
            self._num_rows = len(rows)
            for self._row in range(first_row + 1, len(rows) + 1):
                yield rows[self._row - 1]
            if is_last:
                return
            self._before, first_row = None, 0
            self._row, self._number = 0, self._number + 1

    def _rows(self, samples: Iterator[Any]) -> tuple[list[Any], bool]:
        """Return the rows of the next window, and whether none follows it."""
        # What a window draws does not depend on the microbatch that its first row is in.
        with preserved_generators():
            ShardRng.of(self._seed, self._strand.number, 0, self._number).seed_opening()
            rows = [*islice(samples, self._window_size)]
            is_last = len(rows) < self._window_size
            window = f"window {self._number} of {self._strand.in_words}"
            return (called_in_turn(self._functions, rows, window) if rows else []), is_last

    def state(self, *, is_over: bool = False) -> bytes:
        """Return the pickled states of both; within an epoch, those before the window, and the row of it."""
        is_at_end = self._is_over and self._row >= self._num_rows
        if is_over or is_at_end or self._before is None:
            return pickle.dumps({**self._states(is_over=is_over), "window": 0 if is_over else self._number})
        return pickle.dumps({**self._before, "window": self._number, "row": self._row})


class _Copies:
    """Copies of a stream, each read by one task at a time."""

    def __init__(self) -> None:
        self._free: list[Any] = []
        self._lent: dict[weakref.ref[Any], Any] = {}
        self._ended: deque[weakref.ref[Any]] = deque()

    def lend(self, dataset: Any) -> Any:
        """Return a copy that no task reads."""
        while self._ended:
            self._free.append(self._lent.pop(self._ended.popleft()))
        return self._free.pop() if self._free else pickle.loads(pickle.dumps(dataset))

    def note(self, dataset: Any, product: Any) -> Any:
        """Take a copy back once the product of its task is gone; return the product."""
        self._lent[weakref.ref(product, self._ended.append)] = dataset
        return product


_WORKER: Any = getattr(getattr(torch_data, "_utils", None), "worker", None)


class EpochFactory(EpochAware):
    """Makes the microbatches of an epoch, or of a part of one; lives in the worker.

    Args:
        dataset: The user's.
        spec: The loader's.
    """

    def __init__(self, dataset: Any, spec: EpochSpec) -> None:
        self._copies: _Copies | None = None
        self.dataset = dataset
        self._spec = spec
        self._is_stream = stream_source_of(dataset) is not None
        self._is_entered = self._is_used = False
        self._epoch = 0
        self._memory = DatasetMemory()

    def enter_epoch(self, epoch: int) -> None:
        """Note the epoch that is made next."""
        self._epoch = 0 if self._spec.keeps_workers else epoch

    def for_threads(self) -> "EpochFactory":
        """Return one for the threads of a worker: each task of a stream, which one thread reads, has a copy of it."""
        made = copy.copy(self)
        vars(made).update(_copies=_Copies() if self._is_stream else None)
        return made

    def __call__(self, payload: Any) -> Any:
        """Return the microbatches of an epoch, or of a part: of a ``BatchSequence``, a ``Strand``, or a ``Window``.

        Raises:
            Exception: What ``worker_init_fn`` raises.
        """
        if isinstance(payload, Strand):
            return self._product(payload, self._dataset_for(payload)) if self._is_stream else self._strand(payload)
        self._enter(current_worker(), self._spec.num_workers)
        if self._copies is not None:
            dataset = self._copies.lend(self.dataset)
            return self._copies.note(dataset, self._product(payload, dataset))
        return self._product(payload, self.dataset)

    def _product(self, payload: Any, dataset: Any) -> Any:
        spec, collate_fn = self._spec, cast("Any", self._spec.collate_fn)
        batches = cast("BatchSequence", payload)
        if isinstance(payload, Window):
            rows = CollateSpec(spec.window_fn, collate_fn, spec.batch_size, spec.drop_last)
            return WindowProduct(payload, dataset, rows, seed=spec.seed, skips=spec.skips_samples)
        source = stream_source_of(dataset)
        if source is not None:
            return source.product(payload, collate_fn)
        if spec.is_batched and batches.reads_into_batch:
            return StackedBatches(dataset, batches)
        if spec.is_batched:
            return TorchDataLoader(dataset, batch_sampler=cast("Any", batches), collate_fn=collate_fn)
        return TorchDataLoader(dataset, batch_size=None, sampler=batches, collate_fn=collate_fn)

    def _strand(self, strand: Strand) -> StrandProduct:
        def make() -> tuple[Any, DatasetMemory | None]:
            return self._dataset_for(strand), self._memory if self._spec.keeps_dataset else None

        return StrandProduct(strand, make, self._spec)

    def _dataset_for(self, strand: Strand) -> Any:
        """Return the dataset that a strand's epoch is made of: a copy for it alone, unless the dataset stays."""
        pristine = self.dataset
        if not self._spec.keeps_dataset:
            self.dataset, self._is_entered = self._copied(pristine), False
        try:
            self._enter(strand.number, strand.num_strands, is_strand=True)
            return self.dataset
        finally:
            self.dataset = pristine

    def _copied(self, pristine: Any) -> Any:
        """Return a copy of the dataset; of one that cannot be copied, as it came by a fork, itself, once."""
        try:
            return copy.deepcopy(pristine)
        except genuine(Exception):
            if self._is_used:
                raise
            self._is_used = True
            return pristine

    def _enter(self, index: int | None, num_workers: int, *, is_strand: bool = False) -> None:
        """Let ``get_worker_info`` know of this worker, and call the user's ``worker_init_fn``, once for each dataset."""
        if index is None or not num_workers or current_worker() is None:
            return
        base_seed = worker_base_seed(self._spec.seed, self._spec.dp_rank, self._epoch)
        seed = base_seed + index
        info = _WORKER._worker_info  # noqa: SLF001 - where torch.utils.data.get_worker_info looks
        if info is None or info.seed != seed or info.dataset is not self.dataset:
            info = _WORKER.WorkerInfo(id=index, num_workers=num_workers, seed=seed, dataset=self.dataset)
            _WORKER._worker_info = info  # noqa: SLF001 - as above
        if is_strand:
            # One worker makes all of a strand, so that what depends on its seed is the same in every run.
            report_initial_seed(seed)
        if self._is_entered:
            return
        self._is_entered = True
        if self._spec.worker_init_fn is not None:
            OwnGenerators(seed).call(_initialise, self._spec.worker_init_fn, base_seed, index)


def _initialise(worker_init_fn: Callable[[int], None], base_seed: int, index: int) -> None:
    """Call a ``worker_init_fn`` with numpy's generator as torch has seeded it there."""
    numpy_seed = getattr(_WORKER, "_generate_state", None)
    if numpy_seed is not None:
        np.random.seed(numpy_seed(base_seed, index))  # noqa: NPY002 - the global generator is meant
    try:
        worker_init_fn(index)
    except genuine(StopIteration) as error:
        raise early_end("worker_init_fn", "epoch") from error

"""``fkat_data.DataLoader``: torch's DataLoader by its arguments and behaviour, with an engine under it."""

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import currentframe
from typing import Any, Generic, Literal, Self, cast

import torch
from torch.utils import data as torch_data

from fkat_data.datasets.packed import PackedDataset
from fkat_data.datasets.token_budget import TokenBudgetBatchSampler
from fkat_data.engine.engine import Engine
from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import STATE_VERSION
from fkat_data.errors.sample_errors import source_location_of
from fkat_data.errors.wording import Described
from fkat_data.loaders.drawn_plan import DrawnPlan
from fkat_data.loaders.engine_settings import (
    DataLoaderIterator,
    adopt_batch_size,
    change_of,
    check_known,
    check_threads,
    checked_argument,
    drops_last,
    forks_program,
    make_engine,
    prepare_workers,
    settable_of,
    size_of_batches,
)
from fkat_data.loaders.epochs_of_ranks import EpochsOfRanks, in_epoch
from fkat_data.loaders.frameworks import is_begun_by_fabric, original_of
from fkat_data.loaders.loader_plan import LoaderPlan, Provenance
from fkat_data.loaders.numbered_plan import EpochShuffle, NumberedPlan, check_kind_of_order, is_numbered
from fkat_data.loaders.rank_share import RankShare, shared_fields
from fkat_data.loaders.reshards import reshards_field
from fkat_data.loaders.sampler_states import FirstBatch, samplers_in, with_samplers_set
from fkat_data.loaders.states import check_order, checked_loader_state, merged_states
from fkat_data.loaders.strand_plan import StrandPlan, StrandRanks, counts_all_ranks
from fkat_data.loaders.window_plan import WindowOrder, WindowPlan, check_windows, order_of_windows
from fkat_data.observe.statistics import DataLoaderStatistics, LoaderStatistics
from fkat_data.plan.iteration import Closing
from fkat_data.plan.state import sealed, unsealed
from fkat_data.runtime.distributed import gather, rank_and_world_size
from fkat_data.runtime.interruption import genuine
from fkat_data.seeding import next_number, shares_generators
from fkat_data.transport.definitions import digest_of_shipment, largest_part
from fkat_data.types import Microbatch_co, Profiler, stream_source_of
from fkat_data.worker.epoch_factory import order_of
from fkat_data.worker.settings import StartMethod, WorkerKind
from fkat_data.worker.stacked import stacks_items
from fkat_data.worker.windows import WindowFunction, version_of, window_functions_of

_logger = logging.getLogger(__name__)
#: Seconds that an epoch may begin later because its dataset is compared with the workers'.
_LONG_LOOK_S = 0.2


# What torch declares as a variable is a property here.
class DataLoader(  # pyright: ignore[reportIncompatibleVariableOverride]
    Described, Closing, EpochsOfRanks, torch_data.DataLoader[Any], Generic[Microbatch_co]
):
    """torch's ``DataLoader`` with this library's workers, and a position that is exact: change the import, and go on.

    Each ``for`` loop is an epoch; a newer iterator ends an older one. Workers start with the first iteration and stay
    until ``close()``, or until the loader and its iterators are gone. On the CPU, microbatches of worker processes are
    views of shared memory; they count against the memory limit while the caller keeps them. The microbatches are those
    of torch's ``DataLoader``, bit for bit, except for what is drawn at random: ``docs/howto/dataloader.md`` says how
    that differs, and why.

    Args:
        dataset: With indices, or iterable. An iterable one with ``counts_workers_of_all_ranks = True`` takes its part from
            ``get_worker_info()`` alone, in workers that are counted over all ranks that ``deal_out`` was given: any number
            of ranks, up to that of the workers, goes on with its state.
        batch_size: Samples of a microbatch; None: the dataset's items are microbatches.
        shuffle: Another order each epoch, which is computed where it is needed from the seed and the epoch.
        sampler: Gives indices; iterated in this process, a few microbatches ahead.
        batch_sampler: Gives lists of indices.
        num_workers: Workers; 0: microbatches are made in this process when they are asked for.
        collate_fn: Makes a microbatch of a list of samples, in the worker.
        pin_memory: Copy microbatches to page-locked memory where there is a CUDA device. ``device`` makes it needless.
        drop_last: Leave out a last microbatch that is smaller.
        timeout: Seconds to wait for a worker before ``WorkerStalledError``; 0: as long as it takes.
        worker_init_fn: Called with a worker's number, once in each worker.
        multiprocessing_context: Checked as torch does; ``"spawn"`` and ``"fork"`` are the ``start_method`` of that name,
            and ``"forkserver"`` is ``"template"``.
        generator: What the seed is drawn from; None: torch's global generator.
        prefetch_factor: Microbatches that are made ahead, for each worker; None: as many as help.
        persistent_workers: None: workers stay, and get the dataset again if it has changed since; an iterable dataset
            begins each epoch as a copy of the caller's. True: workers keep their datasets, whatever changes here, and are
            not given up where other loaders need the room.
            False: each iteration begins with new workers.
        pin_memory_device: Has no effect.
        in_order: Has no effect: microbatches always come in order.
        seed: Decides on every random draw, and on the order with ``shuffle``. None: drawn when the first epoch begins;
            a state has it, and a loader that loads the state takes it over.
        device: Where microbatches are delivered; None: on the CPU.
        dp_rank: This process's data-parallel rank: ranks that share it draw the same random numbers. None: the
            ``rank`` of the sampler, 0 if it has none.
        snapshot_every_n_steps: Microbatches between two states of an iterable dataset with ``state_dict`` and
            ``load_state_dict``; those since the last one are made again after a resume. 0: none is taken within an epoch.
        memory_limit_bytes: Shared memory of all workers; see ``ShardedDataLoader``, as for all that follows.
        zero_copy: False delivers copies in memory of the caller's own.
        max_worker_restarts: Dead workers that may be replaced in each epoch.
        stall_warning_s: Seconds of waiting before the log shows what the worker does.
        start_method: How worker processes are started; see ``ShardedDataLoader``. With ``"fork"``, each iteration begins
            with new workers, unless ``persistent_workers`` is true. None: as torch does, by a fork where
            ``multiprocessing.get_start_method()`` is ``"fork"``, otherwise from the template. A fork of a program with
            other threads that hangs for 20 seconds at its start is replaced from the template, and the log says so.
        profiler: Gets ``start(name)`` and ``stop(name)`` around each action.
        trace: A file for the timeline of this run.
        window_fn: Makes rows of a window of samples, in a worker: as many as it likes, none too; of several functions,
            each gets what the one before has returned. Microbatches are cut from the rows: ``batch_size``, ``drop_last`` and
            ``collate_fn`` are of rows then. With ``batch_size=None``, each row is a microbatch. A ``StreamingDataset`` deals
            its windows out to its ranks by itself.
        window_size: Samples of a window.
        on_sample_error: What becomes of a sample that raises: ``"raise"``; or ``"skip"``: it is left out, logged, and
            counted in ``statistics()`` and in the state. Microbatches stay full: their samples are cut into windows, as
            for a ``window_fn``.
        max_skipped_samples: Samples of an epoch that may be left out.
        workers: Where microbatches are made: ``"processes"``, ``"threads"`` of this process, or actors on a Ray cluster,
            ``fkat_data.ray.Actors()``; see ``ShardedDataLoader``. Threads make none of an iterable dataset, which
            ``get_worker_info()`` splits over processes, and none with ``worker_init_fn``.

    Raises:
        ValueError: torch refuses the arguments, or one of this library's own is invalid (``ConfigurationError``).
        TypeError: torch refuses an argument's type.
    """

    sampler: Any
    batch_sampler: Any
    collate_fn: Any
    generator: torch.Generator | None
    _IterableDataset_len_called: int | None
    # Whether a loaded position with nothing behind it is where the next epoch begins.
    _leaves_empty_rest: bool = True

    def __init__(
        self,
        dataset: torch_data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: torch_data.Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: torch_data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Microbatch_co] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dp_rank: int | None = None,
        snapshot_every_n_steps: int = 1,
        memory_limit_bytes: int | None = None,
        zero_copy: bool = True,
        max_worker_restarts: int = 0,
        stall_warning_s: float = 30.0,
        start_method: StartMethod | None = None,
        profiler: Profiler | None = None,
        trace: str | os.PathLike[str] | None = None,
        window_fn: WindowFunction | Sequence[WindowFunction] | None = None,
        window_size: int = 1024,
        on_sample_error: Literal["raise", "skip"] = "raise",
        max_skipped_samples: int = 100,
        workers: WorkerKind = "processes",
    ) -> None:
        if isinstance(dataset, (torch_data.IterDataPipe, torch_data.MapDataPipe)):
            raise ConfigurationError(
                "dataset", dataset, "a dataset: DataPipes, which torch no longer develops, need torch's own workers"
            )
        self.workers: WorkerKind = workers
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            cast("Any", collate_fn),
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=bool(persistent_workers),
            pin_memory_device=pin_memory_device,
        )
        self.prefetch_factor = prefetch_factor
        vars(self)["in_order"] = in_order  # newer versions of torch have set their default
        self.seed: int | None = seed
        self.device = device
        self.dp_rank: int | None = dp_rank
        self.snapshot_every_n_steps: int = snapshot_every_n_steps
        self.memory_limit_bytes: int | None = memory_limit_bytes
        self.zero_copy: bool = zero_copy
        self.max_worker_restarts: int = max_worker_restarts
        self.stall_warning_s: float = stall_warning_s
        self.start_method: StartMethod | None = start_method
        self.profiler = profiler
        self.trace = trace
        self.window_fn = window_fn
        self.window_size: int = window_size
        self.on_sample_error: Literal["raise", "skip"] = on_sample_error
        self.max_skipped_samples: int = max_skipped_samples
        self._take_dataset(dataset, batch_sampler)
        if self._is_iterable and num_workers and counts_all_ranks(dataset):
            self._strand_ranks = StrandRanks()
        # Workers that kept an order of their own would deliver another one than a state says.
        self._keeps_workers = None if persistent_workers and self._ordered_dataset() is not None else persistent_workers
        self._engine: Engine[Microbatch_co] | None = None
        self._plan: LoaderPlan | None = None
        self._drawn_seed: int | None = None
        self._first_batch = FirstBatch()
        # A state that the next iteration begins with.
        self._loaded: dict[str, Any] | None = None
        # What a state of the epoch under way must have: what was set since counts from the next one.
        self._begun_with: dict[str, Any] = {}
        # Where the newest iteration has begun, if a load has put it there.
        self._resumed: tuple[int, int] | None = None
        # The newest iterator, while it is used.
        self._iterator_of: weakref.ref[Any] | None = None
        self._shipped: bytes | None = None
        self._has_told_of_look: bool = False
        self._made_with: list[Any] = []
        if shuffle and not self._is_iterable and self._windowed is None:
            shuffled = EpochShuffle(cast("Any", dataset), generator, self.seed)
            # torch refuses to set them once they are set.
            vars(self)["sampler"] = shuffled
            if self.batch_sampler is not None:
                vars(self)["batch_sampler"] = torch_data.BatchSampler(shuffled, cast("int", batch_size), drop_last)
        original = original_of(self)
        if isinstance(original, DataLoader):
            self._succeed(cast("DataLoader[Any]", original))
        prepare_workers(self)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, checked_argument(self, name, value))

    def _take_dataset(self, dataset: Any, batch_sampler: object) -> None:
        if self.has_windows:
            check_windows(self.window_fn, dataset, batch_sampler, self.on_sample_error)
        source = stream_source_of(dataset)
        if self.has_windows and source is not None:
            # To all but the plan, a dataset with indices: ranks get windows, whose rows make the microbatches.
            self._stream, self._windowed = None, source
            self._windows_of(source)
        else:
            self._stream = adopt_batch_size(source, self.batch_size, in_order=self.in_order)
        is_planned = self._stream is not None or self._windowed is not None
        self._is_iterable = isinstance(dataset, torch_data.IterableDataset) and not is_planned
        if self.workers != "processes" and self.num_workers:
            check_threads(self, is_iterable=self._is_iterable)

    def check_worker_number_rationality(self) -> None:
        """Warn, as torch does, of more worker processes than CPUs."""
        if self.workers == "processes":
            super().check_worker_number_rationality()

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch, from 0."""
        saved = self._known_state()
        if saved is not None:
            return saved["epoch"]
        return (self._initial_state() if self._engine is None else self._epoch_and_step(self._engine))["epoch"]

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""
        saved = self._known_state()
        if saved is not None:
            return saved["step"]
        return (self._initial_state() if self._engine is None else self._epoch_and_step(self._engine))["step"]

    @property
    def window_functions(self) -> Sequence[WindowFunction]:
        """The window functions, in the order of their calls."""
        return window_functions_of(self.window_fn)

    def __len__(self) -> int:
        """Return the microbatches of the epoch under way, or of the next one; of this rank's, with those before a reshard.

        An epoch is under way while its iterator is used: not after a ``break``.

        Raises:
            TypeError: The dataset or the sampler has no length, or microbatches are cut from rows of windows.
        """
        if self.has_windows:
            return self._new_plan().num_batches(self.epoch)
        is_new = self._stream is None and self._engine is None and self._loaded is None
        if self._is_iterable or (is_new and not self._share and not self._reshards):
            return super().__len__()
        iterator = None if self._iterator_of is None else self._iterator_of()
        if iterator is not None and iterator.is_under_way:
            return len(iterator)
        epoch = self._next_epoch()
        if self._stream is not None:
            return (self._new_plan() if self._plan is None else self._plan).num_batches(epoch)
        plan = self._plan_to_begin()
        if self._engine is not None and not self.step and isinstance(self._plan, DrawnPlan):
            plan = self._plan  # what it has drawn is taken back when the epoch begins again
        with in_epoch(self._ordered_dataset(), epoch):
            return plan.num_batches(epoch)

    def __iter__(self) -> Iterator[Microbatch_co]:  # type: ignore[override]  # torch promises a class of its own
        """Begin an epoch, or the rest of one after ``load_state_dict``; an older iterator ends.

        Raises:
            ConfigurationError: The dataset cannot be sent to a worker, or an argument is invalid.
            StateMismatchError: The loaded state does not fit.
        """
        if self._driven is None and is_begun_by_fabric(currentframe()):
            self._follow_fabric()
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        # torch's name for it, which subclasses override, and frameworks call.
        if self._driven is not None:
            return self._driven.microbatches(self._begin_driven, self._own_state, self.num_in_last_round())
        self._follow_ranks()
        if self._stream is None and self._windowed is None and (self._loaded is None or self._is_untouched):
            self._draw_as_torch_does()
        return self._begin()

    def _begin_driven(self) -> Iterator[Microbatch_co]:
        # No number is drawn from the program's generators: a run that resumes begins one iteration more.
        self.set_epoch(self._next_epoch())
        return self._begin()

    def _begin(self) -> Iterator[Microbatch_co]:
        if self._engine is not None and self._made_with != settable_of(self):
            if self._next_epoch() != self.epoch:
                self._engine.leave_early()
                self._engine.end_epoch()
            # Else it begins again, where it was loaded to: nothing was delivered since.
            is_other_order = not self.step and self._made_with[0] != settable_of(self)[0]
            state = self._start_of(self.epoch) if is_other_order else self._own_state()
            self._go_to(state, is_untouched=not self.step or self._stream is not None)
        if (ordered := self._ordered_dataset()) is not None:
            ordered.follow_epoch(self._next_epoch())
        engine = self._engine
        if engine is None:
            check_order(self._loaded, order_of(self.dataset))
            engine = self._make_engine()
        else:
            self._ship_again(engine)
            if (self.epoch, self.step - 1) == self._resumed:
                _logger.warning(
                    "the rest of epoch %d, in which a state was loaded, is skipped after one microbatch, and the next "
                    "epoch begins. To look at a microbatch, do so before load_state_dict(), or call take_back() afterwards",
                    self.epoch,
                )
        plan = cast("LoaderPlan", self._plan)
        begun = plan.begin(engine.position)
        if begun is not None:
            engine.leave_for(begun)
        resumed = None if self._loaded is None or self._is_untouched else (self.epoch, self.step)
        vars(self).update(_resumed=resumed)
        made = partial(DataLoaderIterator, plan, engine)
        begun_with = self._fingerprint()
        iterator = engine.iterate(made, self, change_of(self, lambda: engine.step))
        vars(self).update(_loaded=None, _begun_with=begun_with, _iterator_of=weakref.ref(iterator))
        # Last of all: a call that is interrupted before is as good as none.
        plan.beginning = None
        return iterator

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        # Attributes, unless an interrupted call has left the loading of a state to the next one.
        yield "epoch", self.epoch
        yield "step", self.step
        yield "batch_size", self.batch_size
        yield "num_workers", self.num_workers
        yield "dataset", self.dataset

    def state_dict(self) -> dict[str, Any]:
        """Return this process's position: what was delivered, not what was prefetched.

        Collective where torch.distributed is initialised and the loader is dealt out: every rank must call it. Plain
        values, if the states of a dataset and a sampler of the user's are: see ``fkat_data.loaders.states``.
        """
        own = self._local_state()
        is_own = self._share is None and not self._is_collective
        return sealed(own if is_own else merged_states(gather(own)))

    def local_state_dict(self) -> dict[str, Any]:
        """Return this process's position. Not collective.

        Raises:
            ConfigurationError: A stream's own ``__iter__`` yields samples in another way than its order, so that no
                state can say what it would yield next.
        """
        own = self._local_state()
        saved = own.get("sampler", {})
        if self._share is not None and self.has_windows and (saved.get("window") or saved.get("row")):
            own["rank"] = self._share.rank
        return sealed(own)

    def _local_state(self) -> dict[str, Any]:
        self._follow_ranks()
        state = self._whole_state()
        check_known(state, self.dataset)
        return state

    def _whole_state(self) -> dict[str, Any]:
        saved = self._known_state()
        saved = self._own_state() if saved is None else saved
        is_at_start = saved is self._loaded and not saved["step"] and "sampler" in saved
        if is_at_start and not samplers_in(saved["sampler"]) and not is_numbered(self.sampler, self.batch_sampler):
            # The samplers are what it says already, or what the program has set since.
            saved = {**saved, "sampler": self._plan_to_begin().state_at(saved["epoch"], 0)}
        return {**saved, **self._terms_of_dataset()}

    def _known_state(self) -> dict[str, Any] | None:
        """Return a state that is not the source's: one that was loaded, or what accelerate's loop has received."""
        if self._loaded is not None:
            return self._loaded
        return None if self._driven is None else self._driven.saved

    def _own_state(self) -> dict[str, Any]:
        saved = self._initial_state() if self._engine is None else self._state_of_engine(self._engine)
        is_begun = self._engine is not None and saved["step"] > 0
        fingerprint = (
            (self._begun_with if is_begun else self._fingerprint())
            | shared_fields(self._share)
            | reshards_field(self._reshards, saved["epoch"])
        )
        if order := order_of(self.dataset):
            fingerprint["dataset_order"] = order
        return {"version": STATE_VERSION, "seed": self._known_seed(), **fingerprint, **saved}

    @staticmethod
    def merge_state_dicts(local_state_dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return one state for all ranks, from each rank's in their order; ``load_state_dict`` takes its rank's part.

        Raises:
            StateMismatchError: There are none.
        """
        return sealed(merged_states([unsealed(each) for each in local_state_dicts]))

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered: the next iteration begins the next epoch.

        Where nothing of the epoch was delivered, nothing changes.
        """
        if not self.step:
            return
        if self._stream is not None and self._engine is None:
            self._stream.next_epoch = self.epoch + 1
            return
        if self._loaded is not None:
            if self._is_free_of_states():
                self._go_to(self._start_of(self.epoch + 1), is_untouched=True)
                return
            self._begin()  # samplers go on from this epoch
        if self._driven is not None:
            self._driven.saved = None
        if self._engine is not None and self._engine.step:
            self._engine.end_epoch()

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered, for a caller that has lost it: the next call delivers it again.

        Returns:
            False if the iteration has ended or begun again since, or nothing was delivered: nothing changes then.
        """
        is_ahead = self._loaded is not None or self._driven is not None
        return not is_ahead and self._engine is not None and self._engine.take_back()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved position: the next iteration begins at the first microbatch that was not delivered before it.

        ``num_workers`` may be another one than where the state was saved. An iterable dataset keeps its number of
        strands, and with it its order: that many workers make it. An iteration under way ends: its iterator raises
        ``StaleIteratorError``. Of a state of several ranks, it uses this process's; what another number of ranks has left
        is dealt out to the present ones, all of which begin at the largest ``step`` of those before.

        Raises:
            StateMismatchError: It does not fit, or does not say what other ranks had left; nothing has changed then.
        """
        state_dict = unsealed(state_dict)
        if self._stream is not None:
            self._load_stream(state_dict, self._stream)
            return
        self._follow_ranks()
        loaded = self._with_order_of_dataset(self._own_part(state_dict))
        self._set_samplers(loaded)
        self._resume(loaded)
        is_known = not self._is_iterable and (
            self._is_free_of_states() or isinstance(self._dealing(), TokenBudgetBatchSampler)
        )
        if is_known and self._plan_to_begin().is_over(loaded):
            self.end_epoch()  # a caller's set_epoch(), and what an iteration draws, are for the next one

    def _set_samplers(self, loaded: dict[str, Any]) -> None:
        """Set samplers of the user's to what a state at an epoch's start says: a ``set_epoch`` may follow before that begins."""
        sampler = loaded.get("sampler", {})
        begun = samplers_in(sampler)
        if begun:
            self._first_batch.note(loaded["epoch"], begun)
        if loaded["step"] or not begun or is_numbered(self.sampler, self.batch_sampler):
            return
        outermost = self.sampler if self.batch_sampler is None else self.batch_sampler
        if self.has_windows:
            outermost = torch_data.BatchSampler(self.sampler, self.window_size, drop_last=False)  # as the plan does
        loaded["sampler"] = with_samplers_set(outermost, sampler, loaded["seed"], loaded["epoch"], self._first_batch)

    def provenance(self) -> list[Provenance]:
        """Return what the last microbatch that the engine delivered was made of: its samples, window by window.

        A microbatch of rows has an entry for each window. Where accelerate drives the loop, the last one is ahead of the
        loop's by one.

        Raises:
            ConfigurationError: None was delivered since the loader was made, loaded or sent to another epoch; or nothing
                says its samples: an iterable dataset, or samplers of the caller's own.
        """
        engine = self._engine
        position = None if engine is None else engine.before_last
        found = [] if position is None or self._plan is None else self._plan.made_of(position)
        if not found:
            expected = "a microbatch that was just delivered, of a dataset with indices or a stream, in an order of the loader's"
            raise ConfigurationError("provenance", position, expected)
        location_of = partial(source_location_of, self.dataset)
        return [each._replace(locations=[location_of(sample) for sample in each.samples]) for each in found]

    def statistics(self) -> LoaderStatistics:
        """Return what was done since the first iteration, or the newest loaded state; cheap enough for every step."""
        return DataLoaderStatistics() if self._engine is None else self._engine.statistics()

    def close(self) -> None:
        """End the workers, within about a second; any number of calls. A new iteration starts them again.

        What Lightning has made of this loader ends its workers too.
        """
        if self._engine is not None:
            self._engine.close()
        for successor in () if self._successors is None else self._successors.values():
            successor.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy begins with: the same arguments, and the start of the epoch, or what was loaded."""
        state = {name: value for name, value in vars(self).items() if name not in ("_successor", "_successors")}
        state["_iterator_of"] = None
        if self._engine is not None and self._plan is not None:
            state.update(_engine=None, _plan=None, _loaded=None, _is_untouched=False, _shipped=None, _resumed=None)
            if self._stream is None:
                again = self._plan.epoch_again(self._whole_state())
                state.update(_loaded=again, _is_untouched=again["step"] == 0)
            else:
                dataset = cast("Any", self._plan).copied_dataset(self._engine.position)
                state.update(dataset=dataset, _stream=stream_source_of(dataset))
        if self._driven is not None:
            state["_driven"] = self._driven.copy()  # its position is another from now on
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin as a copy whose samplers are its own: a ``set_epoch`` may follow before its first epoch begins."""
        vars(self).update(state)
        if self._loaded is not None:
            self._set_samplers(self._loaded)

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        vars(copied).update(self.__getstate__())  # samplers are this loader's, too
        return copied

    def _deliver_to(self, device: torch.device) -> None:
        if self._engine is not None:
            self._go_to(self._whole_state())
        self.device = device

    def _load_stream(self, state_dict: Mapping[str, Any], stream: Any) -> None:
        """Go to a position of a stream: of a state of this class, or of the dataset's own form."""
        saved: Mapping[str, Any] = state_dict
        if "stream" in state_dict:
            saved = checked_loader_state(state_dict, self._fingerprint(), self.seed, "stream")["stream"]
        stream.load_state_dict(saved)
        self._forget_state()

    def _forget_state(self) -> None:
        """Have the next iteration begin where the dataset says."""
        self.close()
        vars(self).update(_is_untouched=False, _loaded=None, _engine=None, _plan=None, _resumed=None)
        if self._driven is not None:
            self._driven.saved = None

    def _fingerprint(self) -> dict[str, Any]:
        if self._stream is not None:  # its own state knows which batch sizes it may go on with
            return {"drop_last": self.drop_last}
        terms = {"batch_size": size_of_batches(self), "drop_last": drops_last(self)}
        if not self.has_windows:
            return terms
        terms |= {"window_size": self.window_size, "window_fn": version_of(self.window_functions)}
        return terms if self._windowed is None else {**terms, **self._windowed.window_fingerprint()}

    def _draw_as_torch_does(self) -> None:
        """Move the generators as an iteration of torch's does, so that a program's other draws stay what they were."""
        if shares_generators() and (self.seed, self._drawn_seed) != (None, None):
            return  # nothing depends on the number, and the program's draws are not this thread's
        number = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        if self._drawn_seed is None:
            vars(self).update(_drawn_seed=number)
        if isinstance(self.sampler, EpochShuffle) and self.generator is None:
            torch.empty((), dtype=torch.int64).random_()

    def _known_seed(self) -> int:
        if self.seed is not None:
            return self.seed
        if self._stream is not None:
            return self._stream.seed
        if self._drawn_seed is None and self._windowed is not None:
            return self._windowed.seed
        if self._drawn_seed is None:
            drawn = next_number(self.generator)
            vars(self).update(_drawn_seed=drawn)
            return drawn
        return self._drawn_seed

    def _stays(self) -> bool | None:
        """Return whether workers stay from epoch to epoch; None: they do unless what was shipped to them has changed."""
        if self._keeps_workers is None and not self.persistent_workers and forks_program(self):
            return False  # nothing is shipped that could be compared
        return self._keeps_workers

    def _ship_again(self, engine: Engine[Microbatch_co]) -> None:
        """Have new workers make the next epoch if they are to get the dataset as it is now."""
        stays = self._stays()
        if stays or not self.num_workers:
            return
        if self.workers == "threads" and stays is None and not (self._stream or self._windowed):
            return  # they have what the program has
        shipped = None
        if stays is None:
            try:
                shipped = self._shipment_digest()
            except genuine(Exception) as error:
                _logger.warning(
                    "workers keep their copy of the dataset, because the present one cannot be sent to them: %s", error
                )
                return
            if shipped == self._shipped:
                return
        engine.close()
        vars(self).update(_shipped=shipped)

    def _shipment_digest(self) -> bytes | None:
        if self._stays() is not None or not self.num_workers:
            return None
        stream = self._stream or self._windowed
        if self.workers == "threads" and stream is None:
            return None
        dataset = self.dataset if stream is None else stream.shipment
        began_s = time.thread_time()
        digest = digest_of_shipment(dataset, (self.window_fn, self.collate_fn, self.worker_init_fn))
        took_s = time.thread_time() - began_s
        if took_s > _LONG_LOOK_S and not self._has_told_of_look:
            vars(self).update(_has_told_of_look=True)
            path, size_bytes = largest_part("dataset", dataset)
            _logger.warning(
                "each epoch begins with a look for changes of the dataset, which takes %.1f s: %s alone has %.1f MB. "
                "persistent_workers=True spares it; changes of the dataset then reach no worker",
                took_s,
                path,
                size_bytes / 1e6,
            )
        return digest

    def _make_engine(self) -> Engine[Microbatch_co]:
        loaded = self._loaded
        if self._stream is None and not self._is_iterable:
            self._check_order_of_dataset()
            if loaded is not None and self._windowed is None:
                # Not before: Lightning may give the loader another sampler after a load.
                check_kind_of_order(loaded, self.sampler, self.batch_sampler)
        if loaded is not None and not self._is_untouched:
            self._check_since_load(loaded)
        plan = self._new_plan()
        engine: Engine[Microbatch_co] = make_engine(
            self,
            plan,
            seed=self._known_seed(),
            dp_rank=self._known_dp_rank(),
            keeps_dataset=bool(self._keeps_workers)
            or not (self.num_workers if plan.num_strands is None else plan.num_strands),
        )
        if loaded is not None:
            engine.go_to(plan.read_state(self._without_length(loaded)))
        made_with, shipped = settable_of(self), self._shipment_digest()
        vars(self).update(_engine=engine, _plan=plan, _made_with=made_with, _shipped=shipped)
        return engine

    def _state_of_engine(self, engine: Engine[Microbatch_co]) -> dict[str, Any]:
        plan, position = cast("LoaderPlan", self._plan), engine.position
        epoch, step = plan.epoch_and_step(position)
        return {"epoch": epoch, "step": step, **plan.saved(position)}

    def _epoch_and_step(self, engine: Engine[Microbatch_co]) -> dict[str, int]:
        epoch, step = cast("LoaderPlan", self._plan).epoch_and_step(engine.position)
        return {"epoch": epoch, "step": step}

    def _initial_state(self) -> dict[str, Any]:
        """Return the position of a loader that was not iterated."""
        plan = self._new_plan()
        position = plan.first()
        return {"epoch": position.epoch, "step": position.step, **plan.saved(position)}

    def _new_plan(self) -> LoaderPlan:
        if self._stream is not None:
            return self._stream.plan(
                self._known_dp_rank(),
                num_workers=self.num_workers,
                collate_fn=self.collate_fn,
                drop_last=self.drop_last,
                leaves_empty_rest=self._leaves_empty_rest or self._driven is not None,
            )
        return self._strand_plan() if self._is_iterable else self._map_plan()

    def _map_plan(self) -> NumberedPlan | DrawnPlan | WindowPlan:
        dealing = self._dealing()
        if self.has_windows:
            if self._windowed is None:
                seed = self._known_seed()
                order = order_of_windows(
                    self.sampler, self.batch_sampler, dealing, self.window_size, seed, self._first_batch
                )
            else:
                order = self._windows_of(self._windowed)
            limit = self.max_skipped_samples if self.on_sample_error == "skip" else None
            is_batched = self.batch_sampler is not None
            return WindowPlan(
                order, self.window_size, self._share, self._ends, is_batched=is_batched, max_skipped=limit
            )
        if is_numbered(self.sampler, self.batch_sampler):
            dataset = dealing if isinstance(dealing, PackedDataset) else None
            is_stacked = self.batch_sampler is not None and stacks_items(self.dataset, self.collate_fn)
            order = self.sampler, self.batch_sampler
            return NumberedPlan(*order, self._known_seed(), self._share, self._reshards, dataset, is_stacked=is_stacked)
        order = self.sampler if self.batch_sampler is None else self.batch_sampler
        seed, dp_rank = self._known_seed(), self._known_dp_rank()
        dealt = dealing if isinstance(dealing, TokenBudgetBatchSampler) else None
        shared: dict[str, Any] = {
            "known": self._first_batch,
            "share": self._share,
            "reshards": self._reshards,
            "dealt": dealt,
        }
        # As torch, whose default is 2.
        most_ahead = max(1, self.num_workers * (2 if self.prefetch_factor is None else self.prefetch_factor))
        return DrawnPlan(order, seed, dp_rank, most_ahead=most_ahead, **shared)

    def _windows_of(self, stream: Any) -> WindowOrder:
        return stream.windows(self.window_size, is_read_here=not self.num_workers)

    def _follow_ranks(self) -> None:
        """Deal the windows of a stream out to its ranks, which are known once torch.distributed is initialised."""
        if self._windowed is not None and self._engine is None:
            num_ranks, rank = self._windowed.ranks()
            vars(self).update(_share=RankShare(num_ranks, rank) if num_ranks > 1 else None)

    def _plan_to_begin(self) -> NumberedPlan | DrawnPlan | WindowPlan:
        """Return the plan that the next iteration begins with."""
        plan = self._map_plan()
        if self._loaded is not None:
            plan.load_plan_state(self._loaded["epoch"], self._loaded["sampler"])
        return plan

    def _strand_plan(self) -> StrandPlan:
        num_strands = self.num_workers if self._loaded is None else int(self._loaded["num_strands"])
        own_dataset = None if num_strands or self.num_workers else self.dataset
        has_rank = self.dp_rank is not None or self._strand_ranks is not None
        num_ranks = max((self._strand_ranks or StrandRanks()).num_ranks, rank_and_world_size()[1])
        # How many rows a rank makes is its windows' affair: without windows, it is the dataset's.
        strands = self._strands_of_ranks()
        ends = partial(self._ends.get, has_rank=has_rank) if self.has_windows and num_ranks > 1 else None
        return StrandPlan(num_strands, self._known_dp_rank(), own_dataset, strands, ends=ends)

    def _strands_of_ranks(self) -> dict[str, Any]:
        """Return what a state says of the strands of all ranks; nothing where the dataset does not count them."""
        if self._strand_ranks is None:
            return {}
        if self._loaded is not None:
            names = ("strand_numbers", "strand_ranks", "all_strands", "strands_per_rank", "taken_over")
            return {name: self._loaded[name] for name in names if name in self._loaded}
        num_strands = self._strand_ranks.num_ranks * self.num_workers
        numbers = self._strand_ranks.numbers(num_strands)
        return {
            "strand_numbers": numbers,
            "strand_ranks": [*self._strand_ranks],
            "all_strands": num_strands,
            "strands_per_rank": self.num_workers,
        }

    def _known_dp_rank(self) -> int:
        if self.dp_rank is not None:
            return self.dp_rank
        if self._strand_ranks is not None:
            return self._strand_ranks.rank
        if self._share is not None:
            return self._share.rank
        ranks = (getattr(sampler, "rank", None) for sampler in self._samplers())
        return next((rank for rank in ranks if type(rank) is int), 0)

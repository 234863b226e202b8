"""``fkat_data.DataLoader``: torch's DataLoader by its arguments and behaviour, with an engine under it."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from inspect import currentframe
from typing import Any, Generic, Literal, Self, cast

import torch
from torch.utils import data as torch_data

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.errors.wording import Described
from fkat_data.integrations.hooks.accelerate import check_question, gradient_state, is_prepared
from fkat_data.integrations.hooks.lightning import is_begun_by_fabric, original_of
from fkat_data.loaders.computed_plan import EpochShuffle
from fkat_data.loaders.engine_settings import checked_argument, prepare_workers
from fkat_data.loaders.loader_plan import Provenance
from fkat_data.loaders.loader_state import merged_states
from fkat_data.loaders.rank_share import RankShare
from fkat_data.loaders.sample_records import SampleRecord, records_of
from fkat_data.loaders.session import LoaderSession
from fkat_data.loaders.sources import sample_source_of
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.plan.commits import CommitMode, Ticket, commit_ledger, required_ledger
from fkat_data.plan.iteration import Closing
from fkat_data.plan.position import Exclusion
from fkat_data.plan.state import sealed, unsealed
from fkat_data.runtime.distributed import gather
from fkat_data.runtime.mesh import mesh_ranks
from fkat_data.types import Microbatch_co, Profiler
from fkat_data.worker.settings import StartMethod, WorkerKind
from fkat_data.worker.windows import WindowFunction, window_functions_of


# What torch declares as a variable is a property here.
class DataLoader(  # pyright: ignore[reportIncompatibleVariableOverride]
    Described, Closing, torch_data.DataLoader[Any], Generic[Microbatch_co]
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
        mesh: The ``DeviceMesh`` that this process is in. What ``deal_out`` and ``dp_rank`` say follows from it: ranks that
            differ along ``dp_dims`` get other data, all others the same, which they compare every 100 microbatches. Every
            rank of the job makes the loader, in a collective call. A stream needs no ``deal_out``; it takes over these ranks.
        dp_dims: The mesh's dimensions along which data differ; None: those whose names begin with ``dp``.
        share_workers: With a mesh, ranks of one machine that get the same share the worker processes of the first of them,
            on Linux; False: each has its own.
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
        commit: When a microbatch counts as used, and is in a state: ``"delivery"``, or ``"manual"``: when ``commit`` gets its
            ``ticket``; see ``ShardedDataLoader``, as for the next two. Not for an iterable dataset that is no stream, a
            ``PackedDataset``, or with ``worker_init_fn``, Lightning or accelerate.
        max_outstanding: Microbatches that may be delivered and neither committed nor released.
        epochs_ahead: 1 lets an epoch begin while some of the one before is outstanding.

    Raises:
        ValueError: torch refuses the arguments, or one of this library's own is invalid (``ConfigurationError``).
        TypeError: torch refuses an argument's type.
    """

    dataset: Any
    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    collate_fn: Any
    generator: torch.Generator | None
    _IterableDataset_len_called: int | None
    # Whether a loaded position with nothing behind it is where the next epoch begins.
    _leaves_empty_rest: bool = True
    _pin_memory_device: str = ""

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
        mesh: Any = None,
        dp_dims: str | Sequence[str] | None = None,
        share_workers: bool = True,
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
        commit: CommitMode = "delivery",
        max_outstanding: int | None = None,
        epochs_ahead: int = 0,
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
        self.in_order = in_order  # newer versions of torch have set their default
        self.seed: int | None = seed
        self.device = device
        self.dp_rank: int | None = dp_rank
        self.mesh = mesh
        self.dp_dims: str | Sequence[str] | None = dp_dims
        self.share_workers: bool = share_workers
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
        source = sample_source_of(self, batch_sampler)
        # Workers that kept an order of their own would deliver another one than a state says.
        has_own_order = bool(persistent_workers) and source.ordered_dataset(self) is not None
        self._session = LoaderSession(
            source,
            commit_ledger(commit, max_outstanding, epochs_ahead),
            keeps_workers=None if has_own_order else persistent_workers,
            leaves_empty_rest=self._leaves_empty_rest,
        )
        if shuffle and source.takes_sampler:
            shuffled = EpochShuffle(cast("Any", dataset), generator, self.seed)
            # torch refuses to set them once they are set.
            vars(self)["sampler"] = shuffled
            if self.batch_sampler is not None:
                vars(self)["batch_sampler"] = torch_data.BatchSampler(shuffled, cast("int", batch_size), drop_last)
        ranks = mesh_ranks(mesh, dp_dims)
        if ranks is not None:
            self._session.join_mesh(self, ranks)
            self._session.share_workers(self)
        original = original_of(self)
        if isinstance(original, DataLoader):
            loader = cast("DataLoader[Any]", original)
            before = loader._session.followed_by(loader, self)  # noqa: SLF001 - of this class
            self._session.succeed(self, before._session, before)  # noqa: SLF001 - of this class
        if self._session.has_own_workers:
            prepare_workers(self)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, checked_argument(self, name, value))

    def check_worker_number_rationality(self) -> None:
        """Warn, as torch does, of more worker processes than CPUs."""
        if self.workers == "processes":
            super().check_worker_number_rationality()

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch, from 0."""
        return self._session.upcoming(self)[0]

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""
        return self._session.upcoming(self)[1]

    @property
    def ticket(self) -> Ticket:
        """The ticket of the microbatch that was delivered last, with ``commit="manual"``.

        Raises:
            ConfigurationError: None was since the loader was made or loaded, or microbatches are not committed by tickets.
        """
        return required_ledger(self._session.ledger).ticket

    @property
    def has_tickets(self) -> bool:
        """Whether the caller commits microbatches, instead of their delivery."""
        return self._session.ledger is not None

    @property
    def num_outstanding(self) -> int:
        """Microbatches that were delivered, and neither committed nor released; 0 without ``commit="manual"``."""
        return 0 if self._session.ledger is None else self._session.ledger.num_outstanding

    def commit(self, ticket: Ticket) -> None:
        """Count a microbatch as used: no state has it to deliver again. In the thread that iterates the loader.

        Raises:
            ConfigurationError: It is not outstanding, or microbatches are not committed by tickets.
        """
        required_ledger(self._session.ledger).commit(ticket)

    def release(self, ticket: Ticket) -> None:
        """Have a microbatch delivered again, before new ones, with its bits. In the thread that iterates the loader.

        Raises:
            ConfigurationError: It is not outstanding, or microbatches are not committed by tickets.
        """
        required_ledger(self._session.ledger).release(ticket)

    @property
    def has_windows(self) -> bool:
        """Whether microbatches are cut from the rows of windows."""
        return self.window_fn is not None or self.on_sample_error == "skip"

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
        num_batches = self._session.num_batches(self)
        return super().__len__() if num_batches is None else num_batches

    def __iter__(self) -> Iterator[Microbatch_co]:  # type: ignore[override]  # torch promises a class of its own
        """Begin an epoch, or the rest of one after ``load_state_dict``; an older iterator ends.

        Raises:
            ConfigurationError: The dataset cannot be sent to a worker, or an argument is invalid.
            StateMismatchError: The loaded state does not fit.
        """
        if self._session.framework_loop is None and is_begun_by_fabric(currentframe()):
            self._session.follow_fabric(self)
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        # torch's name for it, which subclasses override, and frameworks call.
        return self._session.iterator(self)

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
        values, if the states of a dataset and a sampler of the user's are: see ``fkat_data.loaders.loader_state``.
        """
        own = self._session.state(self).plain()
        return sealed(own if self._session.is_of_one_rank else merged_states(self._session.of_each_rank(gather(own))))

    def local_state_dict(self) -> dict[str, Any]:
        """Return this process's position. Not collective.

        Raises:
            ConfigurationError: A stream's own ``__iter__`` yields samples in another way than its order, so that no
                state can say what it would yield next.
        """
        return sealed(self._session.local_state(self).plain())

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
        self._session.end_epoch(self)

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered, for a caller that has lost it: the next call delivers it again.

        Returns:
            False if the iteration has ended or begun again since, or nothing was delivered: nothing changes then.
        """
        return self._session.take_back()

    @property
    def acceptable_fields(self) -> tuple[str, ...]:
        """The fields of a state that ``load_state_dict`` can accept where they differ."""
        return self._session.source.acceptable_fields

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Go to a saved position: the next iteration begins at the first microbatch that was not delivered before it.

        ``num_workers`` may be another one than where the state was saved. An iterable dataset keeps its number of
        strands, and with it its order: that many workers make it. An iteration under way ends: its iterator raises
        ``StaleIteratorError``. Of a state of several ranks, it uses this process's; what another number of ranks has left
        is dealt out to the present ones, all of which begin at the largest ``step`` of those before.

        Args:
            state_dict: The state.
            accept: Fields that may differ, of ``acceptable_fields``. The log says what did, and the price, and the states
                that follow keep it.

        Raises:
            StateMismatchError: It does not fit, or does not say what other ranks had left; nothing has changed then. The
                message says which difference can be accepted, and at which price.
            ConfigurationError: ``accept`` names another field.
        """
        self._session.load(self, unsealed(state_dict), accept)

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be of this epoch, and tell samplers and the dataset, as accelerate's loaders do.

        Raises:
            ConfigurationError: What the epoch has depends on a seed that is not known, or on the epochs before.
            StateMismatchError: A loaded state is of another epoch.
        """
        self._session.set_epoch(self, epoch)

    def deal_out(self, num_ranks: int, rank: int, *, even_batches: bool = True, split_batches: bool = False) -> None:
        """Deliver this rank's share of the microbatches, dealt out as accelerate does. Every rank calls it.

        Rank r of n gets every nth batch, from the one at r on. The ranks agree on the first one's seed, and on the
        states of its samplers. Where a sampler or the dataset knows its rank, as a ``DistributedSampler`` or a
        ``PackedDataset`` of several ranks does, nothing is dealt out, nor for an iterable dataset, whose loader has
        ``dp_rank``; ``state_dict()`` is of all ranks then, too. An iterable dataset that has
        ``counts_workers_of_all_ranks = True`` finds the workers of all ranks counted in ``get_worker_info()``.

        Args:
            num_ranks: Ranks that share the dataset.
            rank: This one.
            even_batches: Whether the last batches are filled up with the epoch's first samples, so that all ranks have
                equally many.
            split_batches: Whether each rank gets a part of every batch instead.

        Raises:
            ConfigurationError: Nothing says which samples of an iterable dataset are this rank's, or it was iterated or
                loaded before its workers were counted; ranks have other seeds; or a batch cannot be split.
            RankMismatchError: Ranks have datasets of other lengths.
            StateMismatchError: The state that was loaded before is of another number of ranks: load it afterwards.
        """
        self._session.deal_out(self, RankShare(num_ranks, rank, even_batches, split_batches))

    def num_in_last_round(self) -> int:
        """Return the samples of an epoch's last batches on all ranks, without those that fill them up; 0: all are."""
        return self._session.num_in_last_round(self)

    def provenance(self) -> list[Provenance]:
        """Return what the last microbatch that the engine delivered was made of: its samples, window by window.

        A microbatch of rows has an entry for each window. Where accelerate drives the loop, the last one is ahead of the
        loop's by one.

        Raises:
            ConfigurationError: None was delivered since the loader was made, loaded or sent to another epoch; or nothing
                says its samples: an iterable dataset, or samplers of the caller's own.
        """
        return self._session.provenance(self)

    def samples_of(self, step: int, epoch: int | None = None) -> list[SampleRecord]:
        """Return the samples of a microbatch, past or to come, of all ranks; nothing is read for it.

        What was left out, and how the number of ranks has changed, counts from where it did. Of an epoch that is over, a
        state keeps that where samples were left out in it; any other one is as the present ranks would have it.

        Args:
            step: The step of the epoch; or of the whole run, if no epoch is given.
            epoch: The epoch.

        Raises:
            ConfigurationError: There is no such step; or nothing says its samples: an iterable dataset, samplers of the
                caller's own, or microbatches that are cut from rows of windows.
        """
        return records_of(self.dataset, *self._session.made_at(self, step, epoch))

    def exclude(self, samples: Iterable[int]) -> None:
        """Leave samples out from the next microbatch on, in later epochs as well; states keep it.

        What was prefetched is made again without them. Microbatches stay full: what is left is dealt out again. In a
        stream, each sample keeps its step, and batches are smaller. Every rank calls it, at the same step.

        Args:
            samples: Indices of the dataset; of a stream, the numbers of its samples.

        Raises:
            ConfigurationError: ``samples`` is no list of numbers, the dataset has no such sample, or nothing says what a
                step has; see ``samples_of``.
            RankMismatchError: Ranks call it at different steps, or with other samples, or one of them refuses them.
        """

        def exclusion() -> Exclusion:
            if isinstance(samples, str) or not isinstance(cast("Any", samples), Iterable):
                raise ConfigurationError("samples", samples, "a list of numbers of samples")
            return Exclusion(tuple(sorted({arguments.integer("samples", sample, minimum=0) for sample in samples})))

        self._session.exclude(self, exclusion)

    def exclude_steps(self, first: int, last: int) -> None:
        """Leave steps of the epoch under way out, as ``samples_of`` says them now; later steps move up. Otherwise as ``exclude``.

        Args:
            first: The first step, none that was delivered.
            last: The last one.

        Raises:
            ConfigurationError: A step was delivered, or nothing says what a step has; see ``samples_of``.
            RankMismatchError: Ranks call it at different steps, or with other ones.
        """

        def exclusion() -> Exclusion:
            arguments.integer("first", first, minimum=0)
            return Exclusion(steps=(first, arguments.integer("last", last, minimum=first)))

        self._session.exclude(self, exclusion)

    def statistics(self) -> LoaderStatistics:
        """Return what was done since the first iteration, or the newest loaded state; cheap enough for every step."""
        return self._session.statistics()

    def close(self) -> None:
        """End the workers, within about a second; any number of calls. A new iteration starts them again.

        What Lightning has made of this loader ends its workers too.
        """
        self._session.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy begins with: the same arguments, and the start of the epoch, or what was loaded."""
        session, others = self._session.copied(self)
        return {**vars(self), **others, "_session": session}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin as a copy whose samplers are its own: a ``set_epoch`` may follow before its first epoch begins."""
        self.__dict__.update(state)
        self._session.after_copy(self)

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__getstate__())  # samplers are this loader's, too
        return copied

    @property
    def pin_memory_device(self) -> str:
        """The argument of torch's ``DataLoader``.

        Whatever makes a torch ``DataLoader`` of this one's parts reads it, functions of accelerate first of all.

        Raises:
            ConfigurationError: accelerate asks: for ``skip_first_batches``, whose loader would step over batches that come
                after the position that this one has loaded, or for a ``prepare_data_loader`` that would lose samples.
        """
        check_question(self, self._session, currentframe())
        return self._pin_memory_device

    @pin_memory_device.setter
    def pin_memory_device(self, pin_memory_device: str) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._pin_memory_device = pin_memory_device

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether the loader has a state of its own, which ``accelerator.save_state`` then saves: True."""
        return True

    @property
    def gradient_state(self) -> Any:
        """The ``GradientState`` of accelerate, which the loaders that accelerate prepares have."""
        return gradient_state(self._session)

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether accelerate drives the loop; from when an ``Accelerator`` asks, it does."""
        return is_prepared(self, self._session, currentframe())

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        if not is_prepared:
            self._session.framework_loop = None

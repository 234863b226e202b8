"""The loader of shards: its arguments, and the contract of its own that an engine fulfils."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NoReturn

import torch

from fkat_data.engine.agreement import identity_of, rank_agreement
from fkat_data.engine.engine import Engine
from fkat_data.engine.recovery import ON_SHARD_ERROR, OnShardError, Recovery
from fkat_data.engine.settings import EngineSettings, WorkerPoolSettings
from fkat_data.engine.shard_lengths import ShardLengths
from fkat_data.errors import ConfigurationError, StateMismatchError, arguments
from fkat_data.errors.acceptance import Acceptance
from fkat_data.errors.arguments import refused
from fkat_data.errors.tracebacks import HideOwnFrames
from fkat_data.errors.wording import Described
from fkat_data.loaders.epoch_length import EpochLength, source_of_lengths
from fkat_data.loaders.factory import DataLoaderFactory
from fkat_data.loaders.resume import ACCEPTABLE, num_dealt, resume, with_fingerprint
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.observe.timeline import open_timeline
from fkat_data.plan.commits import CommitMode, Ticket, TicketedRank, commit_ledger, required_ledger
from fkat_data.plan.iteration import Closing, EpochIterator
from fkat_data.plan.position import ResumeState
from fkat_data.plan.shard_plan import elastic_shard_plan
from fkat_data.plan.state import merge, read_rank, write_rank
from fkat_data.runtime.distributed import gather, rank_and_world_size
from fkat_data.runtime.lifetime import on_collected
from fkat_data.runtime.machine import can_start_workers
from fkat_data.runtime.mesh import mesh_ranks
from fkat_data.samplers.data_parallel import sampler_of_rank
from fkat_data.types import Microbatch_co, Profiler, Shard
from fkat_data.worker.settings import START_METHODS, StartMethod, WorkerKind, worker_kind

_KNOWN_SAMPLES = "a DataLoader over all files, or a stream: what a shard has, only its dataloader_factory knows"


class ShardedDataLoader(Described, Closing, Generic[Microbatch_co]):
    """Yields a rank's microbatches, shard by shard, made ahead in worker processes, resumable to the microbatch.

    Each ``for`` loop over the loader is one epoch. After an epoch that was left early, the next loop is the next
    epoch; after ``load_state_dict`` it is the rest of the epoch that the state was taken in. A newer iterator replaces
    an older one.

    Workers start with the constructor, which does not wait for them, and live until ``close()``. On the CPU,
    microbatches are views of shared memory that stay valid while the caller keeps them; they count against the memory
    limit until then.

    Args:
        seed: Decides every random draw in the workers, with the position in the order. The same on every rank.
        shard_sampler: Gives this rank's shards: a ``ShardSampler``, a list, or any iterable of shards, which may be
            endless and may have ``state_dict`` and ``load_state_dict``.
        dataloader_factory: Called with a shard, in the worker; returns an iterable of microbatches.
        num_shard_prefetches: Shards in work ahead of the current one; 0 or more. That many shards are made at once,
            by workers of their own. With 0, a shard begins when the caller has the last microbatch of the one before.
        num_microbatch_prefetches: Microbatches made and not yet delivered, for each shard; -1 for as many as help: the
            number grows while the trainer waits and the workers could have made more, shrinks where nothing is lost by
            it, and stays within the memory limit. With 0, a worker makes one when the caller asks for it; in a shard of
            unknown length it makes one more, so that the loader knows the last microbatch when it delivers it.
        dp_rank: This process's data-parallel rank; ranks that share it draw the same random numbers. None: the rank
            whose shards the sampler gives, 0 if it does not say.
        profiler: Gets ``start(name)`` and ``stop(name)`` around each of the loader's actions.
        device: Where microbatches are delivered; None: as views on the CPU.
        multiprocessing: False produces in the caller's thread when a microbatch is asked for: for debugging and
            profiling, and for Windows, which has no worker processes. The microbatches are the same, bit for bit.
        num_workers_per_shard: Workers that make the microbatches of one shard together; the loader has that many for
            each shard that it makes at once. The microbatches are the same bits for any number. It takes a
            ``DataLoader`` over a dataset with indices, or a product with ``num_microbatches`` and
            ``microbatch(index)`` (see ``fkat_data.RandomAccess``); one worker makes all of any other shard.
        memory_limit_bytes: Shared memory of all workers together; reaching it makes them wait. Default: half
            of the memory that the machine and its control groups leave, divided by the ranks on this machine. Prefetching
            takes an eighth of what is left, 1 GiB at most, or room for four microbatches of each worker.
        zero_copy: False delivers copies in memory of the caller's own.
        max_worker_restarts: Dead workers that may be replaced, in each epoch; 0: a death is an error. A replaced worker
            makes the same microbatches, which the loader checks.
        on_shard_error: ``"raise"``, or ``"skip"`` to log a shard that raises and to go on with the next one.
        max_skipped_shards: Shards that may be skipped in each epoch.
        stall_warning_s: Seconds of waiting for one microbatch before the log shows what the worker does; again after
            twice as long, and so on.
        stall_timeout_s: Seconds before the worker is killed, and counts as dead; None: never.
        replica_group: The ranks that must get the same microbatches as this one, as tensor-parallel ranks must: a
            process group of torch.distributed, or the list of its ranks. Every rank of the job passes its own. The
            ranks then compare what they deliver, and an error names those that disagree.
        check_ranks_every: Microbatches between two comparisons in the background; 100 with a ``replica_group``. Without
            one, ranks compare only their plans, when an iteration begins and after a state was loaded: a collective
            call, on every rank.
        mesh: The ``DeviceMesh`` that this process is in, in place of ``dp_rank`` and ``replica_group``: both follow from it,
            on every rank. A sampler or a list that does not know its rank is of all ranks' shards then, and each
            data-parallel rank gets the part that ``DistributedDataParallelShardSampler`` gives it; an iterable that is
            not a list has this rank's.
        dp_dims: The mesh's dimensions along which data differ; None: those whose names begin with ``dp``.
        share_workers: With a mesh, ranks of one machine that get the same share the worker processes of the first of them,
            on Linux; False: each has its own.
        start_method: How worker processes are started: ``"template"`` forks them, in milliseconds each, from a process
            that has imported torch once, which all loaders of this process share, one after another as well: it ends
            with this process, or after five minutes without a worker; ``"spawn"`` starts a new interpreter for each,
            which imports torch in a second or more. ``"fork"`` (Linux) forks this process once, in the constructor, and
            forks the workers and their successors from that fork: nothing is pickled or imported, and what cannot be
            pickled works. It has the hazards of every fork of a program: a lock that another thread
            holds then stays taken, what a library keeps of its threads or of CUDA does not work there, and files and
            sockets are shared; a file that is only read is opened again in each worker. None: the template on Linux,
            interpreters on macOS, where a process that has imported torch cannot be forked. The microbatches are the
            same, bit for bit.
        trace: A file for the timeline of this run, for ``fkat-data report``, Perfetto or Chrome. Each of several ranks
            writes its own: ``run-rank3.json`` for ``run.json``. An older file is replaced; it ends at 256 MiB.
        workers: Where microbatches are made: ``"processes"``, or ``"threads"`` of this process, which share its memory:
            for datasets that wait or give the GIL free and may be read by several threads, and for Windows. There are as
            many as there would be processes. Shards are opened, and their indices drawn, in the caller's thread. Random
            draws must come from ``fkat_data.item_generators``. Or ``fkat_data.ray.Actors(...)``: actors on a cluster.
        commit: When a microbatch counts as used, and is in a state: ``"delivery"``, or ``"manual"``: when ``commit`` gets its
            ``ticket``. What a state does not have as used comes first after a load. See ``docs/howto/commit.md``.
        max_outstanding: Microbatches that may be delivered and neither committed nor released, with ``commit="manual"``;
            the next call raises where there are as many. None: any number.
        epochs_ahead: 1 lets an epoch begin while some of the one before is outstanding.

    Raises:
        ConfigurationError: An argument cannot work, or the factory cannot be sent to a worker.
    """

    def __init__(
        self,
        seed: int,
        shard_sampler: Iterable[Shard],
        dataloader_factory: Callable[[Shard], Iterable[Microbatch_co]],
        num_shard_prefetches: int = 0,
        num_microbatch_prefetches: int = -1,
        dp_rank: int | None = None,
        profiler: Profiler | None = None,
        device: torch.device | str | None = None,
        multiprocessing: bool = True,
        *,
        num_workers_per_shard: int = 1,
        memory_limit_bytes: int | None = None,
        zero_copy: bool = True,
        max_worker_restarts: int = 0,
        on_shard_error: OnShardError = "raise",
        max_skipped_shards: int = 10,
        stall_warning_s: float = 30.0,
        stall_timeout_s: float | None = None,
        replica_group: Any = None,
        check_ranks_every: int | None = None,
        mesh: Any = None,
        dp_dims: str | Sequence[str] | None = None,
        share_workers: bool = True,
        start_method: StartMethod | None = None,
        trace: str | os.PathLike[str] | None = None,
        workers: WorkerKind = "processes",
        commit: CommitMode = "delivery",
        max_outstanding: int | None = None,
        epochs_ahead: int = 0,
    ) -> None:
        ranks = mesh_ranks(mesh, dp_dims)
        if ranks is not None:
            if replica_group is not None:
                raise ConfigurationError("replica_group", replica_group, "None with a mesh, from which it follows")
            if dp_rank not in (None, ranks.dp_rank):
                raise ConfigurationError("dp_rank", dp_rank, f"{ranks.dp_rank}, as the mesh says, or None")
            dp_rank, replica_group = ranks.dp_rank, list(ranks.replicas) if ranks.has_replicas else None
            shard_sampler = sampler_of_rank(shard_sampler, ranks.num_dp_ranks, ranks.dp_rank)
        self._ledger = commit_ledger(commit, max_outstanding, epochs_ahead)
        factory: object = dataloader_factory
        batching = factory.batching if isinstance(factory, DataLoaderFactory) else None
        self._identity = identity_of(seed, dp_rank, shard_sampler)._replace(batching=batching)
        num_shard_prefetches = arguments.integer("num_shard_prefetches", num_shard_prefetches, minimum=0)
        num_microbatch_prefetches = arguments.integer(
            "num_microbatch_prefetches", num_microbatch_prefetches, minimum=-1
        )
        if profiler is not None and not isinstance(profiler, Profiler):
            raise ConfigurationError("profiler", profiler, "an object with start(name) and stop(name)")
        arguments.function("dataloader_factory", dataloader_factory)
        self.shard_sampler: Iterable[Shard] = shard_sampler
        self.dataloader_factory: Callable[[Shard], Iterable[Microbatch_co]] = dataloader_factory
        self.num_shard_prefetches: int = num_shard_prefetches
        plan = elastic_shard_plan(shard_sampler)
        recovery = Recovery(
            max_worker_restarts=arguments.integer("max_worker_restarts", max_worker_restarts, minimum=0),
            skips_shards=arguments.choice("on_shard_error", on_shard_error, ON_SHARD_ERROR) == "skip",
            max_skipped_shards=arguments.integer("max_skipped_shards", max_skipped_shards, minimum=0),
            stall_warning_s=arguments.seconds("stall_warning_s", stall_warning_s),
            stall_timeout_s=None if stall_timeout_s is None else arguments.seconds("stall_timeout_s", stall_timeout_s),
        )
        kind = worker_kind(workers)
        shared = None
        is_wanted = arguments.boolean("share_workers", share_workers) and self._ledger is None
        if ranks is not None and can_start_workers():
            from fkat_data.worker.process.meeting import meet  # noqa: PLC0415 - it imports what Windows does not have

            shared = meet(ranks, is_wanted=is_wanted and multiprocessing and kind == "processes")
        timeline = None if trace is None else open_timeline(trace, *rank_and_world_size())
        settings = WorkerPoolSettings(
            factory=dataloader_factory,
            seed=self._identity.seed,
            dp_rank=self._identity.dp_rank,
            num_groups=max(1, num_shard_prefetches),
            group_size=arguments.integer("num_workers_per_shard", num_workers_per_shard, minimum=1),
            limit_bytes=memory_limit_bytes,
            profiler=profiler,
            kind=kind if arguments.boolean("multiprocessing", multiprocessing) else None,
            is_zero_copy=arguments.boolean("zero_copy", zero_copy),
            is_digested=recovery.max_worker_restarts > 0 or (replica_group is not None and shared is None),
            timeline=timeline,
            start_method=None
            if start_method is None
            else arguments.choice("start_method", start_method, START_METHODS),
            user_objects={"dataloader_factory": dataloader_factory},
            is_startup_shared=not recovery.needs_processes and _hashes_like_workers(),
            shared=shared,
        )
        lengths = ShardLengths(source_of_lengths(dataloader_factory))
        self._length = EpochLength(plan, settings, lengths, recovery)
        self._engine: Engine[Microbatch_co] = Engine(
            plan,
            EngineSettings(
                settings,
                num_shard_prefetches,
                num_microbatch_prefetches,
                recovery,
                device,
            ),
            agreement=rank_agreement(replica_group, check_ranks_every, self._identity, plan),
            lengths=lengths,
            on_leave=self._length.check_end,
            commits=None if self._ledger is None else TicketedRank(self._ledger, self._identity.dp_rank),
        )

        self._device = device
        if shared is not None:
            on_collected(self, shared.close, at_exit=shared.is_first)

    @property
    def device(self) -> torch.device | str | None:
        """Where microbatches are delivered, as it was given; None: as views on the CPU."""
        return self._device

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch, from 0."""
        return self._upcoming[0]

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""
        return self._upcoming[1]

    @property
    def _upcoming(self) -> tuple[int, int]:
        epoch, step = self._engine.position.epoch, self._engine.step
        return (epoch, step) if self._ledger is None else self._ledger.upcoming(epoch, step)

    @property
    def ticket(self) -> Ticket:
        """The ticket of the microbatch that was delivered last, with ``commit="manual"``.

        Raises:
            ConfigurationError: None was since the loader was made or loaded, or microbatches are not committed by tickets.
        """
        return required_ledger(self._ledger).ticket

    @property
    def has_tickets(self) -> bool:
        """Whether the caller commits microbatches, instead of their delivery."""
        return self._ledger is not None

    @property
    def num_outstanding(self) -> int:
        """Microbatches that were delivered, and neither committed nor released; 0 without ``commit="manual"``."""
        return 0 if self._ledger is None else self._ledger.num_outstanding

    def commit(self, ticket: Ticket) -> None:
        """Count a microbatch as used: no state has it to deliver again. In the thread that iterates the loader.

        Raises:
            ConfigurationError: It is not outstanding, or microbatches are not committed by tickets.
        """
        required_ledger(self._ledger).commit(ticket)

    def release(self, ticket: Ticket) -> None:
        """Have a microbatch delivered again, before new ones, with its bits. In the thread that iterates the loader.

        Raises:
            ConfigurationError: It is not outstanding, or microbatches are not committed by tickets.
        """
        required_ledger(self._ledger).release(ticket)

    @property
    def memory_limit_bytes(self) -> int:
        """Bytes of shared memory that the workers may take together: what was given, or the default."""
        return self._engine.pool.memory_limit.limit_bytes

    def __iter__(self) -> Iterator[Microbatch_co]:
        """Begin an epoch, or the rest of one after ``load_state_dict``; an older iterator ends."""
        return self._engine.iterate(EpochIterator, self)

    def __len__(self) -> int:
        """Return this rank's microbatches in the epoch under way, or in the next one if none is.

        The first call for an epoch counts what is not known yet (``list(loader)`` calls it, too): a
        ``DataLoaderFactory`` looks at its files, or worker processes open each shard and take the word of what the
        factory returns. A number that random draws decide on is counted again in each epoch. If the epoch was split
        again, the microbatches before count as for ``step``.

        Raises:
            TypeError: The length is not known; the message says what to pass.
            WorkerStalledError: Opening a shard takes ``stall_timeout_s``; until then, the log reports after
                ``stall_warning_s``.
            Exception: A shard cannot be opened; with ``on_shard_error="skip"`` it has no microbatches.
        """
        with HideOwnFrames():
            return self._length.of(self._engine.position.epoch)

    def __bool__(self) -> bool:
        """Return True, even for a loader without microbatches."""
        return True

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "epoch", self.epoch
        yield "step", self.step
        yield "num_workers", self._engine.pool.num_workers
        yield "seed", self._identity.seed
        yield "dp_rank", self._identity.dp_rank

    def load_batch(self) -> None:
        """Start to move the next microbatch to the device, without waiting; begins an epoch if none is under way.

        Nothing moves yet where it has not arrived, or where a shard without microbatches, or one that is skipped, ends
        before it: then the call that returns the microbatch moves it. What comes, and in which order, is the same.
        """
        self._engine.begin_if_over()
        self._engine.prefetch()

    def load_batch_sync(self) -> Microbatch_co:
        """Return the next microbatch of the epoch under way; begins one if there is none.

        Raises:
            StopIteration: The epoch is over; the next call begins another.
            StaleIteratorError: Another thread, or a signal handler, closed the loader meanwhile.
        """
        self._engine.begin_if_over()
        return self._engine.hand_over(self._engine.take())

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered, for a caller that has lost it: the next call delivers it again.

        Returns:
            False if the iteration has ended or begun again since, or nothing was delivered: nothing changes then.
        """
        return self._engine.take_back()

    samples_of: ClassVar[Callable[..., NoReturn]] = refused("samples_of", "<steps of shards>", _KNOWN_SAMPLES)
    exclude: ClassVar[Callable[..., NoReturn]] = refused("exclude", "<samples of shards>", _KNOWN_SAMPLES)
    exclude_steps: ClassVar[Callable[..., NoReturn]] = refused("exclude_steps", "<steps of shards>", _KNOWN_SAMPLES)

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered: the next iteration begins the next epoch.

        Where nothing of the epoch was delivered, nothing changes. An iteration that is cut short ends: its iterator
        raises ``StaleIteratorError``.
        """
        self._engine.end_epoch()

    def prefetch_shards(self, count: int) -> None:
        """Put ``count`` more shards in work now; begins an epoch if none is under way.

        Raises:
            ConfigurationError: ``count`` is no number of shards.
        """
        count = arguments.integer("count", count, minimum=0)
        self._engine.begin_if_over()
        self._engine.extend(count)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks: what was delivered, not what was prefetched.

        Where torch.distributed is initialised this is collective: every rank must call it. Otherwise it is only
        this rank's position. Loads with ``torch.load(weights_only=True)``. The form is described in
        ``fkat_data.plan.state``.
        """
        return merge(gather(self._resume_state()))

    def local_state_dict(self) -> dict[str, Any]:
        """Return this rank's position as plain values, which JSON can hold; not collective."""
        return write_rank(self._resume_state())

    @staticmethod
    def merge_state_dicts(local_state_dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what ``state_dict`` would return, from every rank's ``local_state_dict`` in the order of ranks.

        Raises:
            StateMismatchError: One of them is no local state, or they are of different runs.
        """
        if not local_state_dicts:
            raise StateMismatchError("local_state_dicts", 0, "<one for each rank>")
        return merge([read_rank(state) for state in local_state_dicts])

    @property
    def acceptable_fields(self) -> tuple[str, ...]:
        """The fields of a state that ``load_state_dict`` can accept where they differ."""
        return ACCEPTABLE

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Go to a saved position: the next iteration begins at the first microbatch that was not delivered before it.

        An iteration under way ends: its iterator raises ``StaleIteratorError``. Takes what ``state_dict`` or
        ``local_state_dict`` gave; of the former, it uses this process's rank. A ``state_dict`` of another number of
        data-parallel ranks is split again: the present ranks share what is left of its epoch, and each begins in that
        epoch at the largest ``step`` of the ranks before. A rank that gets nothing has an epoch without microbatches,
        so that all ranks have equally many epochs.

        Args:
            state_dict: The state.
            accept: Fields that may differ, of ``acceptable_fields``. The log says what did, and the price, and the states
                that follow keep it. Of ``files`` and ``batching`` of a shard that was begun, nothing is compared.

        Raises:
            StateMismatchError: It is no state, or belongs to another plan; nothing has changed then. The message says
                which difference can be accepted, and at which price.
            ConfigurationError: ``accept`` names another field.
        """
        acceptance, is_manual = Acceptance(accept, self.acceptable_fields), self._ledger is not None
        plan = self._engine.plan
        self._engine.go_to(resume(state_dict, plan, self._identity, acceptance, is_manual=is_manual))

    def shards(self) -> list[Shard] | None:
        """Return this rank's shards of the epoch of the next microbatch, in order.

        None: the sampler is an iterable, and what it gives is not known before it is asked.
        """
        epoch, plan = self._engine.position.epoch, self._engine.plan
        num_shards = plan.num_tasks(epoch)
        if num_shards is None:
            return None
        shards = (plan.payload(epoch, index) for index in range(num_shards))
        return [shard for shard in shards if shard is not None]

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far; cheap enough for every step."""
        return self._engine.statistics()

    def set_device(self, device: torch.device | str | None) -> None:
        """Deliver to another device from the next microbatch on that is not moving yet.

        Raises:
            ConfigurationError: This machine has no such device.
        """
        self._engine.set_device(device)
        self._device = device

    def close(self) -> None:
        """End the workers, within about a second; any number of calls. A new iteration starts them again."""
        self._engine.close()

    def __reduce__(self) -> str:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it owns processes. Make one in the process that needs it"
        )

    def _resume_state(self) -> ResumeState:
        plan, dp_rank = self._engine.plan, self._identity.dp_rank
        found = with_fingerprint(self._engine.resume_state, plan, self._identity)
        if self._ledger is None:
            return found
        saved = self._ledger.saved(found.position, dp_rank, num_dealt(plan), plan.saved_payload)
        return found._replace(outstanding=saved)


def _hashes_like_workers() -> bool:
    """Return whether a factory that numbers a set of labels numbers them here as in a worker."""
    if not can_start_workers():
        return False
    from fkat_data.worker.process.inherited_environment import own_hash_seed  # noqa: PLC0415 - it imports what Windows does not have

    return own_hash_seed() is not None

"""The settings of the engine that the arguments of a ``fkat_data.DataLoader`` ask for, and its iterator."""

import multiprocessing
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch.utils import data as torch_data
from torch.utils.data import dataloader as torchs

from fkat_data.device.accelerator import device_of
from fkat_data.engine.agreement import RankAgreement, identity_of
from fkat_data.engine.engine import Engine
from fkat_data.engine.recovery import Recovery
from fkat_data.engine.settings import EngineSettings, WorkerPoolSettings
from fkat_data.engine.worker_pool import prepare_template
from fkat_data.errors import ConfigurationError, arguments
from fkat_data.loaders.computed_plan import is_computed
from fkat_data.loaders.loader_arguments import LoaderArguments
from fkat_data.loaders.loader_plan import LoaderPlan
from fkat_data.loaders.loader_state import LoaderState
from fkat_data.observe.statistics import DataLoaderStatistics
from fkat_data.observe.timeline import open_timeline
from fkat_data.plan.commits import TicketedRank
from fkat_data.plan.iteration import EpochIterator, HandOver, Iterations
from fkat_data.runtime.distributed import rank_and_world_size
from fkat_data.runtime.machine import can_start_workers
from fkat_data.types import Microbatch, StreamSource
from fkat_data.worker.epoch_factory import EpochFactory, EpochSpec
from fkat_data.worker.settings import FORK_OR_TEMPLATE, START_METHODS, worker_kind
from fkat_data.worker.windows import window_functions_of

if TYPE_CHECKING:  # Windows has no worker processes
    from fkat_data.worker.process.shared_worker import ProducerLink
    from fkat_data.worker.process.shared_workers import SharedWorkers

# What decides on the order, or on the kind of loader: another value needs another loader.
_FIXED = ("seed", "window_size", "on_sample_error", "workers", "in_order", "mesh", "dp_dims", "share_workers")
_SETTABLE = (
    *(
        "collate_fn",
        "window_fn",
        "worker_init_fn",
        "num_workers",
        "prefetch_factor",
        "timeout",
        "multiprocessing_context",
    ),
    *("device", "dp_rank", "snapshot_every_n_steps", "memory_limit_bytes", "zero_copy", "max_worker_restarts"),
    *("stall_warning_s", "start_method", "profiler", "trace", "max_skipped_samples"),
)
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "seed": arguments.integer,
    "device": lambda _, value: (device_of(value), value)[1],  # whether this machine has it is asked where it is used
    "dp_rank": partial(arguments.integer, minimum=0),
    "share_workers": arguments.boolean,
    "snapshot_every_n_steps": partial(arguments.integer, minimum=0),
    "memory_limit_bytes": partial(arguments.integer, minimum=1 << 20),
    "zero_copy": arguments.boolean,
    "max_worker_restarts": partial(arguments.integer, minimum=0),
    "stall_warning_s": arguments.seconds,
    "start_method": partial(arguments.choice, options=START_METHODS),
    "window_fn": lambda _, value: (window_functions_of(value), value)[1],
    "window_size": partial(arguments.integer, minimum=1),
    "on_sample_error": partial(arguments.choice, options=("raise", "skip")),
    "max_skipped_samples": partial(arguments.integer, minimum=0),
    "workers": lambda _, value: worker_kind(value),
}
_MAY_BE_NONE = {"seed", "device", "dp_rank", "memory_limit_bytes", "start_method", "window_fn"}
_SMALLEST_LIMIT_BYTES = 1 << 20
# Frameworks recognise an iterator by it: Lightning leaves these out where it pickles a ``CombinedLoader``. Nothing else of
# the class is used, which is private to torch.
_TORCHS: Any = getattr(torchs, "_BaseDataLoaderIter", object)


def checked_argument(loader: LoaderArguments, name: str, value: Any) -> Any:
    """Return the value that an argument of a DataLoader is set to: in the constructor, or later for the next iteration.

    Raises:
        ConfigurationError: The value is invalid, or the loader has another one, which decides on its order or its kind.
    """
    if name in _CHECKS and (value is not None or name not in _MAY_BE_NONE):
        value = _CHECKS[name](name, value)
    fields = loader.__dict__
    # The constructor sets it last.
    is_made = "_session" in fields
    if is_made and name in fields and (name != "seed" or fields["_session"].is_begun):
        present = fields[name]
        is_other_kind = name == "window_fn" and (present is None) != (value is None)
        if is_other_kind or (name in _FIXED and value != present):
            expected = f"{present!r}, which the loader was made with: another value needs another loader"
            raise ConfigurationError(name, value, expected)
    return value


def settable_of(loader: LoaderArguments, *, is_cut_by_workers: bool) -> list[Any]:
    """Return what a program may set on a DataLoader between two epochs, as with torch's, and its engine depends on.

    What an epoch's plan reads of samplers when it begins is not among it, except for whether the order is arithmetic.

    Args:
        loader: The DataLoader.
        is_cut_by_workers: Whether workers group samples into batches.
    """
    size = size_of_batches(loader) if is_cut_by_workers else None
    kind = is_computed(loader.sampler, loader.batch_sampler)
    return [kind, size, *(getattr(loader, name) for name in _SETTABLE)]


def size_of_batches(loader: LoaderArguments) -> int | None:
    """Return the samples of a batch; None: microbatches are the dataset's items, or batches of any size."""
    batches = loader.batch_sampler
    return int(batches.batch_size) if type(batches) is torch_data.BatchSampler else loader.batch_size


class DataLoaderIterator(EpochIterator, _TORCHS):
    """One epoch of a DataLoader.

    Args:
        plan: Knows how many microbatches it has.
        engine: Makes them.
        take: As for ``EpochIterator``, like the rest.
    """

    def __init__(
        self,
        plan: LoaderPlan,
        engine: Engine[Any],
        take: Callable[[], Microbatch],
        cursor: HandOver,
        iterations: Iterations,
        loader: Any,
    ) -> None:
        super().__init__(take, cursor, iterations, loader)
        self._loader: Any = loader
        self._plan = plan
        self._epoch = plan.epoch_and_step(engine.position)[0]

    @property
    def _range_name(self) -> str:
        kind = "_MultiProcessingDataLoaderIter" if self._loader.num_workers else "_SingleProcessDataLoaderIter"
        return f"enumerate(DataLoader)#{kind}.__next__"

    def __len__(self) -> int:
        """Return the microbatches of its whole epoch.

        Raises:
            TypeError: That is not known.
        """
        return self._plan.num_batches(self._epoch)

    def __bool__(self) -> bool:
        """Return True, even for an epoch without microbatches."""
        return True

    def __reduce__(self) -> NoReturn:
        kind = type(cast("object", self._loader))
        name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        raise NotImplementedError(
            f"an iterator of a {name} cannot be pickled or copied: pickle the loader, and hand its position over "
            "by state_dict() and load_state_dict()"
        )


def _public_name(kind: type) -> str:
    """Return the name of the class of this package that a loader's class is, or derives from."""
    return next((base.__name__ for base in kind.__mro__ if base.__module__.startswith("fkat_data.")), kind.__name__)


def make_engine(
    loader: LoaderArguments,
    plan: LoaderPlan,
    *,
    seed: int,
    dp_rank: int,
    drop_last: bool,
    keeps_dataset: bool,
    is_startup_shared: bool,
    agreement: RankAgreement | None,
    commits: TicketedRank | None,
    shared: "SharedWorkers | ProducerLink | None",
) -> Engine[Any]:
    """Return the engine that makes a plan's microbatches.

    Args:
        loader: The DataLoader, whose arguments decide on the rest.
        plan: The order.
        seed: The DataLoader's.
        dp_rank: The DataLoader's.
        drop_last: Whether a last batch that is smaller is left out.
        keeps_dataset: Whether an iterable dataset stays from epoch to epoch.
        is_startup_shared: Whether this process may make microbatches until a worker has begun.
        agreement: Compares the ranks that get the same; None: no other rank does.
        commits: As for ``Engine``.
        shared: This rank's end of the connections to those that share its workers; None: they are its own.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    identity_of(seed, dp_rank, None)
    # A group of workers makes a task together; each strand has a group of its own.
    group_size, num_groups = max(1, loader.num_workers), 1
    is_multiprocessing, num_strands = loader.num_workers > 0, plan.num_strands
    if loader.workers != "processes" and loader.num_workers:
        check_threads(loader, is_iterable=num_strands is not None)
    if num_strands is not None:
        is_multiprocessing = is_multiprocessing or num_strands > 0
        group_size, num_groups = 1, max(1, num_strands)
    elif plan.has_undivided_tasks:
        group_size, num_groups = 1, group_size
    num_workers_seen = loader.num_workers if num_strands is None else num_strands
    spec = EpochSpec(
        loader.collate_fn,
        loader.worker_init_fn,
        num_workers=num_workers_seen,
        batch_size=size_of_batches(loader),
        drop_last=drop_last,
        is_batched=loader.batch_sampler is not None,
        keeps_dataset=keeps_dataset,
        snapshot_every_n_steps=loader.snapshot_every_n_steps,
        seed=seed,
        dp_rank=0 if plan.counts_all_ranks else dp_rank,
        keeps_workers=bool(loader.persistent_workers),
        window_fn=loader.window_functions,
        window_size=loader.window_size,
        skips_samples=loader.on_sample_error == "skip",
    )
    limit_bytes = loader.memory_limit_bytes
    if limit_bytes is not None:
        limit_bytes = max(limit_bytes, _SMALLEST_LIMIT_BYTES * num_groups)
    recovery = Recovery(
        max_worker_restarts=loader.max_worker_restarts,
        skips_shards=False,
        max_skipped_shards=0,
        stall_warning_s=loader.stall_warning_s,
        stall_timeout_s=loader.timeout or None,
    )
    if shared is not None and not (is_multiprocessing and loader.workers == "processes"):
        shared.close()  # the others see it, and make their own
        shared = None
    workers = WorkerPoolSettings(
        factory=EpochFactory(loader.dataset, spec),
        seed=seed,
        dp_rank=dp_rank,
        num_groups=num_groups,
        group_size=group_size,
        limit_bytes=limit_bytes,
        profiler=loader.profiler,
        kind=loader.workers if is_multiprocessing else None,
        is_zero_copy=loader.zero_copy,
        is_digested=loader.max_worker_restarts > 0 or (agreement is not None and shared is None),
        timeline=None if loader.trace is None else open_timeline(loader.trace, *rank_and_world_size()),
        start_method=start_method_of(loader),
        user_objects={
            "dataset": loader.dataset,
            "window_fn": spec.window_fn,
            "collate_fn": spec.collate_fn,
            "worker_init_fn": spec.worker_init_fn,
        },
        in_process_argument=("num_workers", 0),
        has_process_state=keeps_dataset,
        loader_name=_public_name(cast("type[object]", type(loader))),
        is_startup_shared=is_startup_shared and loader.worker_init_fn is None and not recovery.needs_processes,
        shared=shared,
    )
    is_ahead = is_multiprocessing and plan.has_several_tasks
    num_ahead = -1 if loader.prefetch_factor is None else loader.prefetch_factor * group_size
    num_tasks_ahead = num_groups if plan.has_undivided_tasks else plan.num_tasks_ahead
    settings = EngineSettings(
        workers,
        num_tasks_ahead if is_ahead else 0,
        num_ahead,
        recovery,
        loader.device,
        DataLoaderStatistics,
    )
    return Engine(plan, settings, agreement=agreement, commits=commits)


def prepare_workers(loader: LoaderArguments) -> None:
    """Start the process that the workers of a DataLoader will be forked from, where it needs one and none runs.

    It imports torch while the program goes on; this does not wait for it.

    Raises:
        ConfigurationError: This system does not allow the start method.
    """
    if loader.num_workers and loader.workers == "processes" and can_start_workers():
        prepare_template(start_method_of(loader))


def check_threads(loader: LoaderArguments, *, is_iterable: bool) -> None:
    """Check that threads, where they are to, can make the microbatches of a DataLoader.

    Raises:
        ConfigurationError: They cannot; the message says why.
    """
    if loader.workers != "threads":
        return
    reason = None
    if is_iterable:
        reason = "an iterable dataset: its workers need get_worker_info(), which all threads of a process share"
    elif loader.worker_init_fn is not None:
        reason = "worker_init_fn: what it sets up is a process's"
    if reason is not None:
        raise ConfigurationError("workers", "threads", f"'processes', with {reason}")


def start_method_of(loader: LoaderArguments) -> str | None:
    """Return how the worker processes of a DataLoader are started; None: as this system allows."""
    if loader.start_method is not None:
        return loader.start_method
    context = loader.multiprocessing_context
    if context is not None:
        named = context.get_start_method()
        return named if named in ("spawn", "fork") else None
    # As in torch: the program's, which is not fixed by asking for it.
    named = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return FORK_OR_TEMPLATE if named == "fork" else None


def forks_program(loader: LoaderArguments) -> bool:
    """Return whether the workers of a DataLoader are forks of this program, which are sent nothing."""
    if not loader.num_workers or loader.workers != "processes" or not can_start_workers():
        return False
    method = start_method_of(loader)
    if method != FORK_OR_TEMPLATE:
        return method == "fork"
    # It imports what Windows does not have.
    from fkat_data.worker.process.forkserver import can_fork  # noqa: PLC0415 - see above

    return can_fork()


# A copy in page-locked memory, as torch makes it.
_pinned: Any = getattr(getattr(getattr(torch_data, "_utils", None), "pin_memory", None), "pin_memory", None)


def change_of(loader: Any, step: Callable[[], int]) -> Callable[[Any], Any] | None:
    """Return what each microbatch of a DataLoader goes through in this thread; None: nothing.

    Args:
        loader: The DataLoader.
        step: Returns the microbatches of the epoch that were delivered before this one.
    """
    change = None
    if loader._IterableDataset_len_called is not None:  # noqa: SLF001 - an attribute of torch's class
        change = _LengthWarning(loader._IterableDataset_len_called, loader.num_workers, step)  # noqa: SLF001 - as above
    if not (loader.pin_memory and loader.device is None and torch.cuda.is_available()):
        return change
    return _pinned if change is None else lambda microbatch: _pinned(change(microbatch))


class _LengthWarning:
    """Warns, as torch does, where an iterable dataset has more microbatches than its length says.

    Args:
        num_expected: The length that the caller was given.
        num_workers: The loader's.
        step: Returns the microbatches of the epoch that were delivered before this one.
    """

    def __init__(self, num_expected: int, num_workers: int, step: Callable[[], int]) -> None:
        self._num_expected = num_expected
        self._step = step
        self._cause = (
            " For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset "
            "replica at each worker: without torch.utils.data.get_worker_info(), each yields the whole dataset."
        )
        if not num_workers:
            self._cause = ""

    def __call__(self, microbatch: Any) -> Any:
        """Warn if there is one microbatch too many; return it."""
        num_seen = self._step() + 1
        if num_seen > self._num_expected:
            warnings.warn(
                f"Length of IterableDataset was reported to be {self._num_expected} (when accessing len(dataloader)), "
                f"but {num_seen} samples have been fetched.{self._cause}",
                stacklevel=3,
            )
        return microbatch


def adopt_batch_size(
    source: StreamSource[Any, Any] | None, batch_size: int | None, *, in_order: bool
) -> StreamSource[Any, Any] | None:
    """Return the source of a dataset that plans its batches itself, once it has the loader's batch size.

    Raises:
        ConfigurationError: The dataset has another batch size, none is given, or ``in_order`` is false: the state counts
            batches in their order.
    """
    if source is None:
        return None
    if not in_order:
        raise ConfigurationError("in_order", in_order, "True: the state counts batches in their order")
    if batch_size is None:
        raise ConfigurationError("batch_size", None, "a number of samples: the order of a stream depends on it")
    if source.batch_size is None:
        source.batch_size = batch_size
    if source.batch_size != batch_size:
        expected = f"{source.batch_size}, the batch size of the dataset, which its order depends on"
        raise ConfigurationError("batch_size", batch_size, expected)
    return source


def check_known(state: LoaderState, dataset: object) -> None:
    """Check that a state says where a stream goes on.

    Raises:
        ConfigurationError: The dataset's own ``__iter__`` has not yielded one sample for each that it was handed, so that
            no position in the order says what it would yield next.
    """
    if state.plan_state.get("stream", state) is None:
        raise ConfigurationError(
            "dataset",
            type(dataset),
            "an __iter__ that yields one sample for each of super().__iter__(), in turn: no state can say what "
            "another one yields next. To change single samples, pass transform= or override __getitem__",
        )

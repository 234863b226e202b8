"""The loader that a trainer iterates.

The way of a microbatch: the plan says which shard is next, a worker produces it, the prefetcher takes its microbatches
from the pipe in order, the mover brings each to its device, and the cursor counts it as delivered: that is all that
``state_dict`` has to say.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch

from fkat_data import arguments
from fkat_data.device.accelerator import AcceleratorMover
from fkat_data.device.host import HostMover, Mover
from fkat_data.distributed import gather, rank_and_world_size
from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.loader.crew import Crew, CrewSettings
from fkat_data.loader.delivery import Delivery
from fkat_data.loader.prefetch import Prefetcher
from fkat_data.observe.profile import TrainerProfile
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.plan.cursor import Cursor
from fkat_data.plan.shard_plan import shard_plan
from fkat_data.plan.state import RankState, merge, read, read_rank, verify
from fkat_data.position import Position
from fkat_data.types import Microbatch, Profiler, Shard

__all__ = ["ShardedDataLoader"]


class ShardedDataLoader:
    """Yields a rank's microbatches, shard by shard, made ahead in spawned workers, resumable to the microbatch.

    Each ``for`` loop over the loader is one epoch. After an epoch that was left early, the next loop is the next
    epoch; after ``load_state_dict`` it is the rest of the epoch that the state was taken in. A newer iterator replaces
    an older one.

    Workers start with the constructor, which does not wait for them, and live until ``close()``. On the CPU,
    microbatches are views of shared memory that stay valid for as long as they are kept; what is kept counts against
    the memory limit.

    Args:
        seed: Decides, with the place in the order, on every random draw in the workers. The same on every rank.
        shard_sampler: Gives this rank's shards: a ``ShardSampler``, a list, or any iterable of shards, which may be
            endless and may have ``state_dict`` and ``load_state_dict``.
        dataloader_factory: Called with a shard, in the worker; returns an iterable of microbatches.
        num_shard_prefetches: Shards in work ahead of the current one, each in a worker of its own; 0 or more. With
            0, one worker begins a shard when the one before was handed out.
        num_microbatch_prefetches: Microbatches made and not yet delivered, for each shard; -1 for as many as the
            memory limit allows. With 0, one is made when it is asked for.
        dp_rank: This process's data-parallel rank; ranks that share it draw the same random numbers.
        profiler: Told of the loader's actions by ``start(name)`` and ``stop(name)``.
        device: Where microbatches are delivered; None: as views on the CPU.
        multiprocessing: False produces in the caller's thread when a microbatch is asked for: for debugging and
            profiling. The microbatches are the same, bit for bit.
        memory_limit_bytes: Shared memory of all workers together; reaching it makes them wait. Default: an eighth
            of the available memory, at most 1 GiB.
        zero_copy: False delivers copies in memory of the caller's own.

    Raises:
        ConfigurationError: An argument cannot work, or the factory cannot be sent to a worker.
    """

    def __init__(
        self,
        seed: int,
        shard_sampler: Iterable[Shard],
        dataloader_factory: Callable[[Shard], Iterable[Microbatch]],
        num_shard_prefetches: int = 0,
        num_microbatch_prefetches: int = -1,
        dp_rank: int = 0,
        profiler: Profiler | None = None,
        device: torch.device | str | None = None,
        multiprocessing: bool = True,
        *,
        memory_limit_bytes: int | None = None,
        zero_copy: bool = True,
    ) -> None:
        self._seed = arguments.integer("seed", seed)
        # There may be fewer data-parallel ranks than ranks, but not more.
        world_size = rank_and_world_size()[1]
        self._dp_rank = arguments.integer(
            "dp_rank", dp_rank, minimum=0, maximum=world_size - 1 if world_size > 1 else None
        )
        num_shard_prefetches = arguments.integer("num_shard_prefetches", num_shard_prefetches, minimum=0)
        num_microbatch_prefetches = arguments.integer(
            "num_microbatch_prefetches", num_microbatch_prefetches, minimum=-1
        )
        if profiler is not None and not isinstance(profiler, Profiler):
            raise ConfigurationError("profiler", profiler, "an object with start(name) and stop(name)")
        self._factory = arguments.function("dataloader_factory", dataloader_factory)
        self._plan = shard_plan(shard_sampler)
        profile = TrainerProfile(profiler)
        settings = CrewSettings(
            factory=dataloader_factory,
            seed=self._seed,
            dp_rank=self._dp_rank,
            num_workers=max(1, num_shard_prefetches),
            limit_bytes=memory_limit_bytes,
            profiler=profiler,
            is_multiprocessing=arguments.boolean("multiprocessing", multiprocessing),
            is_zero_copy=arguments.boolean("zero_copy", zero_copy),
        )
        self._crew = Crew(settings, profile)
        self._prefetcher = Prefetcher(self._plan, self._crew.workers, num_shard_prefetches, num_microbatch_prefetches)
        self._cursor = Cursor()
        self._delivery = Delivery(self._prefetcher, self._cursor, _mover(device), profile)
        # Which iterator is the newest: a reference to it would be one in a circle.
        self._generation = 0
        self._is_handed_out = False
        self._crew.start()
        # For a loader that is dropped without close(). Not at exit: a process that ends takes its workers along.
        weakref.finalize(self, self._crew.kill).atexit = False

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch, from 0."""
        return self._cursor.position.epoch

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""
        return self._cursor.position.step

    def __iter__(self) -> Iterator[Microbatch]:
        """Begin an epoch, or the rest of one after ``load_state_dict``; an older iterator ends."""
        if self._is_handed_out or self._delivery.is_over:
            self._begin()
        self._is_handed_out = True
        return _EpochIterator(self, self._generation)

    def __len__(self) -> int:
        """Return the microbatches in an epoch.

        Raises:
            TypeError: That is not known: not every shard was seen to its end yet, and the factory has no
                ``num_microbatches(shard)``.
        """
        num_shards = self._plan.num_shards(self.epoch)
        if num_shards is None:
            raise TypeError("the number of microbatches is not known: the sampler does not say how many shards it has")
        return sum(self._num_microbatches(self._plan.shard(self.epoch, index)) for index in range(num_shards))

    def __bool__(self) -> bool:
        """Return True: a loader is something, whatever its length."""
        return True

    def load_batch(self) -> None:
        """Bring the next microbatch on its way without waiting; begins an epoch if none is under way."""
        self._begin_if_over()
        self._delivery.load_ahead()

    def load_batch_sync(self) -> Microbatch:
        """Return the next microbatch of the epoch under way; begins one if there is none.

        Raises:
            StopIteration: The epoch is over; the next call begins another.
        """
        self._begin_if_over()
        self._is_handed_out = True
        return self._delivery.next()

    def prefetch_shards(self, count: int) -> None:
        """Put ``count`` more shards in work now; begins an epoch if none is under way.

        Raises:
            ConfigurationError: ``count`` is no number of shards.
        """
        count = arguments.integer("count", count, minimum=0)
        self._begin_if_over()
        self._prefetcher.extend(count)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of all ranks: what was delivered, whatever was prefetched.

        Where torch.distributed is initialised this is collective: every rank must call it. Otherwise it is this
        rank's place alone. Loads with ``torch.load(weights_only=True)``. The form is described in
        ``fkat_data.plan.state``.
        """
        return merge(gather(self._rank_state(self._cursor.position)))

    def local_state_dict(self) -> dict[str, Any]:
        """Return this rank's place as plain values, which JSON can hold; not collective."""
        return self._rank_state(self._cursor.position).as_dict()

    @staticmethod
    def merge_state_dicts(local_state_dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what ``state_dict`` would have, from every rank's ``local_state_dict`` in the order of ranks.

        Raises:
            StateMismatchError: One of them is no local state, or they do not belong together.
        """
        if not local_state_dicts:
            raise StateMismatchError("local_state_dicts", 0, "<one for each rank>")
        return merge([read_rank(state) for state in local_state_dicts])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved place: the next iteration begins at the first microbatch that was not delivered before it.

        An iteration under way ends: its iterator raises ``StaleIteratorError``. Takes what ``state_dict`` or
        ``local_state_dict`` gave; of the former, this process's rank is used.

        Raises:
            StateMismatchError: It is no state, or belongs to another plan; nothing has changed then.
        """
        saved = self._own_rank(read(state_dict))
        verify(saved, self._rank_state(Position(saved.position.epoch, 0, 0, 0)))
        self._plan.load_sampler_state(saved.position.epoch, saved.sampler)
        position = saved.position
        num_shards = self._plan.num_shards(position.epoch)
        if num_shards is not None and position.shard >= num_shards:
            position = position.after_epoch()
        self._stop()
        self._cursor.load(position)

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far; cheap enough for every step."""
        delivery = self._delivery
        return LoaderStatistics(
            delivered=delivery.delivered,
            delivered_bytes=delivery.delivered_bytes,
            waited_s=delivery.waited_s,
            held_bytes=self._crew.held_bytes,
        )

    def set_device(self, device: torch.device | str | None) -> None:
        """Deliver to another device from the next microbatch on that is not yet on its way.

        Raises:
            ConfigurationError: There is no such device.
        """
        self._delivery.load_to(_mover(device))

    def close(self) -> None:
        """End the workers, within about a second; any number of calls. A new iteration starts them again."""
        self._stop()
        self._crew.close()

    def teardown(self, *args: Any) -> None:
        """Close the loader; for trainers that call it so."""
        del args
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """Close the loader; for trainers that call it so."""
        del exception
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a ShardedDataLoader is not to be pickled: it owns processes; make one where it is needed")

    def _begin(self) -> None:
        self._crew.start()
        self._delivery.begin()
        self._generation += 1
        self._is_handed_out = False

    def _begin_if_over(self) -> None:
        if self._delivery.is_over:
            self._begin()

    def _stop(self) -> None:
        self._delivery.stop()
        self._generation += 1

    def _rank_state(self, position: Position) -> RankState:
        epoch, plan = position.epoch, self._plan
        return RankState(
            position,
            seed=self._seed,
            dp_rank=self._dp_rank,
            num_shards=plan.num_shards(epoch),
            shards=plan.digest(epoch),
            sampler=plan.sampler_state(epoch),
        )

    def _own_rank(self, ranks: list[RankState]) -> RankState:
        rank, world_size = rank_and_world_size()
        if len(ranks) == 1 and (world_size == 1 or ranks[0].dp_rank == self._dp_rank):
            return ranks[0]
        if world_size == 1 and self._dp_rank < len(ranks):  # ranks that torch.distributed does not know of
            return ranks[self._dp_rank]
        if len(ranks) != world_size:
            raise StateMismatchError("dp_size", len(ranks), world_size, "resume with the ranks that saved it")
        return ranks[rank]

    def _num_microbatches(self, shard: Shard | None) -> int:
        known = self._prefetcher.num_microbatches.get(repr(shard))
        if known is not None:
            return known
        count = getattr(self._factory, "num_microbatches", None)
        if not callable(count):
            raise TypeError(f"the number of microbatches is not known before shard {shard!r} was read to its end")
        return arguments.integer("num_microbatches(shard)", count(shard), minimum=0)


class _EpochIterator(Iterator[Microbatch]):
    """One epoch of a loader."""

    def __init__(self, loader: ShardedDataLoader, generation: int) -> None:
        self._loader = loader
        self._next = loader._delivery.next  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # its other half
        self._generation = generation
        self._is_over = False

    def __next__(self) -> Microbatch:
        if self._is_over:
            raise StopIteration
        if self._generation != self._loader._generation:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            raise StaleIteratorError(
                "this iterator has ended: the loader was iterated anew, was given a state, or was closed"
            )
        try:
            return self._next()
        except StopIteration:
            self._is_over = True
            raise


def _mover(device: torch.device | str | None) -> Mover:
    if device is None:
        return HostMover()
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError("device", device, f"a torch device, or null ({error})") from error
    if target.type == "cpu":
        return HostMover()
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("device", device, "a device of this machine; torch sees no CUDA device here")
    try:
        torch.empty(0, device=target)
    except Exception as error:
        raise ConfigurationError("device", device, f"a device of this machine ({error})") from error
    return AcceleratorMover(target)

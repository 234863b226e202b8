"""The engine under every loader: it makes a plan's microbatches ahead, and delivers them in the plan's order.

The plan names the next task, a worker produces it, the prefetcher takes its microbatches from the pipe in order, the
delivery moves each to its device, and the cursor counts it. That count is all that a state says.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic

import torch

from fkat_data.device.accelerator import mover_for
from fkat_data.device.host import Placement
from fkat_data.engine.agreement import RankAgreement
from fkat_data.engine.delivery import Delivery
from fkat_data.engine.observation import Observation
from fkat_data.engine.prefetch import Prefetcher
from fkat_data.engine.redelivery import Redelivery
from fkat_data.engine.settings import EngineSettings
from fkat_data.engine.shard_lengths import ShardLengths
from fkat_data.engine.worker_pool import WorkerPool
from fkat_data.errors.acceptance import AcceptedField
from fkat_data.observe.sink import EventSink
from fkat_data.observe.statistics import LoaderStatistics
from fkat_data.plan.commits import TicketedRank
from fkat_data.plan.iteration import Cursor, EpochIterator, HandOver, Iterations
from fkat_data.plan.position import Position, ResumeState, ShardFingerprint
from fkat_data.plan.shard_plan import Plan
from fkat_data.runtime.interruption import is_interruption
from fkat_data.runtime.lifetime import on_collected
from fkat_data.types import Microbatch, Microbatch_co


class Engine(Generic[Microbatch_co]):
    """Makes and delivers a plan's microbatches, one iteration after the other.

    Workers start with the constructor, which does not wait for them, and live until ``close()``, or until the loader
    that owns the engine is dropped.

    Args:
        plan: The ordered work.
        settings: How it is done.
        agreement: Compares positions, orders and seeds of all ranks; None: they are not compared.
        lengths: Gets the lengths of shards that end; None: nothing asks for them.
        on_leave: Called with epoch and step where an iteration leaves an epoch early.
        commits: The rank whose microbatches the caller commits; None: what is delivered counts as used.

    Raises:
        ConfigurationError: The memory limit is too small, what workers need cannot be sent to them, or this machine has
            no such device or no worker processes.
    """

    def __init__(
        self,
        plan: Plan,
        settings: EngineSettings,
        *,
        agreement: RankAgreement | None = None,
        lengths: ShardLengths | None = None,
        on_leave: Callable[[int, int], None] | None = None,
        commits: TicketedRank | None = None,
    ) -> None:
        self.plan: Plan = plan
        """The ordered work."""
        self._on_leave = on_leave
        self._agreement = agreement
        self._sink = EventSink(settings.workers.timeline, settings.workers.profiler, settings.workers.loader_name)
        self.pool: WorkerPool = WorkerPool(settings.workers, self._sink)
        """The workers."""
        placement = Placement(mover_for(settings.device, self._sink))
        shared = settings.workers.shared
        self._prefetcher = Prefetcher(plan, self.pool, settings, placement.release, lengths)
        self._observation = Observation(self.pool, self._prefetcher, self._sink, settings)
        self._cursor = Cursor()
        self._delivery = Delivery(
            self.pool,
            self._prefetcher,
            self._cursor,
            placement,
            agreement,
            self._sink,
            self._observation,
            None if shared is None else shared.begin,
        )
        self._next = self._observation.traced(self._delivery.next, self._delivery.progress)
        self._redelivery = (
            None
            if commits is None
            else Redelivery(commits, plan, settings.workers.dp_rank, self._cursor, self._delivery, self.pool.remaker())
        )
        self._counter: HandOver = self._redelivery or self._cursor
        self._iterations = Iterations("loader")
        self._is_handed_out = False
        # Where a load is going to: an interrupted call has left it to the next one.
        self._loading: ResumeState | None = None
        # What differed where the loaded state, or one before it, was loaded.
        self._accepted: tuple[AcceptedField, ...] = ()
        # For a loader that is dropped without close(). Not at exit: a process that ends takes its workers with it.
        if settings.workers.kind is not None:
            on_collected(self, self.pool.kill)
        self.pool.start()
        self.pool.rest()

    @property
    def position(self) -> Position:
        """Position of the next microbatch; all before it were delivered."""
        self._finish_loading()
        return self._cursor.position

    @property
    def next_epoch(self) -> int:
        """The epoch of an iteration that begins now."""
        self._finish_loading()
        return self._cursor.first().epoch

    @property
    def before_last(self) -> Position | None:
        """Position of the last microbatch that was delivered; None: none was."""
        return self._cursor.before_last

    @property
    def step(self) -> int:
        """Microbatches of the present epoch that were delivered."""
        return self.position.step

    def iterate(
        self,
        made_by: Callable[[Callable[[], Any], HandOver, Iterations, object], EpochIterator],
        loader: object,
        change: Callable[[Any], Any] | None = None,
        epoch: int | None = None,
    ) -> Iterator[Microbatch_co]:
        """Begin an epoch, or the rest of one after ``go_to``; an older iterator ends.

        Args:
            made_by: The class of the iterator, or a function with the arguments of ``EpochIterator``.
            loader: The loader, which the iterator keeps alive.
            change: What becomes of each microbatch in the caller's thread; None: nothing.
            epoch: The epoch that begins, or goes on, where the plan decides on that; None: the cursor's.

        Raises:
            OutstandingError: An earlier epoch has to end, and some of it is outstanding.
        """
        self._finish_loading()
        is_rest = self._begins_rest(epoch)
        if is_rest:
            self._iterations.begin()
        elif self._is_handed_out or self._delivery.is_over:
            self._begin()
        take = self._next if is_rest else self.plan.wrapped_take(self._next, self)
        if self._redelivery is not None:
            take = partial(self._redelivery.next, take)
        changed = take if change is None else lambda: change(take())
        iterator = made_by(changed, self._counter, self._iterations, loader)
        if self.pool.use is not None:
            self.pool.use.iterate(self._delivery, iterator)
        self._is_handed_out = True
        return iterator

    def begin_if_over(self) -> None:
        """Begin an iteration if none is under way."""
        self._finish_loading()
        if self._delivery.is_over and not self._begins_rest():
            self._begin()

    def _begins_rest(self, epoch: int | None = None) -> bool:
        """Return whether an iteration that begins gives nothing but what was released of epochs that have to end."""
        redelivery = self._redelivery
        if redelivery is None:
            return False
        is_rest = redelivery.ledger.begin(self._cursor.first().epoch if epoch is None else epoch)
        redelivery.begin(is_rest=is_rest)
        return is_rest

    def take(self) -> Microbatch_co:
        """Return the next microbatch of the iteration under way; it is not delivered until ``hand_over`` counts it.

        Raises:
            StopIteration: The epoch is over, or no iteration is under way.
            StaleIteratorError: Another thread, or a signal handler, closed the loader meanwhile.
        """
        self._finish_loading()
        self._is_handed_out = True
        number = self._iterations.newest
        try:
            return self._next() if self._redelivery is None else self._redelivery.next(self._next)
        except Exception as error:
            if not is_interruption(error):
                self._iterations.check(number)
            raise

    def hand_over(self, microbatch: Microbatch) -> Microbatch:
        """Count as delivered what ``take`` has returned, and return what the caller has made of it.

        Where this is the last thing that a call does, an interrupted call has delivered nothing.
        """
        return self._counter.hand_over(microbatch)

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered, for a caller that has lost it: the next call delivers it again.

        Returns:
            False if the iteration has ended or begun again since, or nothing was delivered: nothing changes then.
        """
        self._finish_loading()
        return not self._delivery.is_over and (self._redelivery or self._cursor).take_back()

    def make_again(self) -> None:
        """Make what is not delivered yet again, with the next call: the plan is another one from the position on."""
        self._finish_loading()
        self._cursor.start(self._cursor.position)  # the plan does not have the last one any more, to be taken back
        self._delivery.make_again()

    def prefetch(self) -> None:
        """Start to move the next microbatch to the device, if it has arrived; do not wait."""
        self._delivery.prefetch()

    def count_ahead(self) -> int:
        """Return the microbatches that have arrived and are not delivered; receive what workers have ready, do not wait."""
        return self._delivery.count_ahead()

    def extend(self, num_tasks: int) -> None:
        """Put more tasks in work."""
        self._delivery.extend(num_tasks)

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered: the next iteration begins the next epoch.

        Where nothing of the epoch was delivered, nothing changes. An iteration that is cut short ends: its iterator
        raises ``StaleIteratorError``.
        """
        self._finish_loading()
        position = self._cursor.position
        if position.step:
            self._stop()
            self._prefetcher.leave(position)
            self._cursor.pass_epoch()

    def cut_epoch(self) -> None:
        """Count the rest of the epoch as delivered, within a call of the iteration that ends with this."""
        self._delivery.stop()
        self._prefetcher.leave(self._cursor.position)
        self._cursor.pass_epoch()

    def skip_epoch(self) -> None:
        """Count the rest of the epoch as delivered, within a call of the iteration, which goes on with the next epoch."""
        self._prefetcher.leave(self._cursor.position)
        self._delivery.go_on_behind_epoch()
        self._cursor.pass_epoch()

    def go_to(self, resume_state: ResumeState) -> None:
        """Go to another position, where the next iteration begins; an iteration under way ends."""
        self._finish_loading()
        self._loading = resume_state
        self._finish_loading()

    def leave_for(self, resume_state: ResumeState) -> None:
        """Go to the start of an epoch that the plan has decided on, or to the rest of one that was loaded."""
        if resume_state.position.epoch != self.position.epoch:
            self.leave_early()
        self.go_to(resume_state)

    def leave_early(self) -> None:
        """Log that the next iteration leaves out the rest of an epoch, if one is under way."""
        position = self.position
        if self._cursor.first() != position:
            self._iterations.leave(position.epoch, position.step)

    @property
    def resume_state(self) -> ResumeState:
        """Where the caller stands, with what is known here: the position, the skipped tasks, and the begun one's fingerprint."""
        position = self.position
        fingerprint = self._prefetcher.fingerprint(position) or ShardFingerprint()
        skipped = self._prefetcher.skips.shards(position.epoch)
        num_left_out = self._prefetcher.sample_skips.count(position)
        known = ResumeState(position, skipped=skipped, num_left_out=num_left_out, accepted=self._accepted)
        return known._replace(**fingerprint._asdict())

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far; cheap enough for every step."""
        return self._observation.statistics(self._delivery.progress())

    def set_device(self, device: torch.device | str | None) -> None:
        """Deliver to another device from the next microbatch on that is not moving yet.

        Raises:
            ConfigurationError: This machine has no such device.
        """
        self._delivery.load_to(mover_for(device, self._sink))

    def close(self) -> None:
        """End the workers, within about a second; any number of calls. A new iteration starts them again."""
        self._stop()
        if self._redelivery is not None:
            self._redelivery.close()
        self._observation.close(self._delivery.progress())
        self.pool.close()

    def _begin(self) -> None:
        position = self._cursor.position
        self.leave_early()
        if self._on_leave is not None and self._cursor.first() != position:
            self._on_leave(position.epoch, position.step)
        self._iterations.begin()
        self.plan.renew(position.epoch, position.step)
        self._delivery.begin()
        self._is_handed_out = False

    def _finish_loading(self) -> None:
        """Go to the state that is being loaded, if there is one."""
        resume_state = self._loading
        if resume_state is None:
            return
        self._stop()
        self.plan.adopt(resume_state)
        if self._agreement is not None:
            self._agreement.demand()
        self._prefetcher.load_fingerprint(
            resume_state.position, ShardFingerprint(resume_state.batching, resume_state.files)
        )
        self._prefetcher.skips.load(resume_state.position.epoch, resume_state.skipped)
        self._prefetcher.sample_skips.load(resume_state.position, resume_state.num_left_out)
        self._cursor.load(resume_state.position)
        self._accepted = resume_state.accepted
        if self._redelivery is not None and resume_state.outstanding is not None:
            self._redelivery.ledger.load(resume_state.outstanding)
        self._loading = None

    def _stop(self) -> None:
        self._iterations.begin()
        self._delivery.stop()

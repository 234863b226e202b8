"""Where a DataLoader stands: fresh, at a loaded state, or in an iteration; and how it goes from one to another."""

import copy
import logging
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fkat_data.engine.agreement import Identity, RankAgreement, rank_agreement
from fkat_data.engine.engine import Engine
from fkat_data.errors import ConfigurationError, StateMismatchError, arguments
from fkat_data.errors.acceptance import Acceptance, AcceptedField
from fkat_data.errors.sample_errors import source_location_of
from fkat_data.integrations.hooks.accelerate import AccelerateLoop
from fkat_data.loaders.computed_plan import EpochShuffle
from fkat_data.loaders.engine_settings import (
    DataLoaderIterator,
    change_of,
    check_known,
    make_engine,
    settable_of,
)
from fkat_data.loaders.loader_arguments import LoaderArguments, samplers_of
from fkat_data.loaders.loader_plan import LoaderPlan, Provenance
from fkat_data.loaders.loader_state import LoaderState, split_outstanding
from fkat_data.loaders.rank_share import RankShare
from fkat_data.loaders.rank_states import agreed_state, check_order, check_share, state_at_epoch
from fkat_data.loaders.reshards import rank_in
from fkat_data.loaders.sample_source import EpochStart, SampleSource
from fkat_data.loaders.shipment import LoaderShipment
from fkat_data.observe.statistics import DataLoaderStatistics, LoaderStatistics
from fkat_data.plan.commits import CommitLedger, TicketedRank, own_outstanding
from fkat_data.plan.position import Exclusion, Position, Reshard, ResumeState
from fkat_data.plan.resharding import kept_in_state
from fkat_data.runtime.distributed import agreed, gather
from fkat_data.runtime.lifetime import WeakTable, on_collected
from fkat_data.runtime.machine import can_start_workers
from fkat_data.runtime.mesh import MeshRanks
from fkat_data.seeding import next_number, shares_generators
from fkat_data.types import tell_epoch
from fkat_data.worker.epoch_factory import order_of

if TYPE_CHECKING:  # Windows has no worker processes
    from fkat_data.worker.process.shared_worker import ProducerLink
    from fkat_data.worker.process.shared_workers import SharedWorkers

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fresh:
    """Nothing was iterated or loaded: the next iteration begins where the source says."""


@dataclass(frozen=True)
class Loaded:
    """A state was loaded, and no iteration has begun there yet.

    Attributes:
        state: The state.
        is_untouched: Whether it is an epoch's start that no other process has begun.
    """

    state: LoaderState
    is_untouched: bool = False


@dataclass(frozen=True)
class Running:
    """There is an engine, with workers or without.

    Attributes:
        engine: The engine.
        plan: What it makes microbatches of.
        made_with: The arguments that it was made with, of those that a program may set.
        shipped: The digest of what was sent to workers; empty: nothing is compared.
        loaded: What was loaded, until the iteration that begins there has begun: a call that is interrupted before is as
            good as none.
        begun_with: The fingerprint of the epoch under way: what was set since counts from the next one. None: none is.
        iterator: The newest iterator, while it is used.
        resumed: Epoch and step where the newest iteration has begun, if a load has put it there.
    """

    engine: Engine[Any]
    plan: LoaderPlan
    made_with: list[Any]
    shipped: bytes
    loaded: Loaded | None = None
    begun_with: Mapping[str, Any] | None = None
    iterator: weakref.ref[Any] | None = None
    resumed: tuple[int, int] | None = None


class LoaderSession:
    """The position of a DataLoader, and the engine that delivers from there.

    It does not hold the loader, which each method gets: a loader that nothing else holds ends its workers.

    Args:
        source: Where the microbatches come from.
        ledger: What the caller has not committed; None: what is delivered counts as used.
        keeps_workers: Whether workers stay from epoch to epoch; None: unless what was shipped to them has changed.
        leaves_empty_rest: Whether a loaded position with nothing behind it is where the next epoch begins.
    """

    def __init__(
        self,
        source: SampleSource,
        ledger: CommitLedger | None,
        *,
        keeps_workers: bool | None,
        leaves_empty_rest: bool,
    ) -> None:
        self.source = source
        self.ledger = ledger
        """What the caller has not committed; None: what is delivered counts as used."""
        self._shipment = LoaderShipment(keeps_workers)
        self.framework_loop: AccelerateLoop | None = None
        """accelerate's loop that iterates the loader; None: the program does."""
        # Whether Lightning has made the loader of another one, with a sampler of its own.
        self._is_of_lightning = False
        # What Lightning has made of this session's loader.
        self._successors: WeakTable[int, Any] | None = None
        self._newest_successor: Any = None
        self._leaves_empty_rest = leaves_empty_rest
        self._phase: Fresh | Loaded | Running = Fresh()
        self._drawn_seed: int | None = None
        # Where the number of ranks has changed, in an epoch that is not over.
        self._reshards: tuple[Reshard, ...] = ()
        # What differed where the loaded state, or one before it, was loaded.
        self._accepted: tuple[AcceptedField, ...] = ()
        # Of the ranks that get the same; its process groups are made once.
        self._agreement: RankAgreement | None = None
        # The ranks of this machine that share workers with this one; None: it has its own.
        self._shared: SharedWorkers | ProducerLink | None = None

    @property
    def running(self) -> Running | None:
        """The engine and its plan; None: there is no engine."""
        return self._phase if isinstance(self._phase, Running) else None

    @property
    def _loaded(self) -> Loaded | None:
        phase = self._phase
        return phase if isinstance(phase, Loaded) else phase.loaded if isinstance(phase, Running) else None

    @property
    def is_begun(self) -> bool:
        """Whether the seed counts from now on: it was drawn, a state was loaded, or there is an engine."""
        return not isinstance(self._phase, Fresh) or self._drawn_seed is not None

    def _known_state(self) -> LoaderState | None:
        """Return a state that is not the engine's: one that was loaded, or what a framework's loop has passed on."""
        if (loaded := self._loaded) is not None:
            return loaded.state
        return None if self.framework_loop is None else self.framework_loop.saved

    def _start(self, loader: LoaderArguments) -> EpochStart:
        loaded = self._loaded
        return EpochStart(
            partial(self.seed, loader),
            self._dp_rank(loader),
            self._reshards,
            None if loaded is None else loaded.state,
            self._leaves_empty_rest or self.framework_loop is not None,
        )

    def _dp_rank(self, loader: LoaderArguments) -> int:
        if loader.dp_rank is not None:
            return loader.dp_rank
        return self.source.rank(loader) if self.source.mesh is None else self.source.mesh.dp_rank

    def seed(self, loader: LoaderArguments) -> int:
        """Return the seed, which is drawn now if none is known."""
        if loader.seed is not None:
            return loader.seed
        seed = self.source.own_seed(loader, self._drawn_seed)
        if seed is None:
            self._drawn_seed = seed = next_number(loader.generator)
        return seed

    def draw_as_torch_does(self, loader: LoaderArguments) -> None:
        """Move the generators as an iteration of torch's does, so that a program's other draws stay what they were."""
        loaded = self._loaded
        if not self.source.draws_as_torch or (loaded is not None and not loaded.is_untouched):
            return
        if shares_generators() and (loader.seed, self._drawn_seed) != (None, None):
            return  # nothing depends on the number, and the program's draws are not this thread's
        number = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        if self._drawn_seed is None:
            self._drawn_seed = number
        if isinstance(loader.sampler, EpochShuffle) and loader.generator is None:
            torch.empty((), dtype=torch.int64).random_()

    # Positions.

    def position(self, loader: LoaderArguments) -> tuple[int, int]:
        """Return the epoch of the next microbatch, and the microbatches of it that were delivered before."""
        saved = self._known_state()
        if saved is not None:
            return saved.epoch, saved.step
        if (running := self.running) is not None:
            return running.plan.epoch_and_step(running.engine.position)
        first = self.source.plan(loader, self._start(loader)).first()
        return first.epoch, first.step

    def upcoming(self, loader: LoaderArguments) -> tuple[int, int]:
        """Return epoch and step of the next microbatch, which may be one that was released."""
        epoch, step = self.position(loader)
        return (epoch, step) if self.ledger is None else self.ledger.upcoming(epoch, step)

    def next_epoch(self, loader: LoaderArguments) -> int:
        """Return the epoch that the next iteration is of: one that was left is over."""
        running = self.running
        if running is None:
            return self.position(loader)[0]
        upcoming = running.plan.upcoming_epoch(running.engine.position)
        if upcoming is None and self._known_state() is None:
            upcoming = running.engine.next_epoch
        if upcoming is not None:
            return upcoming
        epoch, step = self.position(loader)
        return epoch + (running.loaded is None and step > 0)

    def own_state(self, loader: LoaderArguments) -> LoaderState:
        """Return the position of what makes the microbatches: that of the engine, or of a loader that was not iterated."""
        running = self.running
        if running is None:
            plan = self.source.plan(loader, self._start(loader))
            position = plan.first()
            epoch, step = position.epoch, position.step
        else:
            plan, position = running.plan, running.engine.position
            epoch, step = plan.epoch_and_step(position)
        # Of an engine whose first iteration an interruption has kept from beginning, nothing is noted.
        begun_with = running.begun_with if running is not None and step > 0 else None
        share = self.source.share
        return LoaderState(
            seed=self.seed(loader),
            epoch=epoch,
            step=step,
            plan_state=plan.saved(position),
            fingerprint=begun_with or self.source.fingerprint(loader),
            reshards=kept_in_state(self._reshards, epoch),
            sharing=None if share is None else share.sharing,
            dataset_order=order_of(loader.dataset),
            accepted=self._accepted,
            begun_lengths=self.source.begun_lengths,
            files=self.source.begun_files,
        )

    def state(self, loader: LoaderArguments) -> LoaderState:
        """Return this process's position.

        Raises:
            ConfigurationError: A stream's own ``__iter__`` yields samples in another way than its order.
        """
        self._follow_ranks(loader)
        state = self._whole_state(loader)
        check_known(state, loader.dataset)
        if self.ledger is None:
            return state
        plan = self.source.plan(loader, self._start(loader)) if self.running is None else self.running.plan
        num_ranks, rank = self.source.dealt_ranks(loader)
        at = Position(state.epoch, 0, 0, state.step)
        return replace(state, outstanding=self.ledger.saved(at, rank, num_ranks, plan.saved_payload))

    def local_state(self, loader: LoaderArguments) -> LoaderState:
        """Return the same for this rank alone."""
        own, share = self.state(loader), self.source.share
        if share is not None and (own.sampler.get("window") or own.sampler.get("row")):
            return replace(own, rank=share.rank)
        return own

    def _whole_state(self, loader: LoaderArguments) -> LoaderState:
        saved, loaded = self._known_state(), self._loaded
        if saved is None:
            saved = self.own_state(loader)
        elif loaded is not None and not saved.step and saved.sampler:
            saved = self.source.current_state(loader, self._start(loader), saved)
        return self.source.with_dataset(loader, saved)

    def num_batches(self, loader: LoaderArguments) -> int | None:
        """Return the microbatches of the epoch under way, or of the next one; None: torch's class knows.

        Raises:
            TypeError: The number is not known.
        """
        running = self.running
        if self.source.has_torchs_length(loader, self._reshards, is_fresh=isinstance(self._phase, Fresh)):
            return None
        iterator = None if running is None or running.iterator is None else running.iterator()
        if iterator is not None and iterator.is_under_way:
            return len(iterator)
        plan = None if running is None else running.plan
        step = self.position(loader)[1]
        return self.source.num_batches(loader, self._start(loader), plan, self.next_epoch(loader), step)

    # From one position to another.

    def load(self, loader: LoaderArguments, state_dict: Mapping[str, Any], accept: Collection[str]) -> None:
        """Go to a saved position; see ``DataLoader.load_state_dict``.

        Raises:
            StateMismatchError: It does not fit; nothing has changed then.
        """
        self._follow_ranks(loader)
        state_dict, field = split_outstanding(state_dict)
        dealt_ranks = self.source.dealt_ranks(loader)
        outstanding = own_outstanding(field, *dealt_ranks, is_manual=self.ledger is not None)
        loaded = self.source.loaded_state(loader, state_dict, accept)
        if self.ledger is not None:
            self.ledger.load(outstanding)
        if loaded is None:
            self._start_again()
            return
        self._resume(loader, loaded)
        if self.source.is_over(loader, self._start(loader)):
            self.end_epoch(loader)  # a caller's set_epoch(), and what an iteration draws, are for the next one

    def _resume(self, loader: LoaderArguments, state: LoaderState) -> None:
        self.go_to(loader, state)
        if self._is_of_lightning:
            self.source.after_load(loader, state)

    def go_to(self, loader: LoaderArguments, state: LoaderState | None, *, is_untouched: bool = False) -> None:
        """Have the next iteration begin at a state; None: where the source says."""
        if state is None:
            self._start_again()
            return
        self.close()
        self.source.go_to(loader, state)
        fields: dict[str, Any] = {"_reshards": state.reshards, "_drawn_seed": state.seed, "_accepted": state.accepted}
        fields["_phase"] = Loaded(state, is_untouched)
        vars(self).update(fields)  # one call of C: an interruption leaves all as they were, or none
        if self.framework_loop is not None:
            self.framework_loop.saved = None

    def _start_again(self) -> None:
        self.close()
        self._phase = Fresh()
        if self.framework_loop is not None:
            self.framework_loop.saved = None

    def _start_of(self, loader: LoaderArguments, epoch: int) -> LoaderState | None:
        plan = None if self.running is None else self.running.plan
        return self.source.start_of(loader, self._start(loader), self.own_state(loader), plan, epoch)

    def set_epoch(self, loader: LoaderArguments, epoch: int) -> None:
        """Have the next iteration be of an epoch, and tell samplers and the dataset.

        Raises:
            ConfigurationError: What the epoch has depends on a seed that is not known, or on the epochs before.
            StateMismatchError: A loaded state is of another epoch.
        """
        arguments.integer("epoch", epoch, minimum=0)
        if epoch != self.next_epoch(loader):
            self._jump(loader, epoch)
        tell_epoch((*samplers_of(loader), loader.dataset), epoch)

    def _jump(self, loader: LoaderArguments, epoch: int) -> None:
        loaded, at = self._loaded, self.position(loader)
        is_running = self.running is not None
        is_within = not is_running and loaded is None and at[1] > 0  # of a stream, whose position is in the dataset
        if is_within or (loaded is not None and not loaded.is_untouched and at != (0, 0)):
            hint = "continue with the epoch of the loaded state (loader.epoch)"
            raise StateMismatchError("epoch", at[0], epoch, hint)
        self.source.check_jump(loader, self._start(loader), epoch, is_running=is_running)
        self.go_to(loader, self._start_of(loader, epoch), is_untouched=True)

    def end_epoch(self, loader: LoaderArguments) -> None:
        """Count the rest of the epoch as delivered; change nothing where nothing of it was delivered."""
        epoch, step = self.position(loader)
        if not step:
            return
        if self.running is None or self._loaded is not None:
            if self.source.is_free_of_states(loader, self._start(loader)):
                self.go_to(loader, self._start_of(loader, epoch + 1), is_untouched=True)
                return
            self.begin(loader)  # samplers go on from this epoch
        if self.framework_loop is not None:
            self.framework_loop.saved = None
        if self.running is not None and self.running.engine.step:
            self.running.engine.end_epoch()

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered; return False if the iteration has moved since."""
        is_ahead = self._loaded is not None or self.framework_loop is not None
        return not is_ahead and self.running is not None and self.running.engine.take_back()

    # What microbatches are made of.

    def made_at(self, loader: LoaderArguments, step: int, epoch: int | None) -> tuple[int, int, dict[int, list[Any]]]:
        """Return epoch and step of a microbatch, and each rank's samples of it; see ``DataLoader.samples_of``.

        Raises:
            ConfigurationError: There is no such step, or nothing says its samples.
        """
        self._follow_ranks(loader)
        plan = self._present_plan(loader)
        return self.source.made_at(loader, plan, arguments.integer("step", step, minimum=0), epoch)

    def exclude(self, loader: LoaderArguments, exclusion_of: Callable[[], Exclusion]) -> None:
        """Leave out what ``exclusion_of`` returns, or refuses, from the next microbatch on; see ``DataLoader.exclude``.

        Raises:
            ConfigurationError: The order is not known without them, or a framework's loop is a microbatch ahead.
            RankMismatchError: Ranks call it at different steps, or with other samples.
        """
        self._follow_ranks(loader)
        running, (epoch, step) = self.running, self.position(loader)

        def check() -> Exclusion:
            if self.framework_loop is not None and step:
                expected = "between two epochs: accelerate's loop is a microbatch ahead of the program's"
                raise ConfigurationError("exclude", f"<at step {step}>", expected)
            exclusion = exclusion_of()
            if exclusion.steps is not None and exclusion.steps[0] < step:
                raise ConfigurationError(
                    "first", exclusion.steps[0], f"at least {step}, the next step of epoch {epoch}"
                )
            return exclusion

        is_collective = self.source.has_ranks_in_step(loader)
        exclusion = agreed("exclude()", epoch, step, check) if is_collective else check()
        if not exclusion.samples and exclusion.steps is None:
            return
        plan = self._present_plan(loader)
        if running is not None:
            running.engine.make_again()
        position = Position(epoch, 0, 0, step) if running is None else running.engine.position
        fields: dict[str, Any] = {"_reshards": plan.exclude(position, exclusion)}
        if (loaded := self._loaded) is not None:
            state = replace(loaded.state, reshards=fields["_reshards"], plan_state=plan.saved(position))
            loaded = replace(loaded, state=state)
            fields["_phase"] = loaded if running is None else replace(running, loaded=loaded)
        vars(self).update(fields)

    def _present_plan(self, loader: LoaderArguments) -> LoaderPlan:
        return self.source.plan(loader, self._start(loader)) if self.running is None else self.running.plan

    # Ranks.

    def _follow_ranks(self, loader: LoaderArguments) -> None:
        if self.running is None:
            self.source.follow_ranks(loader)

    @property
    def is_of_one_rank(self) -> bool:
        """Whether a state is this process's alone."""
        has_others = self.source.is_collective or (self.ledger is not None and self.source.kind == "stream")
        return self.source.share is None and not has_others

    def deal_out(self, loader: LoaderArguments, asked: RankShare) -> None:
        """Deliver this rank's share of the microbatches; see ``DataLoader.deal_out``.

        Raises:
            ConfigurationError: Samples would be lost, or come again.
            RankMismatchError: Ranks have datasets of other lengths.
            StateMismatchError: The state that was loaded before is of another number of ranks.
        """
        mesh = self.source.mesh
        if mesh is not None and asked[:2] != (mesh.num_dp_ranks, mesh.dp_rank):
            expected = f"rank {mesh.dp_rank} of {mesh.num_dp_ranks}, as the loader's mesh says, or no call"
            raise ConfigurationError("deal_out", f"<rank {asked.rank} of {asked.num_ranks}>", expected)
        if asked.num_ranks == 1:
            return
        begun = None
        if not isinstance(self._phase, Fresh):
            epoch, step = self.position(loader)
            begun = f"a loader at microbatch {step} of epoch {epoch}"
        share = self.source.deal_out(loader, asked, begun=begun)
        if share is None or share == self.source.share:
            return
        self._adopt(loader, self._agreed_state(loader), share)

    def _agreed_state(self, loader: LoaderArguments) -> LoaderState:
        own = replace(self.own_state(loader), dataset=self.source.drawn_order(loader))
        return agreed_state(gather((own, loader.seed is not None)))

    def _adopt(self, loader: LoaderArguments, agreed: LoaderState, share: RankShare | None) -> None:
        self.source.adopt_order(loader, agreed, Acceptance())
        if self._loaded is None:
            sharing = None if share is None else share.sharing
            self.go_to(loader, replace(state_at_epoch(agreed, 0), sharing=sharing), is_untouched=True)
        check_share(self.state(loader), share)
        self.source.share = share

    def join_mesh(self, loader: LoaderArguments, mesh: MeshRanks) -> None:
        """Deliver what a device mesh says, from the first iteration on; a collective.

        Raises:
            ConfigurationError: The loader was given another rank, or ranks have different seeds.
            RankMismatchError: Ranks have datasets of other lengths.
        """
        if loader.dp_rank not in (None, mesh.dp_rank):
            raise ConfigurationError("dp_rank", loader.dp_rank, f"{mesh.dp_rank}, as the mesh says, or None")
        self.source.join_mesh(loader, mesh)
        dealt = None
        if mesh.num_dp_ranks > 1 and rank_in(loader.dataset) is None:  # else the dataset is this rank's part
            dealt = self.source.deal_out(loader, RankShare(mesh.num_dp_ranks, mesh.dp_rank), begun=None)
        if self.source.own_seed(loader, None) is not None:
            return  # a stream's, which all ranks give it
        agreed = self._agreed_state(loader)
        if dealt is not None or (self.source.kind == "sampler" and mesh.num_dp_ranks == 1):
            self._adopt(loader, agreed, dealt)
        self._drawn_seed = agreed.seed

    @property
    def has_own_workers(self) -> bool:
        """Whether worker processes, if there are any, are this rank's own."""
        return self._shared is None or self._shared.is_first

    def share_workers(self, loader: LoaderArguments) -> None:
        """Share worker processes with the ranks of a mesh that get the same, where they share a machine; a collective."""
        mesh = self.source.mesh
        if mesh is not None and can_start_workers():
            from fkat_data.worker.process.meeting import meet  # noqa: PLC0415 - it imports what Windows does not have

            has_processes = loader.num_workers > 0 and loader.workers == "processes"
            self._shared = meet(mesh, is_wanted=loader.share_workers and has_processes and self.ledger is None)
            if self._shared is not None:
                on_collected(self, self._shared.close, at_exit=self._shared.is_first)

    def of_each_rank(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the states of ranks whose data differ, from those of all ranks of the job."""
        return states if self.source.mesh is None else self.source.mesh.one_of_each(states)

    def _agreement_of(self, identity: Identity, plan: LoaderPlan) -> RankAgreement | None:
        """Return what compares the ranks that get the same; None: no other rank does."""
        mesh = self.source.mesh
        if mesh is None or not mesh.has_replicas:
            return None
        if self._agreement is None:
            self._agreement = rank_agreement(mesh.replicas, None, identity, plan)
        else:
            self._agreement.follow(identity, plan)
        return self._agreement

    def check_parts(self, loader: LoaderArguments, num_ranks: int, rank: int) -> None:
        """Prepare the loader's parts for accelerate, which makes a rank's loader of them.

        A shuffle gets the seed that ``deal_out`` gives it, and the log says what the other loader does not have.

        Raises:
            ConfigurationError: The parts are this rank's already, or the loader has a loaded position.
        """
        share = self.source.share
        found = self.source.parts_refusal(loader) if num_ranks > 1 else None
        epoch, step = self.position(loader)
        if found is None and share is not None and share.num_ranks != num_ranks:
            found = f"a loader that is dealt out to {share.num_ranks} ranks, to deal out to {num_ranks}"
        elif found is None and self._loaded is not None and step:
            found = f"a loader with a loaded position, microbatch {step} of epoch {epoch}, which it would lose"
        if found is not None:
            expected = "accelerator.prepare(loader), which returns this loader and keeps what it is"
            raise ConfigurationError("prepare_data_loader", found, expected)
        if num_ranks > 1 and isinstance(loader.sampler, EpochShuffle):
            loader.sampler.seed = gather(self.seed(loader))[0]
        _logger.warning(
            "accelerate's prepare_data_loader makes another DataLoader of this one's parts. It delivers the samples of "
            "rank %d of %d in the same order, but without the position of this one, its device and, where it is torch's, its "
            "workers. accelerator.prepare(loader) keeps all of them, and loader.deal_out(%d, %d) does",
            *(rank, num_ranks, num_ranks, rank),
        )

    def num_in_last_round(self, loader: LoaderArguments) -> int:
        """Return the samples of an epoch's last batches on all ranks, without those that fill them up; 0: all are."""
        if self.source.share is None:
            return 0
        return self.source.num_in_last_round(loader, self._start(loader), self.next_epoch(loader))

    # Iterations.

    def iterator(self, loader: LoaderArguments) -> Iterator[Any]:
        """Begin an epoch, or the rest of one, in the program's loop or a framework's."""
        if self.framework_loop is not None:
            self._refuse_manual("accelerate, which takes microbatches ahead")
            begin, state = partial(self._begin_for_framework, loader), partial(self.own_state, loader)
            return self.framework_loop.microbatches(begin, state, self.num_in_last_round(loader))
        self._follow_ranks(loader)
        self.draw_as_torch_does(loader)
        return self.begin(loader)

    def _begin_for_framework(self, loader: LoaderArguments) -> Iterator[Any]:
        # No number is drawn from the program's generators: a run that resumes begins one iteration more.
        self.set_epoch(loader, self.next_epoch(loader))
        return self.begin(loader)

    def begin(self, loader: LoaderArguments) -> Iterator[Any]:
        """Begin an epoch, or the rest of one.

        Raises:
            ConfigurationError: The dataset cannot be sent to a worker, or an argument is invalid.
            StateMismatchError: The loaded state does not fit.
        """
        epoch, is_rest = None, False
        if self.ledger is not None:
            epoch = self.next_epoch(loader)
            is_rest = self.ledger.begin(epoch)
        if self.running is not None and self.running.made_with != self._settable(loader):
            self._leave_engine(loader, self.running)
        if (ordered := self.source.ordered_dataset(loader)) is not None:
            ordered.follow_epoch(self.next_epoch(loader))
        running = self.running
        if running is None:
            running = self._with_engine(loader)
        else:
            running = self._shipped_again(loader, running)
            epoch, step = self.position(loader)
            if (epoch, step - 1) == running.resumed:
                _logger.warning(
                    "the rest of epoch %d, in which a state was loaded, is skipped after one microbatch, and the next "
                    "epoch begins. To look at a microbatch, do so before load_state_dict(), or call take_back() afterwards",
                    epoch,
                )
        engine, plan, loaded = running.engine, running.plan, running.loaded
        begun = None if is_rest else plan.begin(engine.position)
        if begun is not None:
            engine.leave_for(begun)
        resumed = None if loaded is None or loaded.is_untouched else self.position(loader)
        begun_with = self.source.fingerprint(loader)
        made = partial(DataLoaderIterator, plan, engine)
        iterator = engine.iterate(made, loader, change_of(loader, lambda: engine.step), epoch)
        reference = weakref.ref(iterator)
        if is_rest:
            self._phase = replace(running, iterator=reference)
            return iterator
        self._phase = replace(running, loaded=None, begun_with=begun_with, iterator=reference, resumed=resumed)
        # Last of all: a call that is interrupted before is as good as none.
        plan.beginning = None
        return iterator

    def _leave_engine(self, loader: LoaderArguments, running: Running) -> None:
        """End an engine that was made with other arguments: the next epoch gets another one, with those of now."""
        if self.next_epoch(loader) != self.position(loader)[0]:
            running.engine.leave_early()
            running.engine.end_epoch()
        # Else it begins again, where it was loaded to: nothing was delivered since.
        epoch, step = self.position(loader)
        is_other_order = not step and running.made_with[0] != self._settable(loader)[0]
        state = self._start_of(loader, epoch) if is_other_order else self.own_state(loader)
        self.go_to(loader, state, is_untouched=not step)

    def _with_engine(self, loader: LoaderArguments) -> Running:
        loaded, source = self._loaded, self.source
        check_order(None if loaded is None else loaded.state, order_of(loader.dataset))
        source.check_begin(loader, None if loaded is None else loaded.state)
        if loaded is not None and not loaded.is_untouched:
            source.check_since_load(loader, loaded.state)
        start = self._start(loader)
        plan = source.plan(loader, start)
        commits = None
        if self.ledger is not None:
            commits = TicketedRank(self.ledger, source.dealt_ranks(loader)[1])
            if plan.num_strands is not None or source.ordered_dataset(loader) is not None:
                self._refuse_manual(
                    "a dataset whose microbatches its own iterator makes, or whose items change with the epoch"
                )
            if loader.worker_init_fn is not None and loader.num_workers:
                self._refuse_manual("worker_init_fn, since this process makes what was released again")
        num_workers = loader.num_workers if plan.num_strands is None else plan.num_strands
        keeps_dataset = bool(self._shipment.keeps_workers) or not num_workers
        engine = make_engine(
            loader,
            plan,
            seed=start.seed(),
            dp_rank=start.dp_rank,
            drop_last=source.drops_last(loader),
            keeps_dataset=keeps_dataset,
            is_startup_shared=source.can_share_startup(loader),
            agreement=self._agreement_of(Identity(start.seed(), start.dp_rank), plan),
            commits=commits,
            shared=self._shared,
        )
        if loaded is not None:
            engine.go_to(plan.read_state(source.for_engine(loader, loaded.state)))
        elif commits is not None:
            engine.go_to(ResumeState(plan.first()))  # what was released may come before the plan has begun
        running = Running(engine, plan, self._settable(loader), self._shipment.digest(loader, self.source), loaded)
        self._phase = running
        return running

    def _refuse_manual(self, reason: str) -> None:
        """Raise if the caller commits microbatches, which cannot be with ``reason``."""
        if self.ledger is not None:
            raise ConfigurationError("commit", "manual", f"'delivery', with {reason}")

    def _settable(self, loader: LoaderArguments) -> list[Any]:
        return settable_of(loader, is_cut_by_workers=self.source.is_cut_by_workers)

    def _shipped_again(self, loader: LoaderArguments, running: Running) -> Running:
        """Have new workers make the next epoch if they are to get the dataset as it is now."""
        shipped = self._shipment.changed(loader, self.source, running.shipped)
        if shipped is not None:
            running.engine.close()
            self._phase = running = replace(running, shipped=shipped)
        return running

    def provenance(self, loader: LoaderArguments) -> list[Provenance]:
        """Return what the last microbatch that the engine delivered was made of; see ``DataLoader.provenance``.

        Raises:
            ConfigurationError: None was delivered, or nothing says its samples.
        """
        running = self.running
        position = None if running is None else running.engine.before_last
        found = [] if running is None or position is None else running.plan.made_of(position)
        if not found:
            expected = "a microbatch that was just delivered, of a dataset with indices or a stream, in an order of the loader's"
            raise ConfigurationError("provenance", position, expected)
        location_of = partial(source_location_of, loader.dataset)
        return [each._replace(locations=[location_of(sample) for sample in each.samples]) for each in found]

    def statistics(self) -> LoaderStatistics:
        """Return what was done since the first iteration, or the newest loaded state."""
        return DataLoaderStatistics() if self.running is None else self.running.engine.statistics()

    def close(self) -> None:
        """End the workers; a new iteration starts them again."""
        if self.running is not None:
            self.running.engine.close()
        for successor in () if self._successors is None else self._successors.values():
            successor.close()

    # Copies, and what frameworks make of a loader.

    def copied(self, loader: LoaderArguments) -> tuple["LoaderSession", dict[str, Any]]:
        """Return the session of a copy of the loader, and what of the loader is another object in the copy.

        The copy begins at the start of the epoch, or at what was loaded.
        """
        found, others = copy.copy(self), dict[str, Any]()
        found.source, found._successors, found._newest_successor = copy.copy(self.source), None, None  # noqa: SLF001 - as below
        found._agreement = found._shared = None  # noqa: SLF001 - as below
        if (running := self.running) is not None:
            state, others = self.source.copied_state(running.plan, self._whole_state(loader), running.engine.position)
            found._phase = Fresh() if state is None else Loaded(state, state.step == 0)  # noqa: SLF001 - of this class
        if self.ledger is not None:
            found.ledger = self.ledger.of_copy(is_at_load=isinstance(self._phase, Loaded))
        if self.framework_loop is not None:
            found.framework_loop = self.framework_loop.copy()  # its position is another from now on
        return found, others

    def after_copy(self, loader: LoaderArguments) -> None:
        """Set the samplers of a copy that has its own: a ``set_epoch`` may follow before its first epoch begins."""
        if (loaded := self._loaded) is not None:
            state = self.source.with_samplers_set(loader, loaded.state)
            self._phase = replace(loaded, state=state)

    def followed_by(self, loader: LoaderArguments, successor: Any) -> Any:
        """Note a loader that Lightning has made of this session's; return the newest one before it."""
        before = self._newest_successor or loader
        self._successors = WeakTable() if self._successors is None else self._successors
        self._successors[id(successor)] = successor
        self._newest_successor = successor
        return before

    def succeed(self, loader: LoaderArguments, before: "LoaderSession", original: LoaderArguments) -> None:
        """Go on where a loader stands that Lightning makes this one of: in its next epoch, or at its loaded state.

        Args:
            loader: This session's loader.
            before: The session of that loader.
            original: That loader.
        """
        before._refuse_manual("Lightning, which takes microbatches ahead")  # noqa: SLF001 - of this class
        loaded, step = before._loaded, before.position(original)[1]  # noqa: SLF001 - of this class, like the next one
        self._drawn_seed, self._shipment = before._drawn_seed, before._shipment  # noqa: SLF001 - as above
        self._accepted, self._reshards = before._accepted, before._reshards  # noqa: SLF001 - as above
        self._is_of_lightning = True
        if loaded is not None and step:
            # It may be the state of a rank whose sampler Lightning brings only now.
            self._resume(loader, self.source.own_part(loader, loaded.state.plain(), Acceptance()))
        elif epoch := before.next_epoch(original):
            state = self.source.successor_state(loader, self._start(loader), self.own_state(loader), epoch)
            if state is not None:
                self.go_to(loader, state, is_untouched=True)

    def deliver_to(self, loader: LoaderArguments, device: torch.device) -> None:
        """Deliver to a device from the next microbatch on."""
        if self.running is not None:
            self.go_to(loader, self._whole_state(loader))
        loader.device = device

    def follow_fabric(self, loader: LoaderArguments) -> None:
        """Tell the samplers the epoch that comes: Fabric counts from 0 again in each process, and saves as all ranks."""
        self.source.is_collective = self.source.has_ranks(loader)
        tell_epoch(samplers_of(loader), self.next_epoch(loader))

"""Where the microbatches of a DataLoader come from: what each kind of dataset and order has to say to its session."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler

from fkat_data.errors import ConfigurationError, StateMismatchError, arguments
from fkat_data.errors.acceptance import Acceptance
from fkat_data.errors.wording import counted
from fkat_data.loaders.engine_settings import size_of_batches
from fkat_data.loaders.loader_arguments import LoaderArguments, samplers_of
from fkat_data.loaders.loader_plan import LoaderPlan
from fkat_data.loaders.loader_state import LoaderState, PlanKind, checked_loader_state, entries_of
from fkat_data.loaders.rank_share import RankShare
from fkat_data.loaders.rank_states import Layout, check_saver, check_share, is_of_other_size, own_state, state_at_epoch
from fkat_data.plan.position import Reshard
from fkat_data.runtime.distributed import rank_and_world_size
from fkat_data.runtime.mesh import MeshRanks
from fkat_data.worker.fingerprints import check_files, numbers_of_files
from fkat_data.worker.windows import version_of


class EpochStart(NamedTuple):
    """What the plan of a DataLoader's next epochs begins with.

    Attributes:
        seed: Returns the loader's seed, which is drawn now if none is known.
        dp_rank: Its data-parallel rank.
        reshards: Where the number of ranks has changed, in an epoch that is not over.
        state: The state that was loaded, and that no iteration has begun yet; None: there is none.
        leaves_empty_rest: Whether a loaded position with nothing behind it is where the next epoch begins.
    """

    seed: Callable[[], int]
    dp_rank: int
    reshards: tuple[Reshard, ...]
    state: LoaderState | None
    leaves_empty_rest: bool


class SampleSource(ABC):
    """The dataset and the order of a DataLoader, by their kind.

    It is chosen once, from the arguments, which a program may set later: so each method gets the loader.
    """

    kind: PlanKind = "sampler"
    """The field of a saved state that is the plan's."""
    draws_as_torch: bool = True
    """Whether to begin an iteration moves the program's generators as torch's class does."""
    takes_sampler: bool = False
    """Whether a sampler decides on the order."""
    is_shipped_to_threads: bool = False
    """Whether threads get a copy of the dataset, too."""
    is_cut_by_workers: bool = False
    """Whether workers group samples into batches."""
    acceptable_fields: tuple[str, ...] = ("files",)
    """The fields of a state that may be accepted where they differ."""

    def __init__(self) -> None:
        self.share: RankShare | None = None
        """What ``deal_out`` has given this rank of the batches; None: it has them all."""
        self.is_collective: bool = False
        """Whether a state is of all ranks, which have samplers or datasets of their own."""
        self.mesh: MeshRanks | None = None
        """Which ranks get the same, as a device mesh says; None: each rank has data of its own."""
        self.begun_lengths: Mapping[int, int] = {}
        """The samples of each epoch that was begun before files were appended."""
        self.begun_files: Sequence[int] | None = None
        """What the files were then, in numbers."""

    @abstractmethod
    def plan(self, loader: LoaderArguments, start: EpochStart) -> LoaderPlan:
        """Return a plan of the epochs from the next one on."""

    def fingerprint(self, loader: LoaderArguments) -> dict[str, Any]:
        """Return what a state must have to be loaded."""
        return {"batch_size": size_of_batches(loader), "drop_last": self.drops_last(loader)}

    def drops_last(self, loader: LoaderArguments) -> bool:
        """Return whether a last batch that is smaller is left out."""
        batches = loader.batch_sampler
        # As torch does, which takes an iterable dataset's batches without its sampler.
        is_sampled = self.takes_sampler and type(batches) is BatchSampler
        return bool(batches.drop_last if is_sampled else loader.drop_last)

    def can_share_startup(self, loader: LoaderArguments) -> bool:
        """Return whether the caller's process may make microbatches until a worker has begun."""
        return False

    def own_seed(self, loader: LoaderArguments, drawn: int | None) -> int | None:
        """Return the seed of a loader that was given none: that which was drawn, if any, or the dataset's."""
        return drawn

    def shipped_dataset(self, loader: LoaderArguments) -> Any:
        """Return what of the dataset workers get: they get it again where it has changed."""
        return loader.dataset

    def rank(self, loader: LoaderArguments) -> int:
        """Return the rank of a loader that was given none: that of its sampler, or 0."""
        ranks = (getattr(sampler, "rank", None) for sampler in samplers_of(loader))
        return next((rank for rank in ranks if type(rank) is int), 0)

    def dealt_ranks(self, loader: LoaderArguments) -> tuple[int, int]:
        """Return the number of ranks that the samples are dealt out to, and which of them this one is."""
        layout = self.layout(loader)
        if layout is not None:
            return layout.num_ranks, layout.rank
        saver = self.saver(loader)
        return 1, 0 if saver is None else saver[0]

    def follow_ranks(self, loader: LoaderArguments) -> None:
        """Learn this process's rank, if torch.distributed is initialised by now: no iteration has begun."""

    def ordered_dataset(self, loader: LoaderArguments) -> Any:
        """Return the dataset that decides on the order by a seed and an epoch; None: none does."""

    def check_begin(self, loader: LoaderArguments, state: LoaderState | None) -> None:
        """Check, before the first iteration, that ranks share one order, and that a loaded state is of the same kind.

        Raises:
            ConfigurationError: A rank's dataset drew an order of its own.
            StateMismatchError: The order is of another kind.
        """

    def check_since_load(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Check that nothing was set since a state was loaded that would cut the rest of its epoch in another way.

        Raises:
            StateMismatchError: Something was.
        """
        hint = "set it before load_state_dict(), or once an iteration has begun: it counts from the next one"
        present = size_of_batches(loader)
        if is_of_other_size(state, present):
            raise StateMismatchError("batch_size", state.batch_size, present, hint)
        if state.step and state.drop_last != self.drops_last(loader):
            raise StateMismatchError("drop_last", state.drop_last, self.drops_last(loader), hint)

    def has_ranks(self, loader: LoaderArguments) -> bool:
        """Return whether a sampler or the dataset knows which samples are this rank's."""
        return False

    @property
    def own_rank(self) -> tuple[int, int]:
        """Which of the ranks this one is whose data differ, and how many there are."""
        return rank_and_world_size() if self.mesh is None else (self.mesh.dp_rank, self.mesh.num_dp_ranks)

    def join_mesh(self, loader: LoaderArguments, mesh: MeshRanks) -> None:
        """Take over which ranks get the same; before the first iteration.

        Raises:
            ConfigurationError: A sampler or the dataset is another rank's.
        """
        self.mesh = mesh

    def has_ranks_in_step(self, loader: LoaderArguments) -> bool:
        """Return whether several ranks have parts of one order, so that they change it together."""
        return self.share is not None or self.mesh is not None or self.has_ranks(loader)

    @abstractmethod
    def deal_out(self, loader: LoaderArguments, share: RankShare, *, begun: str | None) -> RankShare | None:
        """Return what a rank is to get of the batches; None: each rank has its own already.

        Args:
            loader: The loader.
            share: What ``deal_out`` was asked for.
            begun: Where the loader is, in words; None: it was neither iterated nor loaded.

        Raises:
            ConfigurationError: Samples would be lost, or come again.
        """

    def parts_refusal(self, loader: LoaderArguments) -> str | None:
        """Return why accelerate must not make a loader for each of several ranks of this one's parts; None: it may."""

    def num_in_last_round(self, loader: LoaderArguments, start: EpochStart, epoch: int) -> int:
        """Return the samples of an epoch's last batches on all ranks, without those that fill them up; 0: all are."""
        return 0

    def loaded_state(
        self, loader: LoaderArguments, state_dict: Any, accept: Collection[str] = ()
    ) -> LoaderState | None:
        """Return where this rank goes on after a state; None: the dataset has its own position, and has gone there.

        Args:
            loader: The loader.
            state_dict: The state.
            accept: The fields that may differ.

        Raises:
            StateMismatchError: It does not fit; nothing has changed then.
            ConfigurationError: ``accept`` names a field that may not differ.
        """
        acceptance = Acceptance(accept, self.acceptable_fields)
        loaded = self.own_part(loader, state_dict, acceptance)
        self.adopt_order(loader, loaded, acceptance)
        loaded = replace(loaded, accepted=acceptance.after(loaded.accepted, loaded.epoch, loaded.step))
        return self.with_samplers_set(loader, loaded)

    def own_part(self, loader: LoaderArguments, state_dict: Any, acceptance: Acceptance) -> LoaderState:
        """Return where this rank goes on after a state of its own, or of any number of ranks.

        Args:
            loader: The loader.
            state_dict: The state.
            acceptance: What may differ.

        Raises:
            StateMismatchError: It is no such state, or does not say what other ranks had left.
        """
        layout = self.layout(loader)
        own = own_state(state_dict, layout, partial(self._checked, loader, layout, acceptance), *self.own_rank)
        if layout is None and entries_of(state_dict) is None:
            check_saver(own, self.saver(loader), is_iterable=self.kind == "strands")
        check_share(own, self.share)
        return own

    def _checked(
        self, loader: LoaderArguments, layout: Layout | None, acceptance: Acceptance, state: object
    ) -> LoaderState:
        """Return one rank's state after a look at each field."""
        checked = checked_loader_state(state, self.fingerprint(loader), loader.seed, self.kind, acceptance)
        size = size_of_batches(loader)
        kind = "distributed" if layout is not None and layout.dealt_by == "sampler" else "num_samples"
        is_known = layout is not None and kind in checked.sampler
        if is_of_other_size(checked, size) and not is_known:
            hint = "finish the epoch in batches of that size: only its dataset or its sampler knows what is left of it"
            raise StateMismatchError("batch_size", checked.batch_size, size, hint)
        return checked

    def layout(self, loader: LoaderArguments) -> Layout | None:
        """Return the ranks that the samples are dealt out to; None: nothing says what another rank has."""

    def saver(self, loader: LoaderArguments) -> tuple[int, int | None] | None:
        """Return this rank, and of how many, if no other one can go on with its state: 0 of 1 where it has no rank.

        None where the state says by itself which ranks can load it.
        """

    def drawn_order(self, loader: LoaderArguments) -> dict[str, Any] | None:
        """Return the state of a dataset that drew the seed of its order; None: of any other."""
        ordered = self.ordered_dataset(loader)
        return ordered.state_dict() if ordered is not None and ordered.is_seed_drawn else None

    def with_dataset(self, loader: LoaderArguments, state: LoaderState) -> LoaderState:
        """Return a state that says what of the dataset its position depends on."""
        saver, files, drawn = self.saver(loader), numbers_of_files(loader.dataset), self.drawn_order(loader)
        return replace(
            state,
            dataset=state.dataset if drawn is None else drawn,
            files=state.files if files is None or state.epoch in state.begun_lengths else list(files),
            saved_by=state.saved_by if saver is None or saver == (0, 1) else list(saver),
            **self._dealing_fields(loader),
        )

    def _dealing_fields(self, loader: LoaderArguments) -> dict[str, int]:
        """Return what a ``LoaderState`` says of the ranks that a dataset or a batch sampler deals itself out to."""
        return {}

    def adopt_order(self, loader: LoaderArguments, state: LoaderState, acceptance: Acceptance) -> None:
        """Have the dataset give the order of a state.

        Args:
            loader: The loader.
            state: The state.
            acceptance: What may differ.

        Raises:
            StateMismatchError: It cannot, the state does not say which order that is, or a file has changed since.
        """
        files = state.files if state.step and not state.begun_lengths else None
        check_files(files, loader.dataset, acceptance, self._price_of_files(loader, state))
        ordered, is_drawn = self.ordered_dataset(loader), state.dataset is not None
        if is_drawn and ordered is not None:
            ordered.load_state_dict(state.dataset)
        elif is_drawn or (ordered is not None and ordered.is_seed_drawn):
            saved, present = ("<a drawn seed>" if has else "<none>" for has in (is_drawn, ordered is not None))
            hint = "the dataset determines the order: make it with the arguments and seeds of the run that saved"
            raise StateMismatchError("dataset", saved, present, hint)

    def _price_of_files(self, loader: LoaderArguments, state: LoaderState) -> str:
        """Return what it costs to go on with other files, in words."""
        number = counted(state.step, "microbatch")
        if self.kind == "strands" or self.ordered_dataset(loader) is not None:
            return (
                f"each rank goes on behind the {number} of the present data that stand where those stood that it had: what other "
                f"samples are in these is lost, or comes again, up to {number} on each rank"
            )
        return (
            f"samples keep their numbers: those of the {number} that each rank had do not come again, and the rest is read "
            "from the present files; no number is lost or comes again, whatever sample has it now"
        )

    def with_samplers_set(self, loader: LoaderArguments, state: LoaderState) -> LoaderState:
        """Set samplers of the user's to what a state at an epoch's start says: a ``set_epoch`` may follow before that begins.

        Returns:
            The state, with what is left for the plan that begins with it.
        """
        return state

    def go_to(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Put the dataset, if it has a position of its own, where a state says."""

    def for_engine(self, loader: LoaderArguments, state: LoaderState) -> LoaderState:
        """Return what of a loaded state the plan of a new engine reads."""
        return state

    def after_load(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Tell samplers that Lightning has brought which epoch a loaded state has begun."""

    def is_over(self, loader: LoaderArguments, start: EpochStart) -> bool:
        """Return whether the loaded state has nothing left of its epoch, where that is known before it is begun."""
        return False

    def is_free_of_states(self, loader: LoaderArguments, start: EpochStart) -> bool:
        """Return whether an epoch's order depends on nothing but the seed, the epoch, and ``set_epoch()``."""
        return False

    def check_jump(self, loader: LoaderArguments, start: EpochStart, epoch: int, *, is_running: bool) -> None:
        """Check that the next iteration can be of an epoch that is not the next one.

        Raises:
            ConfigurationError: Its order depends on a seed that is not known, or on the epochs before.
        """

    @abstractmethod
    def start_of(
        self, loader: LoaderArguments, start: EpochStart, own: LoaderState, running: LoaderPlan | None, epoch: int
    ) -> LoaderState | None:
        """Return the state at an epoch's start; None: the dataset itself has gone there.

        Args:
            loader: The loader.
            start: What a plan begins with.
            own: The loader's present position.
            running: The plan of the iteration under way; None: none is.
            epoch: The epoch.
        """

    def successor_state(
        self, loader: LoaderArguments, start: EpochStart, own: LoaderState, epoch: int
    ) -> LoaderState | None:
        """Return where a loader begins that Lightning makes of another one, in whose next epoch; None: as any new one."""

    def current_state(self, loader: LoaderArguments, start: EpochStart, state: LoaderState) -> LoaderState:
        """Return a loaded state at an epoch's start as the samplers are now: a program may have set them since."""
        return state

    def has_torchs_length(self, loader: LoaderArguments, reshards: tuple[Reshard, ...], *, is_fresh: bool) -> bool:
        """Return whether torch's class knows the microbatches of the next epoch."""
        return False

    def num_batches(
        self, loader: LoaderArguments, start: EpochStart, running: LoaderPlan | None, epoch: int, step: int
    ) -> int:
        """Return the microbatches of an epoch that is not under way; raise TypeError where that is not known."""
        return (running or self.plan(loader, start)).num_batches(epoch)

    def made_at(
        self, loader: LoaderArguments, plan: LoaderPlan, step: int, epoch: int | None
    ) -> tuple[int, int, dict[int, list[Any]]]:
        """Return epoch and step of a microbatch, and each rank's samples of it.

        Args:
            loader: The loader.
            plan: Its plan.
            step: The step of the epoch; or of the whole run, if no epoch is given.
            epoch: The epoch.

        Raises:
            ConfigurationError: There is no such step, or nothing says its samples.
        """
        number, asked = 0 if epoch is None else arguments.integer("epoch", epoch, minimum=0), step
        while not (found := self._made_in(loader, plan, number, step)):
            num_steps = self._num_steps(loader, plan, number)
            if epoch is not None or not num_steps:
                raise ConfigurationError("step", asked, f"a step of epoch {number}, less than {num_steps}")
            step, number = step - num_steps, number + 1
        return number, step, found

    def _made_in(self, loader: LoaderArguments, plan: LoaderPlan, epoch: int, step: int) -> dict[int, list[Any]]:
        return plan.made_at(epoch, step)

    def _num_steps(self, loader: LoaderArguments, plan: LoaderPlan, epoch: int) -> int:
        return plan.num_batches(epoch)

    def copied_state(
        self, plan: LoaderPlan, own: LoaderState, position: Any
    ) -> tuple[LoaderState | None, dict[str, Any]]:
        """Return where a copy of a loader that is iterated begins, and what of the loader is another object in the copy.

        Args:
            plan: The plan of the iteration under way.
            own: The loader's present state.
            position: The position of its engine.
        """
        return plan.epoch_again(own), {}


def window_fingerprint(loader: LoaderArguments) -> dict[str, Any]:
    """Return what a state must have of the windows that rows are made of."""
    return {"window_size": loader.window_size, "window_fn": version_of(loader.window_functions)}


def start_of_order(state: LoaderState, epoch: int, sampler: Mapping[str, Any]) -> LoaderState:
    """Return the state of the same loader at an epoch's start, with what its plan says of that."""
    return state_at_epoch(state, epoch).with_sampler(sampler)

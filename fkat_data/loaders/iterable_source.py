"""The sample sources of iterable datasets: a strand for each worker, whose microbatches or rows come in turn."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fkat_data.errors import ConfigurationError, StateMismatchError, arguments
from fkat_data.errors.acceptance import Acceptance
from fkat_data.loaders.loader_arguments import LoaderArguments
from fkat_data.loaders.loader_plan import LoaderPlan
from fkat_data.loaders.loader_state import LoaderState, PlanKind, entries_of
from fkat_data.loaders.rank_share import RankShare
from fkat_data.loaders.rank_states import state_at_epoch
from fkat_data.loaders.sample_source import EpochStart, SampleSource, window_fingerprint
from fkat_data.loaders.shortest_rank import ShortestRank, ShortestRankOfJob
from fkat_data.loaders.strand_plan import StrandPlan, StrandRanks, own_strands
from fkat_data.plan.position import Reshard
from fkat_data.runtime.distributed import rank_and_world_size

#: What a state says of strands that a dataset counts over all ranks.
_STRAND_FIELDS = ("strand_numbers", "strand_ranks", "all_strands", "strands_per_rank", "taken_over")


class IterableSource(SampleSource):
    """Strands of an iterable dataset, whose samples each worker iterates by itself; each rank has its own part of them.

    Args:
        ends: Ends the epochs of all ranks together where microbatches are cut from rows of windows; None: none are cut.
    """

    kind: PlanKind = "strands"
    is_cut_by_workers: bool = True

    def __init__(self, ends: ShortestRankOfJob | None) -> None:
        super().__init__()
        self._ends = ends
        if ends is not None:
            self.acceptable_fields = ("files", "window_fn")

    def plan(self, loader: LoaderArguments, start: EpochStart) -> LoaderPlan:
        """Return a plan of the epochs from the next one on."""
        num_strands = loader.num_workers if start.state is None else int(start.state.plan_state["num_strands"])
        own_dataset = None if num_strands or loader.num_workers else loader.dataset
        fields = self._strand_fields(loader, start.state)
        return StrandPlan(num_strands, start.dp_rank, own_dataset, fields, shortest_rank=self._ends_of(loader))

    def _strand_fields(self, loader: LoaderArguments, state: LoaderState | None) -> dict[str, Any]:
        """Return what a state says of the strands of all ranks; nothing where the dataset does not count them."""
        return {}

    def _ends_of(self, loader: LoaderArguments) -> Callable[[], ShortestRank | None] | None:
        """Return what gives by what ranks ask one another whether all have a microbatch; None: they do not."""
        # How many rows a rank makes is its windows' affair: without windows, it is the dataset's.
        if self._ends is None or self._num_ranks <= 1:
            return None
        return partial(self._ends.get, has_rank=self._has_rank(loader))

    @property
    def _num_ranks(self) -> int:
        return rank_and_world_size()[1]

    def _has_rank(self, loader: LoaderArguments) -> bool:
        """Return whether the loader was given its rank."""
        return loader.dp_rank is not None or self.mesh is not None

    def fingerprint(self, loader: LoaderArguments) -> dict[str, Any]:
        """Return what a state must have to be loaded."""
        found = super().fingerprint(loader)
        return found if self._ends is None else found | window_fingerprint(loader)

    def deal_out(self, loader: LoaderArguments, share: RankShare, *, begun: str | None) -> RankShare | None:
        """Return None: each rank has its own part.

        Raises:
            ConfigurationError: Nothing says which samples are this rank's.
        """
        if not self._has_rank(loader):
            raise ConfigurationError(
                "dp_rank",
                None,
                "this process's rank, if the dataset yields only this rank's part: the loader does not "
                "divide an iterable dataset, so each rank would deliver all of its samples; or "
                "counts_workers_of_all_ranks = True on the dataset, and num_workers",
            )
        self.is_collective = True
        return None

    def parts_refusal(self, loader: LoaderArguments) -> str | None:
        """Return why accelerate must not make a loader for each of several ranks of this one's parts; None: it may."""
        return None if loader.dp_rank is None else "a loader of this rank's own part, which it would deal out again"

    def own_part(self, loader: LoaderArguments, state_dict: Any, acceptance: Acceptance) -> LoaderState:
        """Return where this rank goes on after a state; see ``SampleSource``.

        Raises:
            StateMismatchError: It is no such state, or does not say what other ranks had left.
        """
        state = super().own_part(loader, state_dict, acceptance)
        own = state.plan_state
        if "strand_numbers" in own and own["all_strands"] != own["num_strands"]:
            hint = (
                "set counts_workers_of_all_ranks = True on the dataset, and pass num_workers, as in the run that saved"
            )
            raise StateMismatchError("strand_numbers", own["strand_numbers"], "<all strands>", hint)
        return state

    def saver(self, loader: LoaderArguments) -> tuple[int, int | None] | None:
        """Return this rank, and of how many: each iterates a dataset that only it knows the state of."""
        return self.own_rank if loader.dp_rank is None else (loader.dp_rank, None)

    def start_of(
        self, loader: LoaderArguments, start: EpochStart, own: LoaderState, running: LoaderPlan | None, epoch: int
    ) -> LoaderState:
        """Return the state at an epoch's start; see ``SampleSource``."""
        # As the next epoch does: from where the dataset was at the start of the one under way.
        begun = own if running is None else running.epoch_again(own)
        snapshots = None if begun.step else [strand["snapshot"] for strand in begun.strands]
        return state_at_epoch(own, epoch, snapshots)

    def has_torchs_length(self, loader: LoaderArguments, reshards: tuple[Reshard, ...], *, is_fresh: bool) -> bool:
        """Return True where the dataset says it; how many rows windows have is not known."""
        return self._ends is None


class CountedIterableSource(IterableSource):
    """Strands that a dataset counts over all ranks, so that any number of ranks takes them over."""

    def __init__(self, ends: ShortestRankOfJob | None) -> None:
        super().__init__(ends)
        self._ranks = StrandRanks()

    @property
    def _num_ranks(self) -> int:
        return max(self._ranks.num_ranks, super()._num_ranks)

    def _has_rank(self, loader: LoaderArguments) -> bool:
        return True

    def _strand_fields(self, loader: LoaderArguments, state: LoaderState | None) -> dict[str, Any]:
        if state is not None:
            return {name: state.plan_state[name] for name in _STRAND_FIELDS if name in state.plan_state}
        num_strands = self._ranks.num_ranks * loader.num_workers
        return {
            "strand_numbers": self._ranks.numbers(num_strands),
            "strand_ranks": [*self._ranks],
            "all_strands": num_strands,
            "strands_per_rank": loader.num_workers,
        }

    def rank(self, loader: LoaderArguments) -> int:
        """Return the rank that ``deal_out`` was called with."""
        return self._ranks.rank

    def deal_out(self, loader: LoaderArguments, share: RankShare, *, begun: str | None) -> RankShare | None:
        """Count strands over these ranks; return None.

        Raises:
            ConfigurationError: The loader was iterated or loaded before.
        """
        if self._ranks == (share.num_ranks, share.rank):
            return None
        if begun is not None:
            raise ConfigurationError("deal_out", begun, "a loader that was neither iterated nor loaded")
        self._ranks = StrandRanks(arguments.integer("num_ranks", share.num_ranks, minimum=1), share.rank)
        self.is_collective = True
        return None

    def own_part(self, loader: LoaderArguments, state_dict: Any, acceptance: Acceptance) -> LoaderState:
        """Return where this rank goes on after a state; see ``SampleSource``.

        Raises:
            StateMismatchError: It is no such state, or does not have all strands.
        """
        states = [self._checked(loader, None, acceptance, each) for each in entries_of(state_dict) or [state_dict]]
        return own_strands(states, self._ranks)

    def saver(self, loader: LoaderArguments) -> tuple[int, int | None] | None:
        """Return None: a state says by itself which strands it has."""

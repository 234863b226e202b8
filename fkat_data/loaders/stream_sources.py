"""The sample sources of streams, which plan their own batches for all ranks: those batches, or windows of their samples."""

from collections.abc import Callable, Collection
from typing import Any, cast

from fkat_data.errors.acceptance import Acceptance
from fkat_data.loaders.engine_settings import adopt_batch_size
from fkat_data.loaders.index_source import IndexWindowSource
from fkat_data.loaders.loader_arguments import LoaderArguments
from fkat_data.loaders.loader_plan import LoaderPlan
from fkat_data.loaders.loader_state import LoaderState, PlanKind, checked_loader_state
from fkat_data.loaders.rank_share import RankShare
from fkat_data.loaders.sample_source import EpochStart, SampleSource
from fkat_data.loaders.window_plan import WindowOrder
from fkat_data.runtime.mesh import MeshRanks
from fkat_data.types import StreamSource, stream_source_of


def _stream_of(loader: LoaderArguments) -> StreamSource[LoaderPlan, WindowOrder]:
    """Return what the loader's dataset offers: a copy of the loader may have another dataset."""
    return cast("StreamSource[LoaderPlan, WindowOrder]", stream_source_of(loader.dataset))


_REFUSAL = "a loader of a stream, whose batches are this rank's already"


class StreamBatchSource(SampleSource):
    """The batches that a stream plans; its position is in the dataset.

    Args:
        loader: The loader, whose batch size the stream takes over.
    """

    kind: PlanKind = "stream"
    is_cut_by_workers: bool = True
    draws_as_torch: bool = False
    is_shipped_to_threads: bool = True

    def __init__(self, loader: LoaderArguments) -> None:
        super().__init__()
        adopt_batch_size(_stream_of(loader), loader.batch_size, in_order=loader.in_order)
        self.acceptable_fields = _stream_of(loader).acceptable_fields

    def plan(self, loader: LoaderArguments, start: EpochStart) -> LoaderPlan:
        """Return a plan of the epochs from the next one on."""
        return _stream_of(loader).plan(
            start.dp_rank,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            drop_last=loader.drop_last,
            leaves_empty_rest=start.leaves_empty_rest,
        )

    def can_share_startup(self, loader: LoaderArguments) -> bool:
        """Return whether no thread fetches what is read: this process would wait for it, and keep what it raises."""
        return not _stream_of(loader).fetches_shards

    def fingerprint(self, loader: LoaderArguments) -> dict[str, Any]:
        """Return what a state must have to be loaded: the stream's own knows which batch sizes it may go on with."""
        return {"drop_last": loader.drop_last}

    def join_mesh(self, loader: LoaderArguments, mesh: MeshRanks) -> None:
        """Have the stream deal its samples out to the ranks of a mesh; before the first iteration."""
        super().join_mesh(loader, mesh)
        _stream_of(loader).set_ranks(mesh.num_dp_ranks, mesh.dp_rank)

    def own_seed(self, loader: LoaderArguments, drawn: int | None) -> int | None:
        """Return the stream's seed."""
        return _stream_of(loader).seed

    def shipped_dataset(self, loader: LoaderArguments) -> Any:
        """Return what of the stream workers get."""
        return _stream_of(loader).shipment

    def dealt_ranks(self, loader: LoaderArguments) -> tuple[int, int]:
        """Return the number of ranks that the stream deals out to, and which of them this one is."""
        return _stream_of(loader).ranks()

    def check_since_load(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Return: the stream checks what it loads."""

    def has_ranks_in_step(self, loader: LoaderArguments) -> bool:
        """Return True: a stream's ranks have one order."""
        return True

    def deal_out(self, loader: LoaderArguments, share: RankShare, *, begun: str | None) -> RankShare | None:
        """Return None: a stream knows its ranks."""

    def parts_refusal(self, loader: LoaderArguments) -> str | None:
        """Return why accelerate must not make a loader for each of several ranks of this one's parts."""
        return _REFUSAL

    def own_part(self, loader: LoaderArguments, state_dict: Any, acceptance: Acceptance) -> LoaderState:
        """Return a state as it is: that of a stream is of all ranks."""
        return checked_loader_state(state_dict, self.fingerprint(loader), loader.seed, self.kind, acceptance)

    def loaded_state(
        self, loader: LoaderArguments, state_dict: Any, accept: Collection[str] = ()
    ) -> LoaderState | None:
        """Go to a position of a stream, of a state of a loader or of the dataset's own form; return None.

        Raises:
            StateMismatchError: It does not fit.
        """
        saved = state_dict
        if "stream" in state_dict:
            saved = self.own_part(loader, state_dict, Acceptance()).plan_state["stream"]
        _stream_of(loader).load_state_dict(saved, accept)

    def go_to(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Put the dataset where a state says; None: the next epoch begins."""
        if (saved := state.plan_state["stream"]) is not None:
            _stream_of(loader).load_state_dict(saved)

    def is_free_of_states(self, loader: LoaderArguments, start: EpochStart) -> bool:
        """Return True: any epoch can come next."""
        return True

    def start_of(
        self, loader: LoaderArguments, start: EpochStart, own: LoaderState, running: LoaderPlan | None, epoch: int
    ) -> LoaderState | None:
        """Tell the stream which epoch comes next; return None."""
        _stream_of(loader).next_epoch = epoch

    def copied_state(
        self, plan: LoaderPlan, own: LoaderState, position: Any
    ) -> tuple[LoaderState | None, dict[str, Any]]:
        """Return that a copy of a loader that is iterated has another dataset, which begins the epoch under way."""
        return None, {"dataset": cast("Any", plan).copied_dataset(position)}


class StreamWindowSource(IndexWindowSource):
    """Windows of a stream's samples: to all but the plan, of a dataset with indices, dealt out to the stream's ranks.

    Args:
        loader: The loader.
    """

    takes_sampler: bool = False
    draws_as_torch: bool = False
    is_shipped_to_threads: bool = True

    def __init__(self, loader: LoaderArguments) -> None:
        super().__init__()
        self._order(loader, lambda: 0)

    def _order(self, loader: LoaderArguments, seed: Callable[[], int]) -> WindowOrder:
        return _stream_of(loader).windows(loader.window_size, is_read_here=not loader.num_workers)

    def fingerprint(self, loader: LoaderArguments) -> dict[str, Any]:
        """Return what a state must have to be loaded."""
        return {**super().fingerprint(loader), **_stream_of(loader).window_fingerprint()}

    def join_mesh(self, loader: LoaderArguments, mesh: MeshRanks) -> None:
        """Have the stream deal its windows out to the ranks of a mesh; before the first iteration."""
        super().join_mesh(loader, mesh)
        _stream_of(loader).set_ranks(mesh.num_dp_ranks, mesh.dp_rank)

    def own_seed(self, loader: LoaderArguments, drawn: int | None) -> int | None:
        """Return the seed that was drawn or loaded, or the stream's."""
        return _stream_of(loader).seed if drawn is None else drawn

    def shipped_dataset(self, loader: LoaderArguments) -> Any:
        """Return what of the stream workers get."""
        return _stream_of(loader).shipment

    def follow_ranks(self, loader: LoaderArguments) -> None:
        """Learn this process's rank, if torch.distributed is initialised by now: no iteration has begun."""
        num_ranks, rank = _stream_of(loader).ranks()
        self.share = RankShare(num_ranks, rank) if num_ranks > 1 else None

    def ordered_dataset(self, loader: LoaderArguments) -> Any:
        """Return None: the seed of a stream's order is in the plan's part of a state."""

    def _check_kind(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Return: a stream has one kind of order."""

    def deal_out(self, loader: LoaderArguments, share: RankShare, *, begun: str | None) -> RankShare | None:
        """Return None: a stream knows its ranks."""

    def parts_refusal(self, loader: LoaderArguments) -> str | None:
        """Return why accelerate must not make a loader for each of several ranks of this one's parts."""
        return _REFUSAL

    def saver(self, loader: LoaderArguments) -> tuple[int, int | None] | None:
        """Return None: a state is of any rank's."""

"""The sample sources of map-style datasets: batches of indices, or windows of them whose rows make the microbatches."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from torch.utils import data as torch_data
from torch.utils.data import ConcatDataset, Subset

from fkat_data.datasets.packed import PackedDataset
from fkat_data.datasets.token_budget import TokenBudgetBatchSampler
from fkat_data.datasets.views import MapDataset
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.acceptance import Acceptance
from fkat_data.loaders.computed_plan import (
    ComputedPlan,
    EpochShuffle,
    check_kind_of_order,
    is_computed,
    price_of_length,
)
from fkat_data.loaders.engine_settings import size_of_batches
from fkat_data.loaders.loader_arguments import LoaderArguments, outermost_sampler, samplers_of
from fkat_data.loaders.loader_plan import OTHER_LENGTH, IndexPlan, LoaderPlan
from fkat_data.loaders.loader_state import LoaderState, entries_of
from fkat_data.loaders.rank_share import RankShare
from fkat_data.loaders.rank_states import Layout
from fkat_data.loaders.reshards import distributed_sampler_of, rank_in
from fkat_data.loaders.sample_source import EpochStart, SampleSource, start_of_order, window_fingerprint
from fkat_data.loaders.sampler_plan import SamplerPlan
from fkat_data.loaders.sampler_states import FirstBatch, samplers_in, with_samplers_set
from fkat_data.loaders.shortest_rank import ShortestRankOfJob
from fkat_data.loaders.window_plan import WindowOrder, WindowPlan, order_of_windows
from fkat_data.plan.growth import log_growth
from fkat_data.plan.position import Reshard
from fkat_data.runtime.mesh import MeshRanks
from fkat_data.types import tell_epoch
from fkat_data.worker.fingerprints import SupportsFileDigests, has_appended
from fkat_data.worker.stacked import reads_items_into_batch

_MOST_VIEWS = 16  # a dataset may name itself


def seeded_order_below(dataset: object) -> Any:
    """Return the dataset that decides on the order, below views such as ``Subset`` and ``MapDataset``; None: none does.

    Its order follows from a seed and an epoch, both of which are in its state. Has ``follow_epoch`` and ``is_seed_drawn``.
    """
    for _ in range(_MOST_VIEWS):
        # Of the class: a view that passes attributes on is not the dataset.
        if dataset is None or hasattr(type(dataset), "follow_epoch"):
            return dataset
        dataset = getattr(dataset, "dataset", None)
    return None


def is_in_file_order(dataset: Any) -> bool:
    """Return whether a dataset's samples are those of its files, one file after the other; of other views, nothing says it."""
    if type(dataset) is ConcatDataset:
        return all(map(is_in_file_order, cast("Any", dataset).datasets))
    if type(dataset) is MapDataset:
        return is_in_file_order(dataset.dataset)
    return isinstance(dataset, SupportsFileDigests)


@contextmanager
def in_epoch(dataset: object, epoch: int) -> Generator[None]:
    """Have a dataset whose length follows the epoch be in another one for a while, unless the program sets it."""
    if not isinstance(dataset, PackedDataset):
        yield
        return
    before = dataset.epoch
    dataset.follow_epoch(epoch)
    try:
        yield
    finally:
        dataset.follow_epoch(before)


class IndexSource(SampleSource):
    """Batches of the indices that samplers give, or single indices."""

    takes_sampler: bool = True
    acceptable_fields: tuple[str, ...] = ("files", "num_samples")

    def __init__(self) -> None:
        super().__init__()
        self.first_batch = FirstBatch()
        """What the loader's first iteration has begun with."""

    def plan(self, loader: LoaderArguments, start: EpochStart) -> LoaderPlan:
        """Return a plan of the epochs from the next one on."""
        return self._index_plan(loader, start)

    def _first_plan(self, loader: LoaderArguments, start: EpochStart) -> IndexPlan:
        plan = self._index_plan(loader, start)
        if start.state is not None:
            plan.load_plan_state(start.state.epoch, start.state.sampler)
        return plan

    def _index_plan(self, loader: LoaderArguments, start: EpochStart) -> IndexPlan:
        dealing = self.dealing(loader)
        if is_computed(loader.sampler, loader.batch_sampler):
            dataset = dealing if isinstance(dealing, PackedDataset) else None
            reads_into_batch = loader.batch_sampler is not None and reads_items_into_batch(
                loader.dataset, loader.collate_fn
            )
            order = loader.sampler, loader.batch_sampler
            return ComputedPlan(
                *order,
                start.seed(),
                self.share,
                start.reshards,
                dataset,
                self.begun_lengths,
                reads_into_batch=reads_into_batch,
            )
        if any(each.exclusion is not None for each in start.reshards):
            hint = "go on with the order of the run that left them out: in order, or shuffle=True"
            raise StateMismatchError("resplits", "<with samples left out>", "<a sampler>", hint)
        return SamplerPlan(
            outermost_sampler(loader),
            start.seed(),
            start.dp_rank,
            # As torch, whose default is 2.
            most_ahead=max(1, loader.num_workers * (2 if loader.prefetch_factor is None else loader.prefetch_factor)),
            known=self.first_batch,
            share=self.share,
            reshards=start.reshards,
            dealt=dealing if isinstance(dealing, TokenBudgetBatchSampler) else None,
        )

    def can_share_startup(self, loader: LoaderArguments) -> bool:
        """Return whether a microbatch is a batch of indices, which any process makes."""
        return not self.is_cut_by_workers

    def rank(self, loader: LoaderArguments) -> int:
        """Return the rank of a loader that was given none: that of its share or its sampler, or 0."""
        return super().rank(loader) if self.share is None else self.share.rank

    def ordered_dataset(self, loader: LoaderArguments) -> Any:
        """Return the dataset that decides on the order by a seed and an epoch; None: none does."""
        return seeded_order_below(loader.dataset)

    def check_begin(self, loader: LoaderArguments, state: LoaderState | None) -> None:
        """Check, before the first iteration, that ranks share one order, and that a loaded state is of the same kind.

        Raises:
            ConfigurationError: This rank's dataset drew an order of its own.
            StateMismatchError: The order is of another kind.
        """
        num_ranks = max(getattr(sampler, "num_replicas", None) or 1 for sampler in (None, *samplers_of(loader)))
        if num_ranks > 1 and self.drawn_order(loader) is not None:
            expected = f"a dataset with a seed, the same on all {num_ranks} ranks: this one drew its own"
            raise ConfigurationError("dataset", loader.dataset, expected)
        if state is not None:
            # Not before: Lightning may give the loader another sampler after a load.
            self._check_kind(loader, state)

    def _check_kind(self, loader: LoaderArguments, state: LoaderState) -> None:
        check_kind_of_order(state, loader.sampler, loader.batch_sampler)

    def join_mesh(self, loader: LoaderArguments, mesh: MeshRanks) -> None:
        """Take over which ranks get the same; before the first iteration.

        Raises:
            ConfigurationError: A sampler or the dataset is another rank's.
        """
        super().join_mesh(loader, mesh)
        order, below = outermost_sampler(loader), self.ordered_dataset(loader)
        part = next(filter(_is_part, (order, below)), None)
        found = rank_in(order) or rank_in(loader.dataset) if part is None else (part.dp_rank, part.dp_size)
        if found is not None and (found[0] != mesh.dp_rank or found[1] not in (None, mesh.num_dp_ranks)):
            expected = f"a sampler or a dataset of rank {mesh.dp_rank} of {mesh.num_dp_ranks}, as the mesh says"
            raise ConfigurationError("mesh", f"<rank {found[0]} of {found[1]}>", expected)

    def deal_out(self, loader: LoaderArguments, share: RankShare, *, begun: str | None) -> RankShare | None:
        """Return what a rank is to get of the batches; None: each rank has its own already.

        Args:
            loader: The loader.
            share: What ``deal_out`` was asked for.
            begun: As for ``SampleSource``.

        Raises:
            ConfigurationError: The ranks cannot split a batch.
        """
        if self.has_ranks(loader):
            self.is_collective = True
            return None
        self._check_split(share)
        size = getattr(outermost_sampler(loader), "batch_size", None)
        if share.split_batches and (not isinstance(size, int) or size % share.num_ranks):
            raise ConfigurationError(
                "batch_size", size, f"a multiple of {share.num_ranks}, among which ranks split each batch"
            )
        return share

    def _check_split(self, share: RankShare) -> None:
        """Raise if what ranks are dealt out cannot be split."""

    def parts_refusal(self, loader: LoaderArguments) -> str | None:
        """Return why accelerate must not make a loader for each of several ranks of this one's parts; None: it may."""
        return "a loader of this rank's own part, which it would deal out again" if self.has_ranks(loader) else None

    def num_in_last_round(self, loader: LoaderArguments, start: EpochStart, epoch: int) -> int:
        """Return the samples of an epoch's last batches on all ranks, without those that fill them up; 0: all are."""
        return 0 if self.share is None else self._index_plan(loader, start).num_in_last_round(epoch)

    def own_part(self, loader: LoaderArguments, state_dict: Any, acceptance: Acceptance) -> LoaderState:
        """Return where this rank goes on after a state; see ``SampleSource``.

        Raises:
            StateMismatchError: It is no such state, or does not say what other ranks had left.
        """
        own = super().own_part(loader, state_dict, acceptance)
        dealing = self.dealing(loader)
        if isinstance(dealing, TokenBudgetBatchSampler) and own.reshards:
            # What is left follows from its state alone.
            dealing.for_rank(dealing.dp_size, dealing.dp_rank).load_state_dict(own.sampler["samplers"][-1])
        own = self._as_begun(loader, state_dict, own)
        return self._with_length(loader, own, acceptance) if "num_samples" in acceptance else own

    def _as_begun(self, loader: LoaderArguments, state_dict: Any, own: LoaderState) -> LoaderState:
        """Return a state of a dataset to which files were appended since with the samples of each epoch that was begun."""
        saved, dataset = own.sampler.get("num_samples"), loader.dataset
        if saved is None or not is_computed(loader.sampler, loader.batch_sampler) or not is_in_file_order(dataset):
            return own
        present = self._num_present(loader)
        if present < saved or not has_appended(own.files, dataset):
            return own
        positions = [position for reshard in own.reshards for position in reshard.positions]
        reached = [(position.epoch, position.step) for position in positions]
        of_ranks = entries_of(state_dict) or [state_dict]
        reached += [(each["epoch"], each["step"]) for each in of_ranks if each["sampler"].get("num_samples") == saved]
        last = max(epoch - (step == 0) for epoch, step in (*reached, (own.epoch, own.step)))
        log_growth("sample", present - saved, last)
        own = replace(own, begun_lengths=dict.fromkeys(range(own.epoch, last + 1), saved))
        return own if own.begun_lengths else own.with_sampler({**own.sampler, "num_samples": present})

    def _num_present(self, loader: LoaderArguments) -> int:
        return len(loader.sampler if loader.batch_sampler is None else loader.batch_sampler.sampler)

    def go_to(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Keep what the epochs of a state have that were begun before files were appended."""
        self.begun_lengths = state.begun_lengths
        self.begun_files = state.files if state.begun_lengths else None

    def check_since_load(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Check that nothing was set since a load that would cut the rest of the epoch in another way; see ``SampleSource``."""
        super().check_since_load(loader, state)
        self._with_length(loader, state, Acceptance())

    def _with_length(self, loader: LoaderArguments, state: LoaderState, acceptance: Acceptance) -> LoaderState:
        """Return a state whose epoch goes on over the present samples, if it is known what that costs.

        Raises:
            StateMismatchError: The dataset has another length, which is not accepted.
        """
        saved = state.sampler.get("num_samples")
        if saved is None or not is_computed(loader.sampler, loader.batch_sampler):
            return state
        present = self._num_present(loader)
        price = None if present == saved or saved in state.begun_lengths.values() else price_of_length(state, present)
        if price is None:
            return state  # where it differs, the plan raises
        acceptance.settle(StateMismatchError("num_samples", saved, present, OTHER_LENGTH), price)
        return state.with_sampler({**state.sampler, "num_samples": present})

    def layout(self, loader: LoaderArguments) -> Layout | None:
        """Return the ranks that the samples are dealt out to; None: nothing says what another rank has."""
        size = size_of_batches(loader)
        if self.share is not None:
            return Layout(size, self.share.num_ranks, self.share.rank, {"sharing": self.share.sharing})
        dealing = self.dealing(loader)
        if dealing is not None:
            fields, dealt_by = self._dealing_fields(loader), "order" if dealing.dp_size > 1 else None
            return Layout(size, dealing.dp_size, dealing.dp_rank, fields, dealt_by, has_seed=loader.seed is not None)
        sampler = distributed_sampler_of(outermost_sampler(loader))
        if sampler is not None:
            return Layout(size, sampler.num_replicas, sampler.rank, dealt_by="sampler")
        return None if self.has_ranks(loader) else Layout(size)

    def dealing(self, loader: LoaderArguments) -> PackedDataset | TokenBudgetBatchSampler | None:
        """Return what deals itself out to ranks, by arguments of its own: the dataset or the batch sampler."""
        if self.share is not None:
            return None
        below, order = self.ordered_dataset(loader), outermost_sampler(loader)
        if isinstance(order, TokenBudgetBatchSampler):
            return None if _is_part(below) else order
        if not isinstance(below, PackedDataset) or not is_computed(loader.sampler, loader.batch_sampler):
            return None
        # A view has to pass indices on as they are.
        dataset: Any = loader.dataset
        return below if type(dataset) is not Subset and len(dataset) == len(below) else None

    def has_ranks(self, loader: LoaderArguments) -> bool:
        """Return whether a sampler or the dataset knows which samples are this rank's."""
        samplers = samplers_of(loader)
        is_dealt = any(_is_part(each) for each in (*samplers, self.ordered_dataset(loader)))
        return is_dealt or any(rank_in(each) is not None for each in samplers)

    def saver(self, loader: LoaderArguments) -> tuple[int, int | None] | None:
        """Return this rank, and of how many, if no other one can go on with its state: 0 of 1 where it has no rank."""
        if self.layout(loader) is not None:
            return None
        below = self.ordered_dataset(loader)
        return rank_in(outermost_sampler(loader)) or ((below.dp_rank, below.dp_size) if _is_part(below) else None)

    def _dealing_fields(self, loader: LoaderArguments) -> dict[str, int]:
        """Return what a ``LoaderState`` says of the ranks that a dataset or a batch sampler deals itself out to."""
        ordered, dealing = self.ordered_dataset(loader), self.dealing(loader)
        ranks = {"dataset_ranks": ordered.dp_size} if isinstance(ordered, PackedDataset) else {}
        own = {} if dealing is None else {"dealt_ranks": dealing.dp_size, "dealt_rank": dealing.dp_rank}
        return {**ranks, **own}

    def adopt_order(self, loader: LoaderArguments, state: LoaderState, acceptance: Acceptance) -> None:
        """Have the dataset give the order of a state; see ``SampleSource``.

        Raises:
            StateMismatchError: It cannot, the state does not say which order that is, or a file has changed since; or the
                state's epoch was dealt out to other ranks than the dataset is.
        """
        ordered = self.ordered_dataset(loader)
        if isinstance(ordered, PackedDataset) and state.step:
            saved, present = 1 if state.dataset_ranks is None else state.dataset_ranks, ordered.dp_size
            if saved != present:
                hint = "go on with as many ranks as the epoch began with, or begin the next epoch"
                raise StateMismatchError("dataset_ranks", saved, present, hint)
        super().adopt_order(loader, state, acceptance)
        if isinstance(ordered, PackedDataset) and state.step:
            ordered.follow_epoch(state.epoch)  # what is left of it has a length

    def with_samplers_set(self, loader: LoaderArguments, state: LoaderState) -> LoaderState:
        """Set samplers of the user's to what a state at an epoch's start says; see ``SampleSource``."""
        begun = samplers_in(state.sampler)
        if begun:
            self.first_batch.note(state.epoch, begun)
        if state.step or not begun or is_computed(loader.sampler, loader.batch_sampler):
            return state
        drawn_from = self._drawn_from(loader)
        set_to = with_samplers_set(drawn_from, state.sampler, state.seed, state.epoch, self.first_batch)
        return state.with_sampler(set_to)

    def _drawn_from(self, loader: LoaderArguments) -> Any:
        """Return the outermost sampler that the plan draws from."""
        return outermost_sampler(loader)

    def for_engine(self, loader: LoaderArguments, state: LoaderState) -> LoaderState:
        """Return what of a loaded state the plan of a new engine reads.

        The length of the epoch before is not, if that of the next one may differ.
        """
        if state.step or not isinstance(self.ordered_dataset(loader), PackedDataset):
            return state
        return state.with_sampler({name: value for name, value in state.sampler.items() if name != "num_samples"})

    def after_load(self, loader: LoaderArguments, state: LoaderState) -> None:
        """Tell samplers that Lightning has brought which epoch a loaded state has begun.

        Lightning itself sets it after the first microbatch.
        """
        begun: Mapping[str, Any] = state.sampler.get("distributed", {}) if state.step else {}
        tell_epoch(samplers_of(loader), begun.get("epoch", state.epoch))

    def is_over(self, loader: LoaderArguments, start: EpochStart) -> bool:
        """Return whether the loaded state has nothing left of its epoch, where that is known before it is begun."""
        is_known = self.is_free_of_states(loader, start) or isinstance(self.dealing(loader), TokenBudgetBatchSampler)
        return is_known and start.state is not None and self._first_plan(loader, start).is_over(start.state)

    def is_free_of_states(self, loader: LoaderArguments, start: EpochStart) -> bool:
        """Return whether an epoch's order depends on nothing but the seed, the epoch, and ``set_epoch()``."""
        return not self._index_plan(loader, start).has_states

    def check_jump(self, loader: LoaderArguments, start: EpochStart, epoch: int, *, is_running: bool) -> None:
        """Check that the next iteration can be of an epoch that is not the next one.

        Raises:
            ConfigurationError: Its order depends on a seed that is not known, or on the epochs before.
        """
        if isinstance(loader.sampler, EpochShuffle) and loader.seed is None and not is_running:
            raise ConfigurationError(
                "seed",
                None,
                f"a number: this loader begins at epoch {epoch} without a state, and needs the seed of the "
                "loader that shuffled the epochs before",
            )
        follows = any(callable(getattr(sampler, "set_epoch", None)) for sampler in samplers_of(loader))
        if not follows and not self.is_free_of_states(loader, start):
            hint = f"load_state_dict() before epoch {epoch}: its order depends on the epochs before"
            raise ConfigurationError("sampler", loader.sampler, hint)

    def start_of(
        self, loader: LoaderArguments, start: EpochStart, own: LoaderState, running: LoaderPlan | None, epoch: int
    ) -> LoaderState:
        """Return the state at an epoch's start; see ``SampleSource``."""
        return start_of_order(own, epoch, self._index_plan(loader, start).state_at(epoch, 0))

    def successor_state(
        self, loader: LoaderArguments, start: EpochStart, own: LoaderState, epoch: int
    ) -> LoaderState | None:
        """Return where a loader begins that Lightning makes of another one, in whose next epoch."""
        return self.start_of(loader, start, own, None, epoch)

    def current_state(self, loader: LoaderArguments, start: EpochStart, state: LoaderState) -> LoaderState:
        """Return a loaded state at an epoch's start as the samplers are now: a program may have set them since."""
        if samplers_in(state.sampler) or is_computed(loader.sampler, loader.batch_sampler):
            return state
        # The samplers are what it says already, or what the program has set since.
        return state.with_sampler(self._first_plan(loader, start).state_at(state.epoch, 0))

    def has_torchs_length(self, loader: LoaderArguments, reshards: tuple[Reshard, ...], *, is_fresh: bool) -> bool:
        """Return whether torch's class knows the microbatches of the next epoch."""
        return is_fresh and not self.share and not reshards

    def num_batches(
        self, loader: LoaderArguments, start: EpochStart, running: LoaderPlan | None, epoch: int, step: int
    ) -> int:
        """Return the microbatches of an epoch that is not under way; raise TypeError where that is not known."""
        plan = self._first_plan(loader, start)
        if not step and isinstance(running, SamplerPlan):
            plan = running  # what it has drawn is taken back when the epoch begins again
        with in_epoch(self.ordered_dataset(loader), epoch):
            return plan.num_batches(epoch)

    def _made_in(self, loader: LoaderArguments, plan: LoaderPlan, epoch: int, step: int) -> dict[int, list[Any]]:
        with in_epoch(self.ordered_dataset(loader), epoch):
            return plan.made_at(epoch, step)

    def _num_steps(self, loader: LoaderArguments, plan: LoaderPlan, epoch: int) -> int:
        with in_epoch(self.ordered_dataset(loader), epoch):
            return plan.num_batches(epoch)


class IndexWindowSource(IndexSource):
    """Windows of the indices that samplers give; microbatches are cut from the rows that a worker makes of each."""

    is_cut_by_workers: bool = True
    acceptable_fields: tuple[str, ...] = ("files", "window_fn")

    def __init__(self) -> None:
        super().__init__()
        self._ends = ShortestRankOfJob()

    def _index_plan(self, loader: LoaderArguments, start: EpochStart) -> IndexPlan:
        limit = loader.max_skipped_samples if loader.on_sample_error == "skip" else None
        is_batched = loader.batch_sampler is not None
        order = self._order(loader, start.seed)
        return WindowPlan(order, loader.window_size, self.share, self._ends, is_batched=is_batched, max_skipped=limit)

    def _order(self, loader: LoaderArguments, seed: Callable[[], int]) -> WindowOrder:
        samplers = loader.sampler, loader.batch_sampler
        return order_of_windows(
            *samplers, self.dealing(loader), loader.window_size, seed(), self.first_batch, self.begun_lengths
        )

    def fingerprint(self, loader: LoaderArguments) -> dict[str, Any]:
        """Return what a state must have to be loaded."""
        return super().fingerprint(loader) | window_fingerprint(loader)

    def _check_split(self, share: RankShare) -> None:
        if share.split_batches:
            raise ConfigurationError("split_batches", True, "False: ranks get windows instead of parts of batches")

    def _drawn_from(self, loader: LoaderArguments) -> Any:
        return torch_data.BatchSampler(loader.sampler, loader.window_size, drop_last=False)  # as the plan does

    def has_torchs_length(self, loader: LoaderArguments, reshards: tuple[Reshard, ...], *, is_fresh: bool) -> bool:
        """Return False: how many rows windows have is not known."""
        return False

    def num_batches(
        self, loader: LoaderArguments, start: EpochStart, running: LoaderPlan | None, epoch: int, step: int
    ) -> int:
        """Raise TypeError: how many rows windows have is not known."""
        return self._index_plan(loader, start).num_batches(epoch)


def _is_part(order: object) -> bool:
    """Return whether an object gives a rank's part, and not all of a plan."""
    return isinstance(order, PackedDataset | TokenBudgetBatchSampler) and order.dp_size > 1

"""Which epoch comes next, with which seed, and which of its batches are this rank's."""

import logging
from abc import abstractmethod
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, cast

from torch.utils.data import Subset

from fkat_data.datasets.packed import PackedDataset
from fkat_data.datasets.token_budget import TokenBudgetBatchSampler
from fkat_data.errors import ConfigurationError, StateMismatchError, arguments
from fkat_data.loaders.drawn_plan import DrawnPlan
from fkat_data.loaders.engine_settings import drops_last, size_of_batches
from fkat_data.loaders.equal_ends import EndsOfRanks
from fkat_data.loaders.frameworks import AccelerateSide
from fkat_data.loaders.numbered_plan import EpochShuffle, NumberedPlan, is_numbered
from fkat_data.loaders.rank_share import RankShare, agreed_state, check_share, shared_fields
from fkat_data.loaders.reshards import Reshard, distributed_sampler_of, rank_in, reshards_in
from fkat_data.loaders.states import (
    Layout,
    check_saver,
    checked_loader_state,
    entries_of,
    is_of_other_size,
    is_saved_without_drop_last,
    own_state,
    state_at_epoch,
)
from fkat_data.loaders.strand_plan import StrandRanks, own_strands
from fkat_data.loaders.window_plan import WindowPlan
from fkat_data.runtime.distributed import gather, rank_and_world_size
from fkat_data.runtime.lifetime import WeakTable
from fkat_data.worker.produce import check_files, files_field

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


def is_part(order: object) -> bool:
    """Return whether an object gives a rank's part, and not all of a plan."""
    return isinstance(order, PackedDataset | TokenBudgetBatchSampler) and order.dp_size > 1


_logger = logging.getLogger(__name__)


class EpochsOfRanks(AccelerateSide):
    """The part of a DataLoader that ranks and loops set.

    Its own fields are set in ``vars``: what is set as an attribute where Lightning asks a hook for loaders, Lightning sets
    again in the loader that it makes of this one, which has another order.
    """

    dataset: Any
    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    seed: int | None
    dp_rank: int | None
    window_fn: Any
    on_sample_error: Literal["raise", "skip"]
    _is_iterable: bool
    _stream: Any  # the StreamSource of a dataset that plans its batches itself, or None
    # A stream whose order is cut into windows; ``_stream`` is None then.
    _windowed: Any = None
    _engine: Any
    _plan: Any
    _drawn_seed: int | None
    _loaded: dict[str, Any] | None
    _keeps_workers: bool | None
    # Whether that state is an epoch's start that no other process has begun.
    _is_untouched: bool = False
    _share: RankShare | None = None
    # The ranks whose strands a dataset counts together; None: it does not.
    _strand_ranks: StrandRanks | None = None
    # Where the number of ranks has changed, in an epoch that is not over.
    _reshards: tuple[Reshard, ...] = ()
    # Whether Lightning has made this loader of another one, with a sampler of its own.
    _is_of_lightning: bool = False
    # Whether a state is of all ranks, which have samplers or datasets of their own.
    _is_collective: bool = False
    # The newest loader that Lightning has made of this one, and all of them.
    _successor: "EpochsOfRanks | None" = None
    _successors: "WeakTable[int, EpochsOfRanks] | None" = None

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The epoch of the next microbatch."""

    @property
    @abstractmethod
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""

    @property
    def has_windows(self) -> bool:
        """Whether microbatches are cut from the rows of windows."""
        return self.window_fn is not None or self.on_sample_error == "skip"

    @cached_property
    def _ends(self) -> EndsOfRanks:
        return EndsOfRanks()

    @abstractmethod
    def _local_state(self) -> dict[str, Any]:
        """Return this process's position."""

    @abstractmethod
    def _known_state(self) -> dict[str, Any] | None:
        """Return a state that is not the source's."""

    @abstractmethod
    def close(self) -> None:
        """End the workers."""

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """Return the position of what makes the microbatches."""

    @abstractmethod
    def _known_seed(self) -> int:
        """Return the seed, which is drawn now if none is known."""

    @abstractmethod
    def _fingerprint(self) -> dict[str, Any]:
        """Return what a state of this loader must have."""

    @abstractmethod
    def _map_plan(self) -> NumberedPlan | DrawnPlan | WindowPlan:
        """Return the plan of a dataset with indices."""

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be of this epoch, and tell samplers and the dataset, as accelerate's loaders do.

        Raises:
            ConfigurationError: What the epoch has depends on a seed that is not known, or on the epochs before.
            StateMismatchError: A loaded state is of another epoch.
        """
        arguments.integer("epoch", epoch, minimum=0)
        if epoch != self._next_epoch():
            self._jump(epoch)
        self._tell((*self._samplers(), self.dataset), epoch)

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
        if num_ranks == 1 or self._stream is not None or self._windowed is not None:  # a stream knows its ranks
            return
        if self._strand_ranks is not None:
            self._deal_strands_out(num_ranks, rank)
            return
        if self._is_iterable and self.dp_rank is None:
            raise ConfigurationError(
                "dp_rank",
                None,
                "this process's rank, if the dataset yields only this rank's part: the loader does not "
                "divide an iterable dataset, so each rank would deliver all of its samples; or "
                "counts_workers_of_all_ranks = True on the dataset, and num_workers",
            )
        if self._is_iterable or self._has_ranks:
            vars(self).update(_is_collective=True)
            return
        share = RankShare(num_ranks, rank, even_batches, split_batches)
        if split_batches and self.has_windows:
            raise ConfigurationError("split_batches", True, "False: ranks get windows instead of parts of batches")
        size = getattr(self.sampler if self.batch_sampler is None else self.batch_sampler, "batch_size", None)
        if split_batches and (not isinstance(size, int) or size % num_ranks):
            raise ConfigurationError(
                "batch_size", size, f"a multiple of {num_ranks}, among which ranks split each batch"
            )
        if share == self._share:
            return
        agreed = agreed_state({**self._own_state(), **self._order_of_dataset()}, is_seed_given=self.seed is not None)
        self._load_order_of_dataset(agreed)
        if self._loaded is None:
            self._go_to({**state_at_epoch(agreed, 0), **shared_fields(share)}, is_untouched=True)
        check_share(self._local_state(), share)
        vars(self).update(_share=share)

    def _deal_strands_out(self, num_ranks: int, rank: int) -> None:
        if self._strand_ranks == (num_ranks, rank):
            return
        if self._engine is not None or self._loaded is not None:
            found = f"a loader at microbatch {self.step} of epoch {self.epoch}"
            raise ConfigurationError("deal_out", found, "a loader that was neither iterated nor loaded")
        ranks = StrandRanks(arguments.integer("num_ranks", num_ranks, minimum=1), rank)
        vars(self).update(_strand_ranks=ranks, _is_collective=True)

    def _check_parts(self, num_ranks: int, rank: int) -> None:
        """Give a shuffle the seed that ``deal_out`` gives it, and say in the log what the other loader does not have.

        Raises:
            ConfigurationError: The parts are this rank's already, or the loader has a loaded position.
        """
        found = None
        if num_ranks > 1 and (self._stream is not None or self._windowed is not None):
            found = "a loader of a stream, whose batches are this rank's already"
        elif num_ranks > 1 and (self._has_ranks or (self._is_iterable and self.dp_rank is not None)):
            found = "a loader of this rank's own part, which it would deal out again"
        elif self._share is not None and self._share.num_ranks != num_ranks:
            found = f"a loader that is dealt out to {self._share.num_ranks} ranks, to deal out to {num_ranks}"
        elif self._loaded is not None and self.step:
            found = (
                f"a loader with a loaded position, microbatch {self.step} of epoch {self.epoch}, which it would lose"
            )
        if found is not None:
            expected = "accelerator.prepare(loader), which returns this loader and keeps what it is"
            raise ConfigurationError("prepare_data_loader", found, expected)
        if num_ranks > 1 and isinstance(self.sampler, EpochShuffle):
            self.sampler.seed = gather(self._known_seed())[0]
        _logger.warning(
            "accelerate's prepare_data_loader makes another DataLoader of this one's parts. It delivers the samples of "
            "rank %d of %d in the same order, but without the position of this one, its device and, where it is torch's, its "
            "workers. accelerator.prepare(loader) keeps all of them, and loader.deal_out(%d, %d) does",
            *(rank, num_ranks, num_ranks, rank),
        )

    def num_in_last_round(self) -> int:
        """Return the samples of an epoch's last batches on all ranks, without those that fill them up; 0: all are."""
        return 0 if self._share is None else self._map_plan().num_in_last_round(self._next_epoch())

    def _own_part(self, state_dict: Any) -> dict[str, Any]:
        """Return where this rank goes on after a state of its own, or of any number of ranks.

        Raises:
            StateMismatchError: It is no such state, or does not say what other ranks had left.
        """
        layout = self._layout()

        def check(state: object) -> dict[str, Any]:
            kind = "strands" if self._is_iterable else "sampler"
            present = self._fingerprint()
            if self.batch_size is None and is_saved_without_drop_last(state):
                present["drop_last"] = False  # older states do not know that of a batch sampler
            checked = checked_loader_state(state, present, self.seed, kind)
            if checked["batch_size"] is None and self.batch_size is None:
                checked["batch_size"] = size_of_batches(self)  # older states do not know that of a batch sampler
            self._check_size_of_batches(checked, layout)
            return checked

        if self._strand_ranks is not None:
            return own_strands([check(each) for each in entries_of(state_dict) or [state_dict]], self._strand_ranks)
        own = own_state(state_dict, layout, check, *rank_and_world_size())
        if layout is None and entries_of(state_dict) is None:
            check_saver(own, self._saver(), is_iterable=self._is_iterable)
        if "strand_numbers" in own and own["all_strands"] != own["num_strands"]:
            hint = (
                "set counts_workers_of_all_ranks = True on the dataset, and pass num_workers, as in the run that saved"
            )
            raise StateMismatchError("strand_numbers", own["strand_numbers"], "<all strands>", hint)
        check_share(own, self._share)
        dealing = self._dealing()
        if isinstance(dealing, TokenBudgetBatchSampler) and "resplits" in own:
            # What is left follows from its state alone.
            dealing.for_rank(dealing.dp_size, dealing.dp_rank).load_state_dict(own["sampler"]["samplers"][-1])
        return own

    def _check_size_of_batches(self, state: Mapping[str, Any], layout: Layout | None) -> None:
        """Raise if the rest of a state's epoch is to come in batches of another size, and nothing says what is left of it."""
        kind = "distributed" if layout is not None and layout.dealt_by == "sampler" else "num_samples"
        is_known = layout is not None and kind in state["sampler"]
        if is_of_other_size(state, size_of_batches(self)) and not is_known:
            hint = "finish the epoch in batches of that size: only its dataset or its sampler knows what is left of it"
            raise StateMismatchError("batch_size", state["batch_size"], size_of_batches(self), hint)

    def _check_since_load(self, state: Mapping[str, Any]) -> None:
        """Raise if what was set since a state was loaded would cut the rest of its epoch in another way."""
        hint = "set it before load_state_dict(), or once an iteration has begun: it counts from the next one"
        present = size_of_batches(self)
        if is_of_other_size(state, present):
            raise StateMismatchError("batch_size", state["batch_size"], present, hint)
        is_unsaid = self.batch_size is None and not state["drop_last"]  # as in _own_part
        if state["step"] and state["drop_last"] != drops_last(self) and not is_unsaid:
            raise StateMismatchError("drop_last", state["drop_last"], drops_last(self), hint)

    def _layout(self) -> Layout | None:
        """Return the ranks that the samples are dealt out to; None: nothing says what another rank has."""
        if self._is_iterable:
            return None
        size = size_of_batches(self)
        if self._share is not None:
            return Layout(size, self._share.num_ranks, self._share.rank, shared_fields(self._share))
        dealing = self._dealing()
        if dealing is not None:
            fields, dealt_by = self._terms_of_dealing(), "order" if dealing.dp_size > 1 else None
            return Layout(size, dealing.dp_size, dealing.dp_rank, fields, dealt_by, has_seed=self.seed is not None)
        sampler = distributed_sampler_of(self.sampler if self.batch_sampler is None else self.batch_sampler)
        if sampler is not None:
            return Layout(size, sampler.num_replicas, sampler.rank, dealt_by="sampler")
        return None if self._has_ranks else Layout(size)

    def _dealing(self) -> PackedDataset | TokenBudgetBatchSampler | None:
        """Return what deals itself out to ranks, by arguments of its own: the dataset or the batch sampler."""
        if self._share is not None or self._is_iterable or self._stream is not None or self._windowed is not None:
            return None
        below: object = self._ordered_dataset()
        order = self.sampler if self.batch_sampler is None else self.batch_sampler
        if isinstance(order, TokenBudgetBatchSampler):
            return None if is_part(below) else order
        if not isinstance(below, PackedDataset) or not is_numbered(self.sampler, self.batch_sampler):
            return None
        # A view has to pass indices on as they are.
        dataset: Any = self.dataset
        return below if type(dataset) is not Subset and len(dataset) == len(below) else None

    @property
    def _has_ranks(self) -> bool:
        """Whether a sampler or the dataset knows which samples are this rank's."""
        samplers = self._samplers()
        is_dealt = any(is_part(each) for each in (*samplers, self._ordered_dataset()))
        return is_dealt or any(rank_in(each) is not None for each in samplers)

    def _saver(self) -> tuple[int, int | None] | None:
        """Return this rank, and of how many, if no other one can go on with its state: 0 of 1 where it has no rank.

        None where the state says by itself which ranks can load it.
        """
        is_of_any = self._stream is not None or self._windowed is not None or self._strand_ranks is not None
        if is_of_any or self._layout() is not None:
            return None
        if self._is_iterable:
            rank, num_ranks = rank_and_world_size()
            return (rank, num_ranks) if self.dp_rank is None else (self.dp_rank, None)
        below = self._ordered_dataset()
        order = self.sampler if self.batch_sampler is None else self.batch_sampler
        return rank_in(order) or ((below.dp_rank, below.dp_size) if is_part(below) else None)

    def _succeed(self, original: "EpochsOfRanks") -> None:
        """Go on where the loader stands that Lightning makes this one of: in its next epoch, or at its loaded state."""
        fields = vars(original)
        before: EpochsOfRanks = fields.get("_successor") or original
        seed, loaded, epoch = before._state_to_go_on_from()
        successors = fields.get("_successors") or WeakTable[int, EpochsOfRanks]()
        successors[id(self)] = self
        fields.update(_successor=self, _successors=successors)
        vars(self).update(_drawn_seed=seed, _keeps_workers=fields["_keeps_workers"], _is_of_lightning=True)
        if loaded is not None:
            self._resume(
                self._own_part(loaded)
            )  # it may be the state of a rank whose sampler Lightning brings only now
        elif epoch and not self._is_iterable and self._stream is None:
            self._go_to(self._start_of(epoch), is_untouched=True)

    def _state_to_go_on_from(self) -> tuple[int | None, dict[str, Any] | None, int]:
        """Return the seed, a loaded state within an epoch, and the next epoch."""
        loaded = dict(self._loaded) if self._loaded is not None and self.step else None
        return self._drawn_seed, loaded, self._next_epoch()

    def _follow_fabric(self) -> None:
        """Tell the samplers the epoch that comes: Fabric counts from 0 again in each process, and saves as all ranks."""
        vars(self).update(_is_collective=self._has_ranks)
        self._tell(self._samplers(), self._next_epoch())

    @staticmethod
    def _tell(listeners: Iterable[Any], epoch: int) -> None:
        for each in listeners:
            tell = getattr(each, "set_epoch", None)
            if callable(tell):
                tell(epoch)

    def _ordered_dataset(self) -> Any:
        return None if self._is_iterable else seeded_order_below(self.dataset)

    def _order_of_dataset(self) -> dict[str, Any]:
        """Return the field of a state for a dataset that drew the seed of its order; no field for any other."""
        ordered = self._ordered_dataset()
        return {"dataset": ordered.state_dict()} if ordered is not None and ordered.is_seed_drawn else {}

    def _terms_of_dataset(self) -> dict[str, Any]:
        """Return the fields of a state that say what of the dataset its positions depend on."""
        saver = self._saver()
        whose = {} if saver is None or saver == (0, 1) else {"saved_by": list(saver)}
        return {**self._order_of_dataset(), **self._terms_of_dealing(), **files_field(self.dataset), **whose}

    def _terms_of_dealing(self) -> dict[str, Any]:
        """Return the fields of a state that say to how many ranks a dataset or a batch sampler deals itself out."""
        ordered, dealing = self._ordered_dataset(), self._dealing()
        ranks = {"dataset_ranks": ordered.dp_size} if isinstance(ordered, PackedDataset) else {}
        own = {} if dealing is None else {"dealt_ranks": dealing.dp_size, "dealt_rank": dealing.dp_rank}
        return {**ranks, **own}

    def _with_order_of_dataset(self, state: dict[str, Any]) -> dict[str, Any]:
        """Have the dataset give the order of a state, and return it.

        Raises:
            StateMismatchError: It cannot; or the state's epoch was dealt out to other ranks than the dataset is.
        """
        ordered = self._ordered_dataset()
        if isinstance(ordered, PackedDataset) and state["step"]:
            saved, present = state.get("dataset_ranks", 1), ordered.dp_size
            if saved != present:
                hint = "go on with as many ranks as the epoch began with, or begin the next epoch"
                raise StateMismatchError("dataset_ranks", saved, present, hint)
        self._load_order_of_dataset(state)
        if isinstance(ordered, PackedDataset) and state["step"]:
            ordered.follow_epoch(state["epoch"])  # what is left of it has a length
        return state

    def _without_length(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state without the length of the epoch before, if that of the next one may differ."""
        if state["step"] or not isinstance(self._ordered_dataset(), PackedDataset):
            return state
        return {**state, "sampler": {name: value for name, value in state["sampler"].items() if name != "num_samples"}}

    def _load_order_of_dataset(self, state: Mapping[str, Any]) -> None:
        """Have the dataset give the order of a state.

        Raises:
            StateMismatchError: It cannot, the state does not say which order that is, or a file has changed since.
        """
        check_files(state.get("files") if state["step"] else None, self.dataset)
        ordered = self._ordered_dataset()
        if "dataset" in state and ordered is not None:
            ordered.load_state_dict(state["dataset"])
        elif "dataset" in state or (ordered is not None and ordered.is_seed_drawn):
            saved, present = (
                "<a drawn seed>" if has else "<none>" for has in ("dataset" in state, ordered is not None)
            )
            hint = "the dataset determines the order: make it with the arguments and seeds of the run that saved"
            raise StateMismatchError("dataset", saved, present, hint)

    def _check_order_of_dataset(self) -> None:
        """Check that ranks that share the indices of a dataset share its order.

        Raises:
            ConfigurationError: This rank's dataset drew an order of its own.
        """
        num_ranks = max(getattr(sampler, "num_replicas", None) or 1 for sampler in (None, *self._samplers()))
        if num_ranks > 1 and self._order_of_dataset():
            expected = f"a dataset with a seed, the same on all {num_ranks} ranks: this one drew its own"
            raise ConfigurationError("dataset", self.dataset, expected)

    def _next_epoch(self) -> int:
        """Return the epoch that the next iteration is of: one that was left is over."""
        if self._stream is not None:
            return self.epoch if self._engine is None else self._plan.upcoming(self._engine.position).epoch
        if self._engine is not None and self._known_state() is None:
            return cast("int", self._engine.next_epoch)
        return self.epoch + (self._loaded is None and self.step > 0)

    def _samplers(self) -> list[Any]:
        found = (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))
        return [sampler for sampler in found if sampler is not None]

    def _go_to(self, state: dict[str, Any], *, is_untouched: bool = False) -> None:
        self.close()
        if self._stream is not None and state["stream"] is not None:  # else the next epoch begins
            self._stream.load_state_dict(state["stream"])
        fields = {"_loaded": state, "_drawn_seed": state["seed"], "_reshards": reshards_in(state)}
        vars(self).update(_is_untouched=is_untouched, _engine=None, _plan=None, **fields)
        if self._driven is not None:
            self._driven.saved = None

    def _resume(self, state: dict[str, Any]) -> None:
        """Go to a loaded state. Lightning sets the epoch of the sampler that it brings after the first microbatch."""
        self._go_to(state)
        if self._is_of_lightning and not self._is_iterable and self._stream is None:
            begun: Mapping[str, Any] = state["sampler"].get("distributed", {}) if state["step"] else {}
            self._tell(self._samplers(), begun.get("epoch", state["epoch"]))

    def _jump(self, epoch: int) -> None:
        if self._stream is not None:
            self._jump_in_stream(epoch, self._stream)
            return
        loaded = self._loaded
        if loaded is not None and not self._is_untouched and (loaded["epoch"], loaded["step"]) != (0, 0):
            hint = "continue with the epoch of the loaded state (loader.epoch)"
            raise StateMismatchError("epoch", loaded["epoch"], epoch, hint)
        if isinstance(self.sampler, EpochShuffle) and self.seed is None and self._engine is None:
            raise ConfigurationError(
                "seed",
                None,
                f"a number: this loader begins at epoch {epoch} without a state, and needs the seed of the "
                "loader that shuffled the epochs before",
            )
        follows = any(callable(getattr(sampler, "set_epoch", None)) for sampler in self._samplers())
        if not self._is_iterable and not follows and not self._is_free_of_states():
            hint = f"load_state_dict() before epoch {epoch}: its order depends on the epochs before"
            raise ConfigurationError("sampler", self.sampler, hint)
        self._go_to(self._start_of(epoch), is_untouched=True)

    def _jump_in_stream(self, epoch: int, stream: Any) -> None:
        if self._engine is None and self.step:
            hint = "continue with the epoch of the loaded state (loader.epoch)"
            raise StateMismatchError("epoch", self.epoch, epoch, hint)
        self.close()
        vars(self).update(_engine=None, _plan=None)
        stream.next_epoch = epoch

    def _is_free_of_states(self) -> bool:
        """Return whether an epoch's order depends on nothing but the seed, the epoch, and set_epoch()."""
        plan = None if self._is_iterable else self._map_plan()
        return isinstance(plan, NumberedPlan) or (plan is not None and not plan.has_states)

    def _start_of(self, epoch: int) -> dict[str, Any]:
        own = self._own_state()
        if self._is_iterable:
            # As the next epoch does: from where the dataset was at the start of the one under way.
            begun = own if self._engine is None else self._plan.epoch_again(own)
            snapshots = None if begun["step"] else [strand["snapshot"] for strand in begun["strands"]]
            return state_at_epoch(own, epoch, snapshots)
        return {**state_at_epoch(own, epoch), "sampler": self._map_plan().state_at(epoch, 0)}

"""The plan of a loader whose order is computed: sequential, or a shuffle by arithmetic. Workers compute the batches.

An epoch is one task: its payload is a ``SampleOrder``, which returns the indices of any batch by its number.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from fkat_data.datasets.packed import PackedDataset
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.wording import counted
from fkat_data.loaders.loader_plan import IndexPlan, Provenance
from fkat_data.loaders.loader_state import LoaderState
from fkat_data.loaders.rank_share import RankShare, Sharing
from fkat_data.loaders.reshards import EpochRemainder, position_at, remainder_of
from fkat_data.permutation import keys_of, permutation, permuted
from fkat_data.plan.position import Dealing, Exclusion, Position, Reshard
from fkat_data.plan.resharding import Remainder, first_step, of_epoch, reshards_until
from fkat_data.worker.batches import BatchSequence

_PURPOSE = b"fkat DataLoader"
# Up to here the order is drawn at once, in milliseconds, and every order is as likely as any other.
_DRAWN_AT_ONCE = 1 << 16
# Samples of two orders that are compared.
_MOST_COMPARED = 1 << 20
# A block of numbers costs little more than one of them.
_BLOCK_SIZE = 1 << 13


class SampleOrder(BatchSequence):
    """One epoch's batches of samples, each computed when it is asked for.

    Args:
        num_samples: Samples of the dataset.
        batch_size: Samples of a batch; None: single indices, not batches.
        drop_last: Whether a last batch that is smaller is left out.
        shuffle: Seed and epoch that decide on the order; None: it is that of the dataset.
        share: What one of several ranks gets of the batches; None: there is one rank.
        remainder: What of the epoch is there for all present ranks; None: all of it, as there was no reshard.
        first: The number of the first batch.
        items: Indices to batch instead, in order; None: those of the samples.
        reads_into_batch: Whether the dataset reads its items into a microbatch, without code of a user's.
    """

    in_words = "the dataset"

    def __init__(
        self,
        num_samples: int,
        batch_size: int | None,
        *,
        drop_last: bool,
        shuffle: tuple[int, int] | None,
        share: RankShare | None = None,
        remainder: EpochRemainder | None = None,
        first: int = 0,
        items: Sequence[Any] | None = None,
        reads_into_batch: bool = False,
    ) -> None:
        self.reads_into_batch = reads_into_batch
        self._items = items
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._shuffle = shuffle
        self._share = share
        self.first = first
        """The number of the first batch: those before it were other ranks'."""
        self._left, self._whole = remainder or (Remainder(num_samples), Remainder(num_samples))
        self._num_left = len(self._left)
        size = 1 if batch_size is None else batch_size
        # Of a batch, and of the batches of all ranks together.
        self._size = size if share is None else share.own_size(size)
        self._round_size = size if share is None else share.round_size(size)
        self._offset = 0 if share is None else share.rank * self._size
        self._block_index = -1
        self._block: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.first + self._num_own(self._offset)

    @property
    def is_over(self) -> bool:
        """Whether no rank has a batch."""
        return self._num_own(0) == 0

    def _num_own(self, offset: int) -> int:
        whole, rest = divmod(self._num_left, self._round_size)
        return whole + (rest > (0 if self._is_even else offset) and not self._drop_last)

    def __repr__(self) -> str:
        return f"<{self._num_samples} samples>"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_block": None, "_block_index": -1}

    @property
    def _is_even(self) -> bool:
        return self._share is not None and self._share.even_batches

    @property
    def num_in_last_round(self) -> int:
        """Samples of the last round over all ranks, if it is smaller than the others; else 0."""
        return 0 if self._drop_last else self._num_left % self._round_size

    def batch(self, index: int) -> Any:
        """Return the indices of the batch at ``index``, or the single index there.

        Raises:
            IndexError: The epoch has no such batch.
        """
        if not self.first <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        begin = (index - self.first) * self._round_size + self._offset
        end = begin + self._size
        left = min(begin, self._num_left), min(end, self._num_left)
        found: list[Any] = []
        for run in self._left.runs(*left):
            found += self._indices(*run)
        if self._is_even:
            found += self._filling(max(begin, self._num_left) - self._num_left, end - self._num_left)
        return found if self._batch_size is not None else found[0]

    def _filling(self, begin: int, end: int) -> list[int]:
        """Return what comes past the last sample: the epoch's first ones, again and again."""
        found: list[int] = []
        while begin < end:
            start = begin % len(self._whole)
            stop = min(start + end - begin, len(self._whole))
            for run in self._whole.runs(start, stop):
                found += self._indices(*run)
            begin += stop - start
        return found

    def _indices(self, first: int, end: int) -> list[Any]:
        if self._items is not None:
            return list(self._items[first:end])
        if self._shuffle is None:
            return list(range(first, end))
        found: list[int] = []
        while first < end:
            block_index, offset = divmod(first, _BLOCK_SIZE)
            stop = min(end - first + offset, _BLOCK_SIZE)
            found += self._shuffled_block(block_index, self._shuffle)[offset:stop].tolist()
            first += stop - offset
        return found

    def _shuffled_block(self, block_index: int, shuffle: tuple[int, int]) -> npt.NDArray[np.int64]:
        if self._num_samples <= _DRAWN_AT_ONCE:
            if self._block is None:
                self._block = permutation(self._num_samples, _PURPOSE, *shuffle)
            return self._block[block_index * _BLOCK_SIZE :]
        if self._block is None or block_index != self._block_index:
            first = block_index * _BLOCK_SIZE
            self._block = _shuffled(
                np.arange(first, min(first + _BLOCK_SIZE, self._num_samples)), self._num_samples, shuffle
            )
            self._block_index = block_index
        return self._block


def _shuffled(
    numbers: npt.NDArray[np.int64], num_samples: int, shuffle: tuple[int, int], *, is_inverse: bool = False
) -> npt.NDArray[np.int64]:
    """Return the samples at some numbers of a large epoch's order; or, as the inverse, the numbers of some samples."""
    key = keys_of(np.zeros(1, dtype=np.int64), _PURPOSE, *shuffle)
    sizes = np.full(len(numbers), num_samples)
    return permuted(numbers, sizes, np.repeat(key, len(numbers)), is_inverse=is_inverse)


def numbers_in_order(samples: Collection[int], num_samples: int, shuffle: tuple[int, int] | None) -> list[int]:
    """Return the numbers of some samples in an epoch's order, of those that the dataset has.

    Args:
        samples: The samples.
        num_samples: Samples of the dataset.
        shuffle: Seed and epoch that decide on the order; None: it is that of the dataset.
    """
    found = np.array(sorted(sample for sample in samples if sample < num_samples), dtype=np.int64)
    if shuffle is None or not len(found):
        return found.tolist()
    if num_samples > _DRAWN_AT_ONCE:
        return _shuffled(found, num_samples, shuffle, is_inverse=True).tolist()
    return np.flatnonzero(np.isin(permutation(num_samples, _PURPOSE, *shuffle), found)).tolist()


class EpochShuffle(RandomSampler):
    """A dataset's samples in an order that is a function of a seed and an epoch.

    The loader computes its batches without it. A loader that a framework makes of this one's parts iterates it, and gets
    the order of another epoch each time. Where no seed is known, a new one is drawn, as torch's ``RandomSampler`` does.

    Args:
        data_source: The dataset.
        generator: What seeds are drawn from; None: torch's global one.
        seed: The loader's; None: it is not known yet.

    Raises:
        ValueError: The dataset is empty.
    """

    def __init__(self, data_source: Sized, generator: Any = None, seed: int | None = None) -> None:
        super().__init__(data_source, generator=generator)
        self.seed = seed
        """The loader's seed, once it is known."""
        self.epoch: int = 0
        """The epoch of the next iteration, and of the newest one of the loader."""

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        seed, epoch = self.seed, self.epoch
        if seed is None:
            generator = cast("torch.Generator | None", self.generator)
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        self.epoch = epoch + 1
        return iter(SampleOrder(len(self), None, drop_last=False, shuffle=(seed, epoch)))


def is_computed(sampler: object, batch_sampler: object) -> bool:
    """Return whether the samplers give samples in order, or in the arithmetic shuffle, in batches of one size."""
    if batch_sampler is not None:
        if type(batch_sampler) is not BatchSampler:
            return False
        sampler = batch_sampler.sampler
    return type(sampler) in (SequentialSampler, EpochShuffle)


def check_kind_of_order(state: LoaderState, sampler: object, batch_sampler: Any) -> None:
    """Check that the samples come in order, shuffled, or as a sampler gives them, as they did when a state was saved.

    Before the first microbatch of all, anything may come. Between two epochs, a ``DistributedSampler`` may have come or
    gone: frameworks give it to a loader on several ranks.

    Raises:
        StateMismatchError: They do not.
    """
    indices = sampler if batch_sampler is None else getattr(batch_sampler, "sampler", None)
    present = ("<a sampler>", "<in order>", "<shuffle=True>")[
        is_computed(sampler, batch_sampler) and 1 + isinstance(indices, EpochShuffle)
    ]
    kinds = {None: present, False: "<in order>", True: "<shuffle=True>"}
    plan_state = state.sampler
    is_drawn = "num_samples" not in plan_state or "samplers_begun" in plan_state
    saved = "<a sampler>" if is_drawn else kinds[plan_state.get("shuffle")]
    is_distributed = "distributed" in plan_state or isinstance(indices, DistributedSampler)
    is_before_all = (state.epoch, state.step) == (0, 0)
    if saved == present or is_before_all or (is_distributed and not state.step):
        return
    hint = "begin the epoch in the order of the run that saved: pass its sampler or its shuffle"
    if state.step:
        hint = (
            "finish the epoch in the order in which it began, with the sampler or the shuffle of the run that saved. On "
            "several ranks, Lightning gives the loader a DistributedSampler; on one rank, strategy='ddp' does, and in your own "
            "loop, DistributedSampler(dataset, 1, 0) has the order of all ranks"
        )
    raise StateMismatchError("sampler", saved, present, hint)


class ComputedPlan(IndexPlan):
    """The plan of epochs of one task each, whose order is arithmetic.

    Args:
        sampler: The samples' order; its length is read when an epoch begins.
        batch_sampler: Groups them; None: microbatches are single samples.
        seed: The loader's.
        share: What this rank gets of the batches; None: there is one rank.
        reshards: Where the number of ranks has changed.
        dataset: What deals itself out to ranks; None: no dataset does.
        begun_lengths: Samples in each epoch that was begun before files were appended.
        reads_into_batch: Whether the dataset reads its items into a microbatch, without code of a user's.
    """

    def __init__(
        self,
        sampler: Any,
        batch_sampler: Any,
        seed: int,
        share: RankShare | None = None,
        reshards: Sequence[Reshard] = (),
        dataset: PackedDataset | None = None,
        begun_lengths: Mapping[int, int] | None = None,
        *,
        reads_into_batch: bool = False,
    ) -> None:
        self._reads_into_batch = reads_into_batch
        self._dataset = dataset
        self._begun_lengths = begun_lengths or {}
        self._known_order: tuple[object, SampleOrder] | None = None
        self._sampler = sampler
        self._batch_sampler = batch_sampler
        self._seed = seed
        self._share = share
        self._reshards = reshards
        self._order: SampleOrder | None = None
        # What the epoch under way was begun with; what the next one begins with is read when it does.
        self._begun: _OrderArguments | None = None
        indices = sampler if batch_sampler is None else batch_sampler.sampler
        if isinstance(indices, EpochShuffle):
            indices.seed = seed

    def renew(self, epoch: int, step: int) -> None:
        """Read again what an order depends on when the next iteration begins."""
        self._epoch, self._begun, self._known_order = -1, None, None

    def payload(self, epoch: int, index: int) -> Any:
        """Return the epoch's order, or None for another task than the first.

        Raises:
            StateMismatchError: The dataset has another length than when the state of this epoch was saved.
        """
        if epoch != self._epoch:
            begun = self._arguments(epoch)
            self._check_length(epoch, begun.num_samples)
            if begun.shuffle is not None:
                begun.shuffle.seed, begun.shuffle.epoch = self._seed, epoch
            self._order = self._order_of(epoch)
            self._epoch, self._begun = epoch, begun
        return self._order if index == 0 and self._order and len(self._order) > self._order.first else None

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return what the order of the rest of an epoch depends on."""
        arguments = self._arguments(epoch)
        return {"num_samples": arguments.num_samples, "shuffle": arguments.shuffle is not None}

    def is_over(self, state: LoaderState) -> bool:
        """Return whether an epoch has nothing left at a saved position; if others delivered all before it, for any rank."""
        num_samples = self._arguments(state.epoch).num_samples
        if state.sampler.get("num_samples", num_samples) != num_samples:
            return False
        order = self._order_of(state.epoch)
        return order.is_over if 0 < order.first == state.step else state.step == len(order)

    def made_of(self, position: Position) -> list[Provenance]:
        """Return the indices of a microbatch."""
        batch = self._order_of(position.epoch, self._until(position.epoch, position.step)).batch(position.microbatch)
        return [Provenance([batch] if self._batch_sampler is None else batch, [])]

    def exclude(self, position: Position, exclusion: Exclusion) -> tuple[Reshard, ...]:
        """Leave samples out from a position on: what is left without them is dealt out again, in full batches."""
        (epoch, step), dataset = (position.epoch, position.step), self._dataset
        num_samples, _, batch_size, _ = self._arguments(epoch)
        if dataset is not None and exclusion.samples:
            expected = "a dataset whose rows are the same in each epoch, or exclude_steps(): it packs others"
            raise ConfigurationError("dataset", dataset, expected)
        if dataset is not None and self._reshards_of_dataset(epoch):
            raise ConfigurationError("dataset", dataset, "exclude() in an epoch that began with as many ranks")
        if exclusion.samples and exclusion.samples[-1] >= num_samples:
            raise ConfigurationError("samples", exclusion.samples[-1], f"indices below {num_samples}")
        share = self._share or RankShare(1, 0)
        dealing = Dealing(batch_size or 1, share.split_batches)
        reshard = Reshard((position_at(self._reshards, epoch, step),) * share.num_ranks, step, dealing, exclusion)
        self._reshards = (*self._reshards, reshard)
        if self._begun is not None and epoch == self._epoch:
            self._order = self._order_of(epoch)
        return self._reshards

    def made_at(self, epoch: int, step: int) -> dict[int, list[Any]]:
        """Return the indices of each rank's microbatch at a step; of a dataset that deals itself out, this rank's alone."""
        reshards = self._until(epoch, step)
        if self._dataset is not None:
            return (
                {}
                if (own := self._batch_at(step, self._order_of(epoch, reshards))) is None
                else {self._dataset.dp_rank: own}
            )
        later = next((each for each in of_epoch(self._reshards, epoch) if each not in reshards), None)
        share, batch_size = self._share or RankShare(1, 0), None
        if later is not None:  # the ranks of then
            share = share._replace(num_ranks=len(later.positions), split_batches=later.dealing.is_split)
            batch_size = later.dealing.batch_size
        share = share._replace(even_batches=share.even_batches and share.num_ranks > 1)
        found: dict[int, list[Any]] = {}
        for rank in range(share.num_ranks):
            has_had = later is None or (epoch, step) < (later.positions[rank].epoch, later.positions[rank].step)
            batch = self._batch_at(step, self._order_of(epoch, reshards, share._replace(rank=rank), batch_size))
            if has_had and batch is not None:
                found[rank] = batch
        return found

    def _batch_at(self, step: int, order: SampleOrder) -> list[Any] | None:
        """Return the indices of an order's batch; None: the order has none there."""
        if not order.first <= step < len(order):
            return None
        batch = order.batch(step)
        return batch if self._batch_sampler is not None else [batch]

    def _until(self, epoch: int, step: int) -> tuple[Reshard, ...]:
        return reshards_until(self._reshards, epoch, step)

    def first_microbatch(self, state: LoaderState) -> int:
        """Return where a saved position is in its epoch's task.

        0 for a rank that gets nothing of what others have left: it has one empty iteration, as those that get something
        have one, instead of the next epoch.
        """
        order = self._order_of(state.epoch)
        return 0 if 0 < order.first == len(order) else state.step

    def num_batches(self, epoch: int) -> int:
        """Return this rank's microbatches of an epoch, with those before the number of ranks has changed."""
        return len(self._order_of(epoch))

    def num_in_last_round(self, epoch: int) -> int:
        """Return the samples of the last round over all ranks, if it is smaller than the others; else 0."""
        return self._order_of(epoch).num_in_last_round

    def _arguments(self, epoch: int) -> "_OrderArguments":
        """Return what an epoch was begun with; for another one, what it would begin with now."""
        if self._begun is not None and epoch == self._epoch:
            return self._begun
        batches = self._batch_sampler
        sampler = self._sampler if batches is None else batches.sampler
        reshards = self._reshards_of_dataset(epoch)
        if self._dataset is not None and reshards:
            # The part of each of the ranks that the epoch began with.
            num_samples = len(self._dataset.for_rank(len(reshards[0].positions), 0))
        else:
            num_samples = self._begun_lengths.get(epoch, len(sampler))
        shuffle = sampler if isinstance(sampler, EpochShuffle) else None
        if shuffle is not None and shuffle.replacement:
            expected = "False, with shuffle=True: pass sampler=RandomSampler(dataset, replacement=True)"
            raise ConfigurationError("replacement", shuffle.replacement, expected)
        if batches is None:
            return _OrderArguments(num_samples, shuffle, None, drop_last=False)
        return _OrderArguments(num_samples, shuffle, int(batches.batch_size), drop_last=bool(batches.drop_last))

    def _reshards_of_dataset(self, epoch: int) -> list[Reshard]:
        return [reshard for reshard in of_epoch(self._reshards, epoch) if reshard.dealing.is_by_order]

    def _rest_of_dataset(
        self, dataset: PackedDataset, reshards: Sequence[Reshard], epoch: int, arguments: "_OrderArguments"
    ) -> SampleOrder:
        """Return what the dataset deals out to this rank of what other ranks have left."""
        known = epoch, arguments
        if self._known_order is None or self._known_order[0] != known:
            num_samples, drop_last, order = arguments.num_samples, arguments.drop_last, None
            if arguments.shuffle is not None:
                order = [*SampleOrder(num_samples, None, drop_last=False, shuffle=(self._seed, epoch))]
            earlier = [(reshard.counts_in(epoch), reshard.dealing.batch_size) for reshard in reshards]
            items = dataset.rest(earlier, drop_last=drop_last, order=order)
            rest = SampleOrder(
                *(len(items), arguments.batch_size),
                drop_last=drop_last,
                shuffle=None,
                first=first_step(self._reshards, epoch),
                items=items,
            )
            self._known_order = known, rest
        return self._known_order[1]

    def _order_of(
        self,
        epoch: int,
        reshards: Sequence[Reshard] | None = None,
        share: RankShare | None = None,
        batch_size: int | None = None,
    ) -> SampleOrder:
        """Return an epoch's order: of this rank and all reshards; or of another one, in other batches, after some."""
        arguments = self._arguments(epoch)
        num_samples, sampler, size, drop_last = arguments
        of_dataset = self._reshards_of_dataset(epoch)
        if self._dataset is not None and of_dataset:
            return self._rest_of_dataset(self._dataset, of_dataset, epoch, arguments)
        reshards = self._reshards if reshards is None else reshards
        shuffle = None if sampler is None else (self._seed, epoch)
        return SampleOrder(
            num_samples,
            size and (batch_size or size),
            drop_last=drop_last,
            shuffle=shuffle,
            share=share or self._share,
            remainder=order_remainder(reshards, epoch, num_samples, shuffle, drop_last=drop_last),
            first=first_step(reshards, epoch),
            reads_into_batch=self._reads_into_batch,
        )


def order_remainder(
    reshards: Sequence[Reshard], epoch: int, num_samples: int, shuffle: tuple[int, int] | None, *, drop_last: bool
) -> EpochRemainder:
    """Return what ranks have left of an epoch whose order is arithmetic; see ``remainder_of`` and ``numbers_in_order``."""
    numbers_of = partial(numbers_in_order, num_samples=num_samples, shuffle=shuffle)
    return remainder_of(reshards, epoch, num_samples, drop_last=drop_last, numbers_of=numbers_of)


def price_of_length(state: LoaderState, num_samples: int) -> str | None:
    """Return what it costs to finish a state's epoch over another number of samples, in words.

    Returns:
        None where it is not known, or the position is past the epoch's end.
    """
    sampler, sharing = state.sampler, state.sharing or Sharing()
    if (
        "num_samples" not in sampler
        or "samplers_begun" in sampler
        or state.is_of_windows
        or state.reshards
        or state.dataset_ranks
    ):
        return None
    round_size = (state.batch_size or 1) * (1 if sharing.split_batches else sharing.num_ranks)
    num_rounds = num_samples // round_size if state.drop_last else -(-num_samples // round_size)
    num_delivered = min(state.step * round_size, sampler["num_samples"])
    if state.step > num_rounds:
        return None
    lost = again = "0 samples"
    if sampler["shuffle"] and num_delivered:
        lost = again = f"up to {counted(num_delivered, 'sample')}"
    if sampler["shuffle"] and 0 < num_delivered <= _MOST_COMPARED:
        delivered, passed = (
            np.array(SampleOrder(size, num_delivered, drop_last=False, shuffle=(state.seed, state.epoch)).batch(0))
            for size in (sampler["num_samples"], num_samples)
        )
        lost = counted(len(np.setdiff1d(passed, delivered)), "sample")
        again = counted(len(np.setdiff1d(delivered[delivered < num_samples], passed)), "sample")
    return (
        f"the epoch goes on behind the first {counted(num_delivered, 'sample')} in the order of {num_samples:,} samples "
        f"instead of {sampler['num_samples']:,}: {lost} of the present ones do not come in this epoch, and {again} come again"
    )


class _OrderArguments(NamedTuple):
    """What of a loader's samplers an epoch's order depends on, as torch reads it when an iteration begins.

    Attributes:
        num_samples: Their length, or that of the part of each of the ranks that the epoch began with.
        shuffle: The sampler, if it is the arithmetic shuffle.
        batch_size: Samples of a batch; None: microbatches are single samples.
        drop_last: Whether a last batch that is smaller is left out.
    """

    num_samples: int
    shuffle: EpochShuffle | None
    batch_size: int | None
    drop_last: bool


def batches_left(state: LoaderState, rank: int | None) -> tuple[int, int] | None:
    """Return what a state says of its epoch's batches: how many a rank has left, and of how many.

    Args:
        state: The state.
        rank: The rank; None: any one, where all have equally many.

    Returns:
        None where the state does not say it: the order is not arithmetic, or ranks differ.
    """
    num_samples = None if state.is_of_windows else state.sampler.get("num_samples")
    sharing, epoch = state.sharing or Sharing(), state.epoch
    # Where the last round is not even, ranks have different numbers of batches.
    is_same_on_all = sharing.num_ranks == 1 or sharing.even_batches or sharing.split_batches
    if num_samples is None or (rank is None and not is_same_on_all):
        return None
    share = None
    if sharing.num_ranks > 1:
        share = RankShare(sharing.num_ranks, rank or 0, sharing.even_batches, sharing.split_batches)
    size, drop_last, shuffle = state.batch_size, state.drop_last, None
    if state.sampler.get("shuffle"):
        shuffle = state.seed, epoch
    left = order_remainder(state.reshards, epoch, num_samples, shuffle, drop_last=drop_last)
    first = first_step(state.reshards, epoch)
    order = SampleOrder(num_samples, size, drop_last=drop_last, shuffle=None, share=share, remainder=left, first=first)
    return len(order) - state.step, len(order) - first

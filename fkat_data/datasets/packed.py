"""Pack documents into sequences of one length, with the boundaries that attention needs to separate them."""

import copy
import functools
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from fkat_data.datasets.best_fit import best_fit, count_bins
from fkat_data.datasets.dealt_order import Windows, split_largest
from fkat_data.datasets.equal_cost import Cost, CostBalance, balance_of, check_cost
from fkat_data.datasets.item_index import EpochOrder, counted_from_start, is_map_style, items_at
from fkat_data.datasets.lengths import as_lengths
from fkat_data.datasets.packed_rows import TOO_LONG, Fragment, fields_of, packed_sequence, padding_of
from fkat_data.datasets.rank_loads import RankLoad
from fkat_data.datasets.resumable import base_state, load_base_state
from fkat_data.errors import ConfigurationError
from fkat_data.errors.arguments import checked_state, choice, integer, saved_integer
from fkat_data.errors.wording import Described
from fkat_data.files.lru_cache import LruCache
from fkat_data.permutation import permutation

# 1: until the plan of an epoch was the same for any number of ranks. Its orders of one rank are those of today.
_STATE_VERSION = 2
_PLANS_KEPT = 4
# Workers take turns, so some are still in the one before.
_HORIZONS_KEPT = 2
# From this many windows on, counting what all give together is faster than planning each.
_COUNTED_TOGETHER = 128


class SequencePart(NamedTuple):
    """A sequence of the plan, or what a halving makes of one: an index of the dataset of any rank.

    Attributes:
        sequence: Index of the sequence in the plan.
        start: Its first fragment.
        stop: The end of its fragments; None: all that follow.
    """

    sequence: int
    start: int = 0
    stop: int | None = None


class DealtSequence(NamedTuple):
    """A sequence of this rank that is known once a run of the plan's is dealt out by cost.

    Attributes:
        first: The first sequence of the run.
        stop: The end of the run.
        num_before: Sequences that the ranks have before the run.
        round: The round of the run.
    """

    first: int
    stop: int
    num_before: int
    round: int


class _Planned:
    """The part of an epoch's plan that was made so far.

    Args:
        seed: Seed of its order.
        epoch: The epoch.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        self.plans: LruCache[list[list[Fragment]]] = LruCache(_PLANS_KEPT)
        self.ends: list[int] | None = None  # the plan's sequences up to and including each window
        self.tail: list[SequencePart] | None = None  # the last sequences of all ranks, where they were halved
        self.runs: list[tuple[int, int]] | None = None  # of the plan's sequences, each dealt out by cost
        self.horizons: LruCache[list[list[Fragment]]] = LruCache(_HORIZONS_KEPT)  # this rank's


class PackedDataset(EpochOrder, Described, Dataset[dict[str, torch.Tensor]]):
    """Sequences of ``sequence_length`` tokens, each packed with whole documents of a base dataset.

    An epoch is cut into windows. Each window's documents are packed by best fit, the longest first, and the sequences
    are then shuffled. This plan is a function of (seed, epoch, window) and the lengths, the same for any number of
    ranks: the sequence at ``index`` on ``rank`` is the one at ``index * world_size + rank`` of the plan. Every rank
    computes the plan without communication if ``lengths`` and ``seed`` are the same on each.

    If the number of sequences is no multiple of ``world_size``, the fullest of the epoch's last ones are halved. So
    every rank has the same number of sequences, and every document appears once. The only exception is a last window
    with too few documents to halve: up to ``world_size - 1`` sequences are dropped in that epoch.

    With ``cost``, sequences are dealt out in rounds of neighbours by cost instead, within horizons of at least 32 rounds
    and four windows, so that ranks compute about equally much at each step. The cost of a sequence is the sum over its
    documents. The order of the rounds stays that of the shuffle.

    A sequence is a dict of tensors:

    - the packed fields ("tokens" if items are bare tensors), with ``pad_value`` after the last document;
    - ``document_ids``, int32: 0 for the tokens of the first document, 1 for the second …, -1 for padding;
    - ``position_ids``, int64: index of each token in its fragment; in the padding they begin at 0 again;
    - ``cu_seqlens``, int32: start of each fragment and the end of the last one, in the format of attention kernels for
      sequences of varying length. Padding counts as a fragment: the last number is ``sequence_length``.

    The length of ``cu_seqlens`` differs between sequences, so use ``collate_packed`` as ``collate_fn``.

    The first ``len()`` or item of an epoch counts the sequences of all its windows. That takes some microseconds per
    document, and half a microsecond where there are many windows: 3 seconds and less than 1 GiB for 10^7 documents.

    Args:
        base_dataset: The documents: one-dimensional tensors, or dicts that contain such tensors.
        sequence_length: Number of tokens in a sequence, at least 1.
        window_size: Number of documents to pack together, at least ``world_size``.
        lengths: Length of each document in tokens, as a list, an array or a tensor; None: call the base dataset's
            ``sort_key(index)``.
        fields: Entries to pack if an item is a dict. Each must have the document's length.
        pad_value: Value of the padding after the last document.
        padding: The same for each field that it names, such as ``{"labels": -100}``.
        rank: Index of this rank, from 0 to ``world_size - 1``.
        world_size: Number of ranks.
        shuffle: Whether to shuffle in each epoch. If false, windows follow the dataset's order, and sequences are in
            order of their first documents.
        seed: Any integer, the same on every rank. None, for one rank only: draw one from torch's global CPU generator,
            as in a ``BufferSortedDataset``.
        too_long: What to do with documents that are longer than a sequence: "raise", "skip", "truncate" them to their
            first tokens, or "split" them into fragments that all fill a sequence except the last.
        cost: Function from an array of lengths to the costs of documents, such as ``attention_cost(hidden_size)``. It is
            called once, with all lengths up to the longest one. None: sequences are dealt out in turn.
        accumulate: Sequences of a rank in one optimizer step: their costs are balanced in sum. Without ``cost``, 1.

    Raises:
        ConfigurationError: An argument is invalid, a document is too long, or there are fewer documents than ranks.
    """

    def __init__(
        self,
        base_dataset: Any,
        sequence_length: int,
        window_size: int = 4096,
        *,
        lengths: Any = None,
        fields: Sequence[str] = ("tokens",),
        pad_value: float = 0,
        padding: Mapping[str, float] | None = None,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int | None = None,
        too_long: Literal["raise", "skip", "split", "truncate"] = "raise",
        cost: Cost | None = None,
        accumulate: int = 1,
    ) -> None:
        if not is_map_style(base_dataset):
            raise ConfigurationError("base_dataset", base_dataset, "a dataset with __len__() and __getitem__(index)")
        self._base = base_dataset
        self._sequence_length = integer("sequence_length", sequence_length, minimum=1)
        self._padding = padding_of(fields, padding, pad_value)
        self._too_long = choice("too_long", too_long, TOO_LONG)
        if lengths is None and not callable(getattr(base_dataset, "sort_key", None)):
            expected = "one integer for each document, or documents whose sort_key(index) returns their length"
            raise ConfigurationError("lengths", lengths, expected)
        self._lengths = as_lengths("lengths", base_dataset if lengths is None else lengths)
        if len(self._lengths) != len(base_dataset):
            expected = f"one length for each of the {len(base_dataset)} documents, not {len(self._lengths)}"
            raise ConfigurationError("lengths", lengths, expected)
        ranks = {"rank": rank, "world_size": world_size}
        self._windows = Windows(self._fitting(), window_size, **ranks, shuffle=shuffle, seed=seed)
        longest = min(int(self._lengths.max()), self._sequence_length)
        self.balance: CostBalance | None = balance_of(cost, longest, accumulate)
        """What deals sequences to ranks by their cost; None: they are dealt out in turn."""
        self._planned: _Planned = _Planned(self.seed, 0)
        self._planned_before: _Planned | None = None  # the epoch before may be asked for again

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("epoch", self.epoch),
            ("sequence_length", self._sequence_length),
            ("documents", len(self._lengths)),
            ("rank", self._windows.rank),
            ("base_dataset", self._base),
        ]

    @property
    def epoch(self) -> int:
        """Epoch of the present order."""
        return self._planned.epoch

    @property
    def seed(self) -> int:
        """Seed of every epoch's order, given or drawn."""
        return self._windows.seed

    @property
    def is_seed_drawn(self) -> bool:
        """Whether ``seed`` was drawn, and decides on the order: a state has to say which."""
        return self._windows.shuffle and not self._windows.is_seed_given

    @property
    def dp_size(self) -> int:
        """Number of ranks that the plan is dealt out to."""
        return self._windows.world_size

    @property
    def dp_rank(self) -> int:
        """Index of this rank."""
        return self._windows.rank

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return this dataset for rank ``dp_rank`` of ``dp_size``, in the same epoch; this one stays unchanged.

        The base dataset is shared. All ranks need the same seed: if it was drawn, the one of one rank's state.

        Raises:
            ConfigurationError: The rank does not exist, or there are fewer documents than ranks.
        """
        other = copy.copy(self)
        planned = _Planned(self.seed, self.epoch)
        planned.ends = self._planned.ends
        vars(other).update(_windows=self._windows.for_rank(dp_size, dp_rank), _planned=planned, _planned_before=None)
        return other

    def rest(
        self,
        earlier: Sequence[tuple[Sequence[int | None], int]],
        *,
        drop_last: bool = False,
        order: Sequence[int] | None = None,
    ) -> list[SequencePart | DealtSequence]:
        """Return what this rank gets of what other ranks have left of the epoch: indices of this dataset, in order.

        Args:
            earlier: How many batches each rank had when the number of ranks or the size of batches changed, each time, and
                that size; None: all.
            drop_last: Whether ranks left out a last batch that was smaller.
            order: The order in which each of the first ranks took its sequences; None: one after the other.
        """
        planned = self._planned
        left = [SequencePart(index) for index in range(self._window_ends(planned)[-1])]
        for counts, batch_size in earlier:
            parts, spare = self._even(left, len(counts), planned)
            num_rounds = len(parts) // len(counts)
            most = num_rounds - (num_rounds % batch_size if drop_last else 0)
            had = [most if count is None else count * batch_size for count in counts]
            left = self._left_of(parts, had, order, planned) + spare
            order = None
        num_ranks, rank = self._windows.world_size, self._windows.rank
        found: list[SequencePart | DealtSequence] = []
        parts = self._even(left, num_ranks, planned)[0]
        for first, stop in self._horizons(len(parts), num_ranks, planned):
            run = parts[first:stop]
            plan = range(run[0].sequence, run[0].sequence + len(run))
            if self.balance is not None and num_ranks > 1 and run == [*map(SequencePart, plan)]:
                # Dealt out where it is asked for: else, an epoch would be planned as a whole.
                numbers = range(len(run) // num_ranks)
                found += [DealtSequence(plan.start, plan.stop, first, number) for number in numbers]
            else:
                found += [run[index] for index in self._dealt(run, num_ranks, first, planned)[:, rank].tolist()]
        return found

    def _left_of(
        self, parts: list[SequencePart], had: list[int], order: Sequence[int] | None, planned: "_Planned"
    ) -> list[SequencePart]:
        """Return the parts that ranks have left, in order if ``order`` is None; ``had`` is the number that each has taken."""
        num_ranks = len(had)
        left: list[SequencePart] = []
        taken: list[npt.NDArray[np.int64]] = []
        for first, stop in self._horizons(len(parts), num_ranks, planned):
            start, end = first // num_ranks, stop // num_ranks
            if order is not None:
                taken.append(first + self._dealt(parts[first:stop], num_ranks, first, planned))
            elif start >= max(had):
                left += parts[first:stop]
            elif end > min(had):
                dealt = first + self._dealt(parts[first:stop], num_ranks, first, planned)
                is_left = np.arange(start, end)[:, None] >= np.array(had)
                left += [parts[index] for index in np.sort(dealt[is_left]).tolist()]
        if order is not None and taken:
            dealt = np.concatenate(taken)[np.asarray(order, np.int64)]
            is_left = np.arange(len(dealt))[:, None] >= np.array(had)
            left += [parts[index] for index in dealt[is_left].tolist()]
        return left

    def _horizons(self, count: int, num_ranks: int, planned: "_Planned") -> list[tuple[int, int]]:
        """Return first and stop of the runs of some sequences that are dealt out each by itself."""
        if self.balance is None or not count:
            return [(0, count)] if count else []
        ends = self._window_ends(planned)
        return self.balance.horizons(count, num_ranks, -(-ends[-1] // len(ends)))

    def _dealt(
        self, parts: list[SequencePart], num_ranks: int, num_before: int, planned: "_Planned"
    ) -> npt.NDArray[np.int64]:
        """Return indices of sequences by round and rank."""
        sequences = (self._fragments_of(part, planned) for part in parts)
        return self._rounds_of(sequences, len(parts), num_ranks, num_before)

    def _rounds_of(
        self, sequences: Iterable[list[Fragment]], count: int, num_ranks: int, num_before: int
    ) -> npt.NDArray[np.int64]:
        balance = self.balance
        if balance is None or num_ranks == 1:
            return np.arange(count).reshape(-1, num_ranks)
        costs = [balance.of([each.length for each in fragments]) for fragments in sequences]
        return balance.rounds(costs, num_ranks, num_before // num_ranks)

    def rank_loads(self) -> Iterator[list[RankLoad]]:
        """Yield what each rank computes, round by round, in the present epoch: for ``plan_report``."""
        for sequences in self.rounds():
            of_ranks = [[fragment.length for fragment in fragments] for fragments in sequences]
            yield [RankLoad(sum(each), self._sequence_length, self._sequence_length, each) for each in of_ranks]

    def rounds(self) -> Iterator[list[list[Fragment]]]:
        """Yield lists with the fragments of a sequence for each rank: those of the present epoch."""
        planned, num_ranks = self._planned, self._windows.world_size
        count = self._length_of(planned) * num_ranks
        single_rounds = [(first, first + num_ranks) for first in range(0, count, num_ranks)]
        for first, stop in single_rounds if self.balance is None else self._horizons(count, num_ranks, planned):
            sequences = [self._planned_at(position, planned) for position in range(first, stop)]
            for dealt in self._rounds_of(sequences, len(sequences), num_ranks, first).tolist():
                yield [sequences[index] for index in dealt]

    def __len__(self) -> int:
        return self._length_of(self._planned)

    def _length_of(self, planned: "_Planned") -> int:
        whole, spare = divmod(self._window_ends(planned)[-1], self._windows.world_size)
        return whole + (spare > 0 and bool(self._halved_tail(planned)))

    def __getitem__(self, index: int | SequencePart | DealtSequence) -> dict[str, torch.Tensor]:
        fragments = self.fragments(index)
        return self._sequence(fragments, items_at(self._base, [fragment.document for fragment in fragments]))

    def fragments(self, index: int | SequencePart | DealtSequence) -> list[Fragment]:
        """Return the fragments of the sequence at ``index``, in order.

        Raises:
            IndexError: ``index`` is out of range.
        """
        # One epoch for all that follows: another thread may go to the next one.
        return self._fragments_of(index, self._planned)

    def _fragments_of(self, index: int | SequencePart | DealtSequence, planned: "_Planned") -> list[Fragment]:
        if isinstance(index, SequencePart):
            return self._sequence_at(index.sequence, planned)[index.start : index.stop]
        num_ranks = self._windows.world_size
        if isinstance(index, DealtSequence):
            return self._own(index, planned, self._sequence_at)[index.round]
        if num_ranks == 1:
            return self._sequence_at(index, planned)
        length = self._length_of(planned)
        if not 0 <= index < length:
            index = counted_from_start(index, length)
        position = index * num_ranks
        if self.balance is None:
            return self._planned_at(position + self._windows.rank, planned)
        if planned.runs is None:
            planned.runs = self._horizons(length * num_ranks, num_ranks, planned)
        first, stop = planned.runs[min(position // planned.runs[0][1], len(planned.runs) - 1)]
        dealt = DealtSequence(first, stop, first, (position - first) // num_ranks)
        return self._own(dealt, planned, self._planned_at)[dealt.round]

    def _own(
        self, run: DealtSequence, planned: "_Planned", at: Callable[[int, "_Planned"], list[Fragment]]
    ) -> list[list[Fragment]]:
        """Return this rank's sequences of a run."""

        def make() -> list[list[Fragment]]:
            sequences = [at(position, planned) for position in range(run.first, run.stop)]
            dealt = self._rounds_of(sequences, len(sequences), self._windows.world_size, run.num_before)
            return [sequences[index] for index in dealt[:, self._windows.rank].tolist()]

        return planned.horizons.get((run[:3], at.__name__), make)

    def _planned_at(self, position: int, planned: "_Planned") -> list[Fragment]:
        """Return a sequence of the plan of all ranks, with the last ones as they were halved."""
        tail = self._halved_tail(planned)
        in_tail = position - self._length_of(planned) * self._windows.world_size + len(tail)
        return self._sequence_at(position, planned) if in_tail < 0 else self._fragments_of(tail[in_tail], planned)

    def _set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self._go_to(self.seed, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return seed, epoch and settings as plain values, and the base dataset's state if it has one.

        It is the same on all ranks, and for any number of them.
        """
        windows = self._windows
        return {
            "version": _STATE_VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "sequence_length": self._sequence_length,
            "window_size": windows.window_size,
            "shuffle": windows.shuffle,
            "num_documents": len(self._lengths),
            "num_tokens": int(self._lengths.sum()),
            "too_long": self._too_long,
            **({} if self.balance is None else self.balance.settings()),
            **base_state(self._base),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Switch to the packing that ``state_dict`` describes.

        Raises:
            StateMismatchError: The state has other settings or documents, or another seed than ``seed``. Between
                epochs, call ``set_epoch`` instead of loading it.
        """
        check_cost(state_dict, self.balance)
        state = checked_state(state_dict, self.state_dict(), "seed", "epoch", "cost", "accumulate")
        seed = self._windows.saved_seed(state["seed"])
        epoch = saved_integer("epoch", state["epoch"], minimum=0)
        load_base_state(self._base, state)
        self._go_to(seed, epoch)

    def _go_to(self, seed: int, epoch: int) -> None:
        self._windows.seed = seed
        before, self._planned_before = self._planned_before, self._planned
        if before is None or (before.seed, before.epoch) != (seed, epoch):
            before = _Planned(seed, epoch)
        self._planned = before

    def _fitting(self) -> npt.NDArray[np.int64]:
        longest = int(self._lengths.max(initial=0))
        if longest > self._sequence_length and self._too_long == "raise":
            raise ConfigurationError(
                f"lengths[{int(self._lengths.argmax())}]",
                longest,
                f"at most sequence_length = {self._sequence_length}, or too_long='skip', 'truncate' or 'split'",
            )
        limit = self._sequence_length if self._too_long == "skip" else longest
        # An empty document has nothing to pack.
        fitting = np.flatnonzero((self._lengths > 0) & (self._lengths <= limit))
        if not len(fitting):
            expected = f"a document of 1 to {self._sequence_length} tokens"
            raise ConfigurationError("lengths", f"<of {len(self._lengths)} documents>", expected)
        return fitting

    def _window_ends(self, planned: "_Planned") -> list[int]:
        if planned.ends is None:
            windows = range(self._windows.num_windows)
            if len(windows) < _COUNTED_TOGETHER:
                planned.ends = list(accumulate(len(self._plan(window, planned)) for window in windows))
            else:
                lengths = [self._used(self._windows.items(planned.epoch, window)) for window in windows]
                # Fragments that fill a sequence are alone in it.
                rests = count_bins([each % self._sequence_length for each in lengths], self._sequence_length)
                whole = [int((each // self._sequence_length).sum()) for each in lengths]
                planned.ends = list(accumulate(map(operator.add, whole, rests)))
        return planned.ends

    def _used(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many tokens of each document are packed."""
        lengths = self._lengths[documents]
        return np.minimum(lengths, self._sequence_length) if self._too_long == "truncate" else lengths

    def _plan(self, window: int, planned: "_Planned") -> list[list[Fragment]]:
        windows = self._windows
        fragments: list[Fragment] = []
        documents = windows.items(planned.epoch, window)
        for document, length in zip(documents.tolist(), self._used(documents).tolist(), strict=True):
            starts = range(0, length, self._sequence_length)
            fragments += [Fragment(document, start, min(self._sequence_length, length - start)) for start in starts]
        # Within a sequence, and in an epoch that is not shuffled, documents follow the epoch's order, not their length.
        bins = sorted(map(sorted, best_fit([fragment.length for fragment in fragments], self._sequence_length)))
        order = range(len(bins))
        if windows.shuffle:
            order = permutation(len(bins), b"fkat_data packed", planned.seed, planned.epoch, window).tolist()
        return [[fragments[index] for index in bins[number]] for number in order]

    def _sequence_at(self, index: int, planned: "_Planned") -> list[Fragment]:
        """Return a sequence of the plan."""
        ends = self._window_ends(planned)
        if not 0 <= index < ends[-1]:
            index = counted_from_start(index, ends[-1])
        window = bisect_right(ends, index)
        plan = planned.plans.get(window, functools.partial(self._plan, window, planned))
        return plan[index - (ends[window - 1] if window else 0)]

    def _halved_tail(self, planned: "_Planned") -> list[SequencePart]:
        """Return the last sequences of all ranks, if the plan's had to be halved so that they have equally many."""
        if planned.tail is None:
            num_planned = self._window_ends(planned)[-1]
            planned.tail = self._tail_of(num_planned, SequencePart, self._windows.world_size, planned)
        return planned.tail

    def _even(
        self, parts: list[SequencePart], num_ranks: int, planned: "_Planned"
    ) -> tuple[list[SequencePart], list[SequencePart]]:
        """Return whole rounds of sequences, and those that are left out because they are too few to halve."""
        whole, spare = divmod(len(parts), num_ranks)
        if not spare:
            return parts, []
        tail = self._tail_of(len(parts), parts.__getitem__, num_ranks, planned)
        kept = (whole + bool(tail)) * num_ranks - len(tail)
        return parts[:kept] + tail, [] if tail else parts[kept:]

    def _tail_of(
        self, count: int, part_at: Callable[[int], SequencePart], num_ranks: int, planned: "_Planned"
    ) -> list[SequencePart]:
        """Return whole rounds of the last sequences of some, halved; none if there are whole rounds, or too few."""
        ends = self._window_ends(planned)
        whole, spare = divmod(count, num_ranks)
        # No further back than the last window, or else an epoch of single documents would be planned once more.
        first_of_window = count - (ends[-1] - (ends[-2] if len(ends) > 1 else 0))
        for first in range(whole * num_ranks, max(-1, first_of_window - num_ranks), -num_ranks) if spare else ():
            tail = [part_at(index) for index in range(first, count)]
            sizes = [len(self._fragments_of(part, planned)) for part in tail]
            parts = split_largest(sizes, whole * num_ranks + num_ranks - first)
            if parts is not None:
                return [
                    SequencePart(tail[index].sequence, tail[index].start + start, tail[index].start + stop)
                    for index, start, stop in parts
                ]
        return []

    def _sequence(self, fragments: list[Fragment], items: list[Any]) -> dict[str, torch.Tensor]:
        values: dict[str, list[torch.Tensor]] = {field: [] for field in self._padding}
        for (document, start, length), item in zip(fragments, items, strict=True):
            expected = int(self._lengths[document])
            for field, value in fields_of(item, list(self._padding), f"of document {document}").items():
                if value.shape != (expected,):
                    shape = f"the shape of {field!r} in the item: {list(value.shape)}"
                    raise ConfigurationError(f"lengths[{document}]", expected, shape)
                values[field].append(value[start : start + length])
        lengths = [fragment.length for fragment in fragments]
        return packed_sequence(values, lengths, self._sequence_length, self._padding)

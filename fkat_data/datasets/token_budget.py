"""Batches that fill a token budget, padding included, with the same number of batches on every rank."""

import copy
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple, Self, cast

import numpy as np
from torch.utils.data import Sampler

from fkat_data.datasets.dealt_order import PlannedBatch, RankCounts, Windows, balanced_rounds
from fkat_data.datasets.equal_cost import Cost, CostBalance, balance_of, check_cost
from fkat_data.datasets.lengths import as_lengths
from fkat_data.datasets.rank_loads import RankLoad
from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.errors.arguments import checked_state, choice, integer, saved_integer
from fkat_data.errors.wording import Described
from fkat_data.permutation import permutation

# 1: until the plan of an epoch was the same for any number of ranks. Its orders of one rank are those of today.
_STATE_VERSION = 2


class _BatchPosition(NamedTuple):
    """A position: ``step`` batches of an epoch were yielded on each rank, some of them to earlier numbers of ranks.

    ``dealt`` has those numbers, each with the step at which it ended.
    """

    epoch: int
    step: int
    dealt: tuple[tuple[int, int], ...] = ()

    @property
    def first_step(self) -> int:
        """The step at which the present number of ranks began."""
        return self.dealt[-1][1] if self.dealt else 0

    def rank_counts(self) -> list[RankCounts]:
        """Return the earlier numbers of ranks, and the rounds of each."""
        starts = pairwise([0, *(stop for _, stop in self.dealt)])
        return [[stop - start] * ranks for (ranks, _), (start, stop) in zip(self.dealt, starts, strict=True)]

    def continued(self, num_ranks: int, earlier: Sequence[RankCounts]) -> list[RankCounts]:
        """Return the counts before ``num_ranks`` ranks at this position, the last of which are ``earlier``."""
        counts = self.rank_counts()
        if not earlier:
            return counts
        num_before = self.step - self.first_step
        if counts and len(counts[-1]) == len(earlier[0]) != num_ranks:
            num_before = counts.pop()[0] or 0  # the same ranks, which had gone on from here
        had = [None if count is None else count + num_before for count in earlier[0]]
        return [*counts, had, *earlier[1:]]

    def dealt_again(self, num_ranks: int, present: int) -> "_BatchPosition":
        """Return this position of ``num_ranks`` ranks as one of ``present`` ranks."""
        if num_ranks == present or self.step == self.first_step:
            return self
        return self._replace(dealt=(*self.dealt, (num_ranks, self.step)))


class TokenBudgetBatchSampler(Described, Sampler[list[int]]):
    """A batch sampler that groups samples of similar length, as many as fit ``max_tokens`` once padded.

    An epoch is cut into windows. Within a window, the samples are sorted by length and cut into batches, which are
    shuffled. This plan is a function of (seed, epoch, window) and the lengths, the same for any number of ranks. It is
    dealt out in rounds of ``world_size`` batches that are neighbours by length, so that all ranks work for about the
    same time. Every rank computes the plan without communication if ``lengths`` and ``seed`` are the same on each.

    Batches that make no whole round wait for the next window; in the last window, the fullest are halved until all
    rounds are whole. So every rank has the same number of batches, and every sample appears once. The only exception
    is a last window with too few samples to halve: up to ``world_size - 1`` of its batches are dropped in that epoch.

    With ``cost``, the neighbours are those by cost, of at least 32 rounds and four windows. The cost of a batch is that of
    its padded lengths, since padding is computed. The order of the rounds stays that of the shuffle.

    A state of any number of ranks can be loaded. What they have left of the epoch is dealt out again.

    ``iter()`` yields the rest of the current epoch; a full pass ends at the start of the next one. After a loop that
    ended early, the next loop starts the next epoch. A new iterator ends the older ones. ``len()`` returns the number
    of this rank's batches in the epoch that the next loop yields, and plans all of them.

    Args:
        lengths: Length of each sample in tokens, as a list, an array or a tensor; or a dataset whose
            ``sort_key(index)`` returns the length.
        max_tokens: Budget of a batch: its number of samples times the length of its longest one.
        window_size: Number of samples to plan together, at least ``world_size``; an epoch's remainder is spread over
            its windows. It should hold many times ``world_size`` batches. Larger windows need less padding but are less
            random.
        rank: Index of this rank, from 0 to ``world_size - 1``.
        world_size: Number of ranks.
        shuffle: Whether to shuffle in each epoch. If false, windows follow the dataset's order, and steps are in order
            of length.
        seed: Any integer, the same on every rank. None, for one rank only: draw one from torch's global CPU generator,
            as in a ``BufferSortedDataset``.
        pad_to_multiple_of: Multiple that the collate function rounds padded lengths up to.
        max_batch_size: Maximum number of samples in a batch; None: no limit besides ``max_tokens``.
        too_long: What to do with samples that are longer than ``max_tokens``: "raise" or "skip".
        cost: Function from an array of lengths to the costs of samples, such as ``attention_cost(hidden_size)``. It is
            called once, with all lengths up to the longest one. None: neighbours are those by length.
        accumulate: Batches of a rank in one optimizer step: their costs are balanced in sum. Without ``cost``, 1.

    Raises:
        ConfigurationError: An argument is invalid, a sample is too long, or there are fewer samples than ranks.
    """

    reports_start = True
    """Once ``iter()`` has returned, ``state_dict()`` says where that iteration begins, for a loader to save."""

    def __init__(
        self,
        lengths: Any,
        max_tokens: int,
        window_size: int = 4096,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int | None = None,
        pad_to_multiple_of: int = 1,
        max_batch_size: int | None = None,
        too_long: Literal["raise", "skip"] = "raise",
        cost: Cost | None = None,
        accumulate: int = 1,
    ) -> None:
        self._max_tokens = integer("max_tokens", max_tokens, minimum=1)
        multiple = integer("pad_to_multiple_of", pad_to_multiple_of, minimum=1)
        self._max_batch_size = None if max_batch_size is None else integer("max_batch_size", max_batch_size, minimum=1)
        choice("too_long", too_long, ("raise", "skip"))
        found = as_lengths("lengths", lengths)
        # Rounded up as by the collate function; an empty sample still takes a row.
        self._lengths = np.maximum(-(-found // multiple) * multiple, 1)
        self._unpadded = self._lengths if np.array_equal(found, self._lengths) else found
        fitting = np.flatnonzero(self._lengths <= self._max_tokens)
        if len(fitting) < len(found) and too_long == "raise":
            longest = int(self._lengths.argmax())
            raise ConfigurationError(
                f"lengths[{longest}]", int(found[longest]), f"at most max_tokens = {max_tokens}, or too_long='skip'"
            )
        self._windows = Windows(fitting, window_size, rank=rank, world_size=world_size, shuffle=shuffle, seed=seed)
        self._settings = {
            "max_tokens": self._max_tokens,
            "window_size": self._windows.window_size,
            "shuffle": self._windows.shuffle,
            "pad_to_multiple_of": multiple,
            "max_batch_size": self._max_batch_size,
            "num_samples": len(fitting),
            "lengths": zlib.crc32(self._lengths.astype("<i8").tobytes()),
        }
        longest = int(self._lengths[fitting].max())
        self.balance: CostBalance | None = balance_of(cost, longest, accumulate)
        """What deals batches to ranks by their cost; None: their lengths do."""
        if self.balance is not None:
            self._settings |= self.balance.settings()
        self.num_skipped: int = len(found) - len(fitting)
        """Number of samples that are skipped because they are too long."""
        self._position = _BatchPosition(0, 0)
        self._iterator: object = None  # the newest one; None after set_epoch or load_state_dict
        self._count: tuple[object, int] | None = None  # what the number of batches depends on, and the number

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("epoch", self._position.epoch),
            ("step", self._position.step),
            ("max_tokens", self._max_tokens),
            ("samples", len(self._lengths)),
            ("rank", self._windows.rank),
        ]

    @property
    def seed(self) -> int:
        """Seed of every epoch's order, given or drawn."""
        return self._windows.seed

    @property
    def dp_size(self) -> int:
        """Number of ranks that the plan is dealt out to."""
        return self._windows.world_size

    @property
    def dp_rank(self) -> int:
        """Index of this rank."""
        return self._windows.rank

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return this sampler for rank ``dp_rank`` of ``dp_size``, at the same position; this one stays unchanged.

        All ranks need the same seed: if it was drawn, the one of one rank's state.

        Raises:
            ConfigurationError: The rank does not exist, or there are fewer samples than ranks.
        """
        windows = self._windows.for_rank(dp_size, dp_rank)
        position = self._start().dealt_again(self._windows.world_size, dp_size)
        other = copy.copy(self)
        vars(other).update(_windows=windows, _position=position, _iterator=None, _count=None)
        return other

    def rounds(self, epoch: int, earlier: Sequence[RankCounts] = ()) -> Iterator[list[list[int]]]:
        """Yield lists with a batch for each rank: those of an epoch, or of what other ranks have left of it.

        Args:
            epoch: The epoch.
            earlier: How many batches each rank had when the number of ranks changed, each time; None: all.
        """
        return self._rounds(epoch, self._windows.world_size, earlier)

    def rank_loads(self) -> Iterator[list[RankLoad]]:
        """Yield what each rank computes, round by round, in the present epoch: for ``plan_report``."""
        for batches in self.rounds(self._position.epoch):
            loads: list[RankLoad] = []
            for batch in batches:
                width = int(self._lengths[batch].max())
                tokens, padded = int(self._unpadded[batch].sum()), [width] * len(batch)
                loads.append(RankLoad(tokens, sum(padded), self._max_tokens, padded))
            yield loads

    def rest(self, earlier: Sequence[RankCounts] = ()) -> Iterator[list[int]]:
        """Iterate as ``iter()`` does, but over this rank's batches of what other ranks have left of the epoch.

        A loader calls this, which knows of those ranks. Until the epoch is over, ``state_dict()`` does not.

        Args:
            earlier: How many batches each rank had when the number of ranks changed, each time; None: all.
        """
        self._position = position = self._start()
        self._iterator = iterator = object()
        return self._walk(iterator, position, earlier)

    def __len__(self) -> int:
        return self._num_batches(self._start(), self._windows.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        return self.rest()

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` yield this epoch from its start.

        A position that ``load_state_dict`` has just set in the same epoch is kept: trainers call both on a resume.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigurationError: ``epoch`` is negative or not an integer.
        """
        epoch = integer("epoch", epoch, minimum=0)
        if self._iterator is not None or epoch != self._position.epoch:
            self._position = _BatchPosition(epoch, 0)
            self._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """Return position and settings as plain values: the same on all ranks at the same batch."""
        epoch, index, dealt = self._position
        return {
            "version": _STATE_VERSION,
            "epoch": epoch,
            "index": index,
            "seed": self.seed,
            "world_size": self._windows.world_size,
            "dealt": dealt,  # a tuple, which torch.distributed.checkpoint saves as one value
            **self._settings,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next ``iter()`` continue at a saved position, of any number of ranks.

        What the ranks that saved it have left of the epoch is dealt out to ``world_size`` ranks; ``index`` and ``len()``
        count on.

        Raises:
            StateMismatchError: The state has other settings, another seed than ``seed``, or a position past the end of
                the epoch's batches. The position then stays unchanged.
        """
        check_cost(state_dict, self.balance)
        free = ("epoch", "index", "seed", "world_size", "dealt", "cost", "accumulate")
        state = checked_state(state_dict, self.state_dict(), *free)
        seed = self._windows.saved_seed(state["seed"])
        saved = _saved_position(state)
        num_ranks = saved_integer("world_size", state["world_size"], minimum=1)
        own_seed, self._windows.seed = self.seed, seed
        num_batches = self._num_batches(saved, num_ranks)
        if saved.step > num_batches:
            self._windows.seed = own_seed
            hint = f"epoch {saved.epoch} has fewer batches; check that the lengths are the same"
            raise StateMismatchError("index", saved.step, f"<at most {num_batches}>", hint)
        position = saved.dealt_again(num_ranks, self._windows.world_size)
        is_over = saved.step in (num_batches, self._num_batches(position, self._windows.world_size))
        self._position = _BatchPosition(saved.epoch + 1, 0) if is_over else position
        self._iterator = None

    def _start(self) -> _BatchPosition:
        position = self._position
        return _BatchPosition(position.epoch + 1, 0) if self._iterator is not None and position.step > 0 else position

    def _walk(self, iterator: object, position: _BatchPosition, earlier: Sequence[RankCounts]) -> Iterator[list[int]]:
        epoch, index, dealt = position
        rest = self._rounds(epoch, self._windows.world_size, position.continued(self._windows.world_size, earlier))
        upcoming = rest if earlier else islice(rest, index - position.first_step, None)
        following = next(upcoming, None)
        if following is None:
            self._position = _BatchPosition(epoch + 1, 0)
        while following is not None:
            batches, following = following, next(upcoming, None)
            if self._iterator is not iterator:
                raise StaleIteratorError(
                    f"this iterator over epoch {epoch} has ended: a newer iterator, set_epoch() or "
                    "load_state_dict() replaced it"
                )
            index += 1
            # Before the yield: a state that the caller saves while it processes this batch counts it as yielded.
            self._position = _BatchPosition(epoch + 1, 0) if following is None else _BatchPosition(epoch, index, dealt)
            yield batches[self._windows.rank]

    def _num_batches(self, position: _BatchPosition, num_ranks: int) -> int:
        epoch, _, dealt = position
        name = (self.seed, epoch, dealt, num_ranks)
        if self._count is None or self._count[0] != name:
            self._count = (
                name,
                position.first_step + sum(1 for _ in self._rounds(epoch, num_ranks, position.rank_counts())),
            )
        return self._count[1]

    def _rounds(self, epoch: int, num_ranks: int, earlier: Sequence[RankCounts]) -> Iterator[list[list[int]]]:
        def plan(window: int) -> list[PlannedBatch]:
            return self._plan(epoch, window)

        return balanced_rounds(self._windows.num_windows, plan, num_ranks, earlier, self.balance)

    def _plan(self, epoch: int, window: int) -> list[PlannedBatch]:
        windows = self._windows
        indices = windows.items(epoch, window)
        indices = indices[np.argsort(self._lengths[indices], kind="stable")]
        lengths = self._lengths[indices]
        batches = self._cut(indices.tolist(), lengths.tolist())
        widths: list[int] = lengths[np.cumsum([*map(len, batches)]) - 1].tolist()
        positions = np.arange(len(batches))
        if windows.shuffle:
            order = permutation(len(batches), b"fkat_data steps", self.seed, epoch, window)
            positions[order] = positions.copy()
        return [*map(PlannedBatch, ((window << 32) + positions).tolist(), batches, widths)]

    def _cut(self, indices: list[int], lengths: list[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        budget, largest = self._max_tokens, self._max_batch_size or len(indices)
        start = 0
        while start < len(indices):
            # Lengths are sorted, so the tokens of a batch grow with the index of its last sample.
            most = min(len(indices) - start, largest, budget // lengths[start])
            size = min(most, budget // lengths[start + most - 1])
            most = min(most, budget // lengths[start + size - 1])
            while size < most:
                middle = (size + most + 1) // 2
                if lengths[start + middle - 1] * middle <= budget:
                    size = middle
                else:
                    most = middle - 1
            batches.append(indices[start : start + size])
            start += size
        return batches


def _saved_position(state: Mapping[str, Any]) -> _BatchPosition:
    epoch, index = (saved_integer(field, state[field], minimum=0) for field in ("epoch", "index"))
    dealt: list[tuple[int, int]] = []
    for each in _pairs(state["dealt"]):
        num_ranks, stop = (saved_integer("dealt", number, minimum=1) for number in each)
        if not (dealt[-1][1] if dealt else 0) < stop <= index:
            raise StateMismatchError("dealt", state["dealt"], "<indices that grow>", "the state is damaged")
        dealt.append((num_ranks, stop))
    return _BatchPosition(epoch, index, tuple(dealt))


def _pairs(value: object) -> list[Sequence[object]]:
    pairs = list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else [None]
    for each in pairs:
        if not isinstance(each, list | tuple) or len(cast("list[object]", each)) != 2:
            raise StateMismatchError("dealt", pairs, "<pairs of ranks and index>", "the state is damaged")
    return cast("list[Sequence[object]]", pairs)

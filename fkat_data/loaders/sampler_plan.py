"""The plan of a loader with a user's sampler: it is iterated in the trainer, as torch does, a few batches ahead.

An epoch is cut into tasks of some batches each. All tasks have one origin, so that random draws depend on the number
of the microbatch and not on where the tasks begin. What several ranks share is drawn on each of them.
"""

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from typing import Any, cast

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fkat_data.datasets.token_budget import TokenBudgetBatchSampler
from fkat_data.errors import StateMismatchError
from fkat_data.errors.arguments import copied_state
from fkat_data.loaders.checked_order import Check, CheckedOrder, check_order, checks_in
from fkat_data.loaders.computed_plan import SampleOrder
from fkat_data.loaders.loader_plan import OTHER_LENGTH, IndexPlan, NumberedBatches
from fkat_data.loaders.loader_state import LoaderState
from fkat_data.loaders.rank_share import RankShare
from fkat_data.loaders.reshards import (
    DistributedRemainder,
    all_known,
    distributed_sampler_of,
    distributed_settings,
    remainder_of,
    remaining_batches,
)
from fkat_data.loaders.sampler_states import (
    FirstBatch,
    Iteration,
    Reached,
    as_saved,
    begun_again,
    generators_of,
    has_own_state,
    is_same,
    load_into,
    members_of,
    repeated,
    states_of,
)
from fkat_data.plan.position import Position, Reshard, TaskOrigin
from fkat_data.plan.resharding import Remainder, first_step, of_epoch, reshards_until
from fkat_data.seeding import OwnGenerators

_BATCHES_PER_TASK = 32
# Microbatches behind the newest one whose positions are known.
_MOST_KEPT = 8 * _BATCHES_PER_TASK
# Those that draw from the global generators draw when their iteration begins, and not later.
_OF_TORCH = {
    *(BatchSampler, SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
}
_DRAWS_AT_ONCE = {*_OF_TORCH, list, tuple, range}


class SamplerPlan(IndexPlan):
    """The plan of epochs that are loops over a sampler.

    Args:
        sampler: The batch sampler, or the sampler where microbatches are single samples.
        seed: The loader's.
        dp_rank: The loader's data-parallel rank.
        most_ahead: Batches that may be drawn from a sampler of the user's before the caller has those before them. All of
            an epoch that are decided on when it begins come in larger tasks.
        known: Of the loader's first iteration.
        share: What this rank gets of the batches; None: there is one rank, or the sampler knows its rank.
        reshards: Where the number of ranks has changed.
        dealt: The sampler, if it deals itself out to ranks.
    """

    has_several_tasks = True
    in_words = "a dataset with a sampler of the caller's"

    def __init__(
        self,
        sampler: Iterable[Any],
        seed: int,
        dp_rank: int,
        *,
        most_ahead: int,
        known: FirstBatch,
        share: RankShare | None = None,
        reshards: Sequence[Reshard] = (),
        dealt: TokenBudgetBatchSampler | None = None,
    ) -> None:
        self._sampler = sampler
        self._dealt = dealt
        self._known_length: tuple[object, int] | None = None
        self._share = share
        self._reshards = reshards
        self._seed = seed
        self._dp_rank = dp_rank
        self._most_ahead = most_ahead
        self._first_batch = known
        self._read_samplers()
        # The samplers' states when the epoch began; None: the next one begins with what they are then.
        self._begun: dict[str, Any] | None = None
        # The same after the newest batch.
        self._drawn_to: dict[str, Any] | None = None
        # Of samplers with a state: the iteration under way; what a state says of the one that was left, with what they
        # said then; and, where this epoch begins again, the batches that they are past, with the same.
        self._iteration = Iteration()
        self._left: dict[str, Any] | None = None
        self._again: tuple[list[Any], dict[str, Any]] | None = None
        # Whether they say where their next iteration begins; None: that is not known yet.
        self._is_said: bool | None = None
        self._generators = OwnGenerators(0)
        # What the epoch's batches are drawn from, as the sampler was when the epoch began.
        self._iterable: Iterable[Any] = ()
        self._order = CheckedOrder(iter(()))
        # This rank's batches.
        self._own: Iterator[Any] = iter(())
        self._is_inconsistent = self._is_over = self._is_stale = False
        self._tasks: dict[int, NumberedBatches] = {}
        self._num_tasks = self._num_drawn = 0
        # Batches that were drawn for all ranks, and their digest.
        self._newest: Check = (0, 0)
        # How far the sampler was drawn for the batches before a step, for the steps that a state may be asked for.
        self._marks: dict[int, tuple[int, int]] = {}
        # The same of an earlier iteration over the sampler in this epoch.
        self._known: dict[int, tuple[int, int]] = {}

    def renew(self, epoch: int, step: int) -> None:
        """Iterate the sampler again when the next iteration begins: its order is what it is by then.

        Args:
            epoch: The epoch of the caller's position.
            step: Microbatches of it that the caller has. What was drawn ahead of them from the samplers is taken back.
        """
        loaded = self._loaded_at(epoch)
        if epoch == self._epoch and (not loaded or loaded.get("step") != step or not step):
            self._go_back(step)
        self._is_stale = True
        self._read_samplers()

    def leave(self, position: Position) -> None:
        """Have the samplers begin the next epoch where the caller has left this one."""
        if position.epoch == self._epoch:
            self._go_back(position.step)

    def _read_samplers(self) -> None:
        """Look at what the sampler takes its indices from: an iteration begins."""
        sampler = self._sampler
        self._distributed = distributed_sampler_of(sampler)
        self._members = members_of(sampler)
        self._draws_at_once = all(type(member) in _DRAWS_AT_ONCE for member in self._members)
        self.num_tasks_ahead, self._batches_per_task = (
            (1, _BATCHES_PER_TASK) if self._draws_at_once else _tasks_of(self._most_ahead)
        )

    def _go_back(self, step: int) -> None:
        """Take back what was drawn from the samplers ahead of a step, unless the program has set them since."""
        begun = self._begun
        if begun is None or not self._is_as_drawn:
            return
        self._is_inconsistent = True
        drawn = self._marks.get(step, (0, 0))[0]
        if self._has_own_states:
            self._return_to(begun, drawn if step else 0)
        elif not step:
            self._load(begun)
        elif self._reports_start:
            self._generators.call(iter, self._sampler)
        elif drawn and self.has_states and not self._draws_at_once:
            self._load(begun)
            self._first_of(drawn)

    def _return_to(self, begun: dict[str, Any], drawn: int) -> None:
        """Set samplers with a state to where the epoch under way began, or to where a number of its batches were drawn."""
        if self._again is not None or self._left is not None:
            return  # they are there
        if not drawn:
            self._again = self._set_to_start(begun, self._newest) or [], self._states()
            return
        left = self._iteration.at(drawn, self._newest, is_over=self._is_over, is_left=True)
        if left is None and drawn == self._newest[0]:
            self._is_over = not self._draw(1)  # else nothing shows whether the samplers can be set to where they are
            left = self._iteration.at(drawn, self._newest, is_over=self._is_over, is_left=True)
        if drawn < self._newest[0]:
            if drawn == 1 and self._go_again_to(begun, drawn):
                left = None if self._says_next_start(begun) else left
            elif left is None or repeated(self._iterable, left, self._new_generators()) is None:
                left = None
                self._go_again_to(begun, drawn)
        self._left = {**(left or {}), "set": self._states()}

    def _go_again_to(self, begun: Mapping[str, Any], drawn: int) -> bool:
        """Set samplers with a state to where a number of batches were drawn; return whether they give the known ones."""
        before = self._set_to_start(begun, self._newest)
        num_before = len(before or [])
        self._first_of(drawn + (num_before == drawn), before or [])  # one that was not begun is none
        return before is not None

    def _says_next_start(self, begun: Mapping[str, Any]) -> bool:
        """Return whether samplers say, after the first batch, where their next iteration begins; they are there then."""
        if self._is_said is None:
            said = self._states()
            following = self._first_of(1)
            self._load(said)
            self._is_said = self._first_of(1) == following
            self._go_again_to(begun, 1)
        return self._is_said

    def _within(self, drawn: int) -> dict[str, Any] | None:
        return self._iteration.at(drawn, self._newest, is_over=self._is_over)

    def _set_to_start(self, begun: Mapping[str, Any], known: Check) -> list[Any] | None:
        """Set samplers with a state to where an epoch began; return the batches of it that they are past.

        None: they give other batches than those that are known.
        """
        is_live = begun is self._begun
        first = (self._iteration.first_said() if is_live else None) or self._first_batch.of(self._epoch, begun)
        found = begun_again(_frozen(self._sampler), begun, first, known, self._new_generators)
        if found is None:
            self._load(begun)
        return found

    def _previous(self) -> dict[str, Any] | None:
        """Return what a state says of the iteration that was left, where the samplers are still where it was left."""
        left: Mapping[str, Any] | None = self._left
        if left is None and self._begun is not None and self._is_over and not self._is_inconsistent:
            left = {**(self._within(self._newest[0]) or {}), "set": self._drawn_to}
        if left is None and self._begun is None and self._loaded is not None:
            left = self._loaded[1].get("previous")
        if left is None or not {"drawn", "set"} <= left.keys() or not is_same(left["set"], self._states()):
            return None
        return {name: value for name, value in left.items() if name != "set"}

    def _new_generators(self) -> OwnGenerators:
        return generators_of(self._seed, self._epoch)

    def _first_of(self, count: int, before: Sequence[Any] = ()) -> Check:
        """Iterate the sampler again for some batches, after those before; return their number and digest."""
        generators = self._new_generators()
        order = CheckedOrder(chain(before, generators.call(iter, self._iterable)))
        generators.call(lambda: deque(islice(order, count), 0))
        return order.count, order.digest

    def payload(self, epoch: int, index: int) -> Any:
        """Return a task of the epoch, or None past its end.

        Raises:
            Exception: The sampler's.
            StateMismatchError: The sampler gives another order than when the state of this epoch was saved, or than
                when it was iterated before.
        """
        is_dropped = index < self._num_tasks and index not in self._tasks
        if epoch != self._epoch or self._is_inconsistent or self._is_stale or is_dropped:
            self._begin(epoch)
        while self._num_tasks <= index and not self._is_over:
            self._draw_task()
        return self._tasks.get(index)

    def batch_at(self, epoch: int, number: int) -> Any:
        """Return a batch of an epoch without reshards, by its number; None past its end. Raises as ``payload`` does."""
        task: NumberedBatches | None = self.payload(epoch, number // self._batches_per_task)
        return None if task is None or number >= len(task) else task.batch(number)

    def origin(self, epoch: int, index: int) -> TaskOrigin | None:
        """Return where a task begins in the epoch."""
        task: NumberedBatches | None = self.payload(epoch, index)
        return None if task is None else TaskOrigin(self._dp_rank, 0, task.first)

    def load_plan_state(self, epoch: int, state: Mapping[str, Any] | None) -> None:
        """Begin this epoch with samplers as they were when the state's epoch began, and go on at its step."""
        super().load_plan_state(epoch, state)
        self._begun = self._left = self._again = None

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return what the order of the rest of an epoch depends on."""
        loaded = self._loaded_at(epoch)
        # A state of an epoch's start was set in the samplers, which have gone on since the epoch began.
        is_passed = loaded.get("step") != step or "generators" not in loaded
        if epoch == self._epoch and self._begun is not None and is_passed:
            drawn, order = self._marks.get(step, self._known.get(step, (0, 0)))
            count: dict[str, Any] = {"drawn": drawn} if self._share is not None or self._is_of_others(epoch) else {}
            within = self._within(drawn) if self._has_own_states else None
            if within is not None and self._share is None and not self._reshards:
                count["within"] = within
            return as_saved({**self._begun, **self._first_said(), "step": step, **count, "order": order})
        # A state of an order that is arithmetic, before the first microbatch, says nothing of these samplers.
        state = {**self._order_fields(), "step": 0, "order": 0, **({} if "num_samples" in loaded else loaded)}
        if self._has_own_states and "generators" not in loaded:
            for name in ("previous", "first", *(() if self._is_as_loaded(loaded) else ("orders",))):
                state.pop(name, None)
            previous = self._previous()
            state |= self._begun_of(loaded) if previous is None else {"previous": previous}
        return as_saved(state)

    def _first_said(self) -> dict[str, Any]:
        """Return what is known of the first batch, from which samplers that have nothing to go back from go on."""
        first = None if self._begun is None or "previous" in self._begun else self._iteration.first_said()
        return {} if first is None else {"first": first}

    def _is_as_loaded(self, loaded: Mapping[str, Any]) -> bool:
        """Return False if samplers are known to be other than a load has set them."""
        first = loaded.get("first", {})
        return "set" not in first or is_same(first["set"], self._states())

    def _begun_of(self, loaded: Mapping[str, Any]) -> dict[str, Any]:
        """Return what samplers said where the epoch began that a load has set them to; nothing: it is not known."""
        if "first" not in loaded or not self._is_as_loaded(loaded):
            return {}
        first = {name: value for name, value in loaded["first"].items() if name not in ("passed", "begun", "set")}
        return {**loaded["first"]["begun"], "first": first}

    def epoch_again(self, state: LoaderState) -> LoaderState:
        """Return the start of a state's epoch, and of samplers with a state what is known of its order."""
        again = super().epoch_again(state)
        if self._has_own_states and self._newest[0] and not again.step and state.epoch == self._epoch:
            return again.with_sampler({**again.sampler, "orders": [[*self._newest]]})
        return again

    def _is_of_others(self, epoch: int) -> bool:
        """Whether other ranks have had something of an epoch's batches, which are drawn again."""
        reshards = of_epoch(self._reshards, epoch)
        return self._distributed is None and bool(reshards) and not reshards[0].dealing.is_by_order

    def _begin(self, epoch: int) -> None:
        loaded = self._loaded_at(epoch)
        if not self._is_as_loaded(loaded):
            loaded = {name: value for name, value in loaded.items() if name != "orders"}
        previous = self._previous()
        before, begun = self._set_samplers(epoch, loaded)
        length = self._order_fields().get("length")
        if loaded.get("length", length) != length:
            raise StateMismatchError("num_samples", loaded["length"], length, OTHER_LENGTH)
        self._iterable = _frozen(self._sampler)
        order_fields = self._order_fields()
        if self._has_own_states and begun is not None:
            order_fields |= {
                name: begun[name] for name in ("generators", "samplers", "previous", "first") if name in begun
            }
        elif previous is not None:
            order_fields["previous"] = previous
        self._begun, self._epoch = order_fields, epoch
        self._iteration, self._left, self._again = Iteration(), None, None
        self._is_stale = False
        self._generators = self._new_generators()
        self._num_drawn = first_step(self._reshards, epoch)
        self._order, self._own = self._opened(epoch, loaded, before or [])
        self._newest = self._order.count, self._order.digest
        if self._reports_start:
            self._begun = self._order_fields()  # before iter(), it said where the iteration before was left
        self._tasks.clear()
        self._marks = {}
        self._num_tasks = 0
        if "step" in loaded:
            self._go_on(loaded, is_known=before is not None)
            self._marks = {step: self._marks[step] for step in (self._num_drawn,) if step in self._marks}
        self._is_inconsistent = False

    def _set_samplers(self, epoch: int, loaded: Mapping[str, Any]) -> tuple[list[Any] | None, Mapping[str, Any] | None]:
        """Set samplers to where an epoch begins.

        Returns:
            The batches that they are past, or None if they give others than those that are known; and what they said where
            the epoch began, or None where they are as the program has them.
        """
        is_same_epoch = epoch == self._epoch
        begun: Mapping[str, Any] | None = self._begun if is_same_epoch and not self._is_stale else None
        again = self._again if is_same_epoch else None
        self._known = {} if begun is None else {**self._known, **self._marks}
        self._is_inconsistent, self._is_over = True, False
        if again is not None and is_same(again[1], self._states()):
            return again[0], self._begun
        if begun is None and "generators" not in loaded:
            found = self._begun_of(loaded)
            return (loaded["first"]["passed"], found) if found else ([], None)
        known = [*self._known.values()] if begun is not None else checks_in(loaded)
        begun, self._epoch = begun or loaded, epoch
        if self._has_own_states:
            return self._set_to_start(begun, max(known, default=(0, 0))), begun
        self._load(begun)
        return [], begun

    def _go_on(self, loaded: Mapping[str, Any], *, is_known: bool) -> None:
        """Draw the batches before the step of a loaded state."""
        step: int = loaded["step"]
        if not is_known and "within" in loaded and self._share is None and not self._reshards:
            within = loaded["within"]
            order = repeated(self._iterable, within, self._generators, is_left=False)
            if order is not None:
                self._iteration.note(Reached(within, within["drawn"], within["order"]))
                self._order = self._own = order
                self._num_drawn = step
                self._newest = self._marks[step] = order.count, order.digest
                return
        if self._has_own_states and step:
            self._draw(1)
            self._note()
            self._skip(max(step - 1, 1))
            self._note()
        self._skip(step)

    def _opened(self, epoch: int, loaded: Mapping[str, Any], before: list[Any]) -> tuple[CheckedOrder, Iterator[Any]]:
        """Begin to draw an epoch, after batches that were; return what counts them, and this rank's of them."""
        checks = checks_in(loaded)
        reshards = of_epoch(self._reshards, epoch)
        # Of another rank's state, nothing else says whether the order is the same.
        if self._distributed is not None and (reshards or (loaded.get("step") and not checks)):
            _compare_order(loaded.get("distributed", {}), distributed_settings(self._distributed))
        if reshards and self._distributed is not None:
            rest = self._distributed_rest(self._distributed, epoch).batches()
            order = CheckedOrder(iter(rest), checks, num_before=self._num_drawn)
            return order, order
        if reshards and reshards[0].dealing.is_by_order and self._dealt is not None:
            rest = self._generators.call(self._dealt.rest, [reshard.counts_in(epoch) for reshard in reshards])
            order = CheckedOrder(rest, checks, num_before=self._num_drawn)
            return order, order
        share = self._share or RankShare(1, 0, even_batches=False)
        batches = self._generators.call(iter, self._iterable)
        order = CheckedOrder(
            chain(before, batches) if before else batches,
            checks,
            num_kept=share.num_in_round if self._share is not None or self._has_own_states else 0,
        )
        own: Iterator[Any] = order
        size, drop_last = self._batch_size, self._drop_last
        for reshard in reshards:
            own = remaining_batches(own, reshard, epoch, size, drop_last=drop_last)
        if reshards or self._share is not None:
            own = share.deal(own, order.first, size, drop_last=drop_last)
        return order, own

    def made_at(self, epoch: int, step: int) -> dict[int, list[Any]]:
        """Return the indices of each rank's microbatch at a step, as a ``DistributedSampler`` deals them out."""
        if self._distributed is None:
            return super().made_at(epoch, step)
        sampler, size = copy.copy(self._distributed), self._batch_size
        if epoch != self._epoch or self._begun is None:
            sampler.set_epoch(epoch)
        else:
            sampler.set_epoch(self._begun["distributed"]["epoch"])
        reshards = reshards_until(self._reshards, epoch, step)
        later = next((each for each in of_epoch(self._reshards, epoch) if each not in reshards), None)
        if later is not None:  # the ranks of then
            sampler.num_replicas, size = len(later.positions), later.dealing.batch_size
        dealt = DistributedRemainder(sampler, reshards, epoch, size, drop_last=self._drop_last).round_at(step)
        return dict(enumerate(dealt))

    def _distributed_rest(self, sampler: "DistributedSampler[Any]", epoch: int) -> DistributedRemainder:
        return DistributedRemainder(
            copy.copy(sampler), self._reshards, epoch, self._batch_size, drop_last=self._drop_last
        )

    def _skip(self, count: int) -> None:
        while self._num_drawn < count and self._draw(min(count - self._num_drawn, 1024)):
            pass

    def _draw_task(self) -> None:
        # After an interruption or an error, the iterator has gone past what is missing here.
        self._is_inconsistent = True
        first = self._num_drawn
        is_alone = self._has_own_states and not self._newest[0]
        batches = self._draw(1 if is_alone else self._batches_per_task)
        if is_alone and batches:
            self._note()
            self._first_batch.note(self._epoch, {**cast("dict[str, Any]", self._begun), **self._first_said()})
            batches += self._draw(self._batches_per_task - 1)
        if batches:
            self._tasks[self._num_tasks] = NumberedBatches(first, batches)
            self._num_tasks += 1
            old = self._tasks.pop(self._num_tasks - _MOST_KEPT // self._batches_per_task - 1, None)
            if old is not None:
                for step in range(old.first, len(old)):
                    self._marks.pop(step, None)
        self._is_over = len(batches) < self._batches_per_task
        self._drawn_to = self._note() if self._has_own_states else self._states()
        self._is_inconsistent = False

    def _note(self) -> dict[str, Any]:
        """Remember and return what samplers with a state say where the batches were drawn to."""
        states, order = self._states(), self._order
        self._iteration.note(Reached(states, order.count, order.digest), [*order.first])
        return states

    def _draw(self, count: int) -> list[Any]:
        """Return the next batches, at most ``count``."""
        if self._draws_at_once and self._order.count:
            drawn = self._drawn(count)
        else:
            drawn = self._generators.call(self._drawn, count)
        for _, *mark in drawn:
            self._num_drawn += 1
            found = cast("tuple[int, int]", tuple(mark))
            check_order(self._known.get(self._num_drawn, found)[1], found[1], "when it was iterated before")
            self._marks[self._num_drawn] = found
        self._newest = self._order.count, self._order.digest
        return [batch for batch, *_ in drawn]

    def _drawn(self, count: int) -> list[Any]:
        order = self._order
        return [(batch, order.count, order.digest) for batch in islice(self._own, count)]

    def num_batches(self, epoch: int) -> int:
        """Return this rank's microbatches of an epoch, with those before the number of ranks has changed.

        Raises:
            TypeError: The sampler has no length, or it is not known what ranks that split batches have left of it.
        """
        return self._num_batches(epoch, self._share)

    def _num_batches(self, epoch: int, share: RankShare | None) -> int:
        reshards = of_epoch(self._reshards, epoch)
        if reshards and self._distributed is not None:
            return len(self._distributed_rest(self._distributed, epoch))
        if reshards and reshards[0].dealing.is_by_order and self._dealt is not None:
            return self._num_dealt(self._dealt, reshards, epoch)
        order = self._plain_order(epoch, share)
        if order is not None:
            return len(order)
        left = Remainder(self._length(epoch))
        for reshard in reshards:
            counts = reshard.counts_in(epoch)
            is_split = reshard.dealing.is_split
            if is_split and (len(set(counts)) > 1 or counts[0] is None):
                raise TypeError(
                    "the number of microbatches is not known: ranks that split batches were at different steps"
                )
            counts = counts[:1] if is_split else counts
            num_rounds = len(left) // len(counts) if self._drop_last else -(-len(left) // len(counts))
            left = left.after(1, all_known(counts, num_rounds))
        num_own = len(left) if share is None else share.num_batches(len(left), drop_last=self._drop_last)
        return first_step(self._reshards, epoch) + num_own

    def _length(self, epoch: int) -> int:
        """Return the batches of the sampler in an epoch."""
        is_begun = epoch == self._epoch and self._begun is not None
        sampler = self._drawn_from if is_begun else cast("Any", self._sampler)
        begun = cast("Mapping[str, Any]", self._begun) if is_begun else self._loaded_at(epoch)
        if not self._reports_start or "samplers" not in begun or (is_begun and not self._is_as_drawn):
            return len(sampler)
        state = begun["samplers"][-1]
        if self._known_length is None or self._known_length[0] != state:
            is_dealt = isinstance(sampler, TokenBudgetBatchSampler)
            other = sampler.for_rank(sampler.dp_size, sampler.dp_rank) if is_dealt else copy.copy(sampler)
            other.load_state_dict(copied_state(state))
            self._known_length = state, len(other)
        return self._known_length[1]

    @property
    def _is_as_drawn(self) -> bool:
        """Whether the samplers are where the batches were drawn to: the program has not set them since."""
        return self._is_inconsistent or (self._drawn_to is not None and is_same(self._states(), self._drawn_to))

    def _num_dealt(self, dealt: TokenBudgetBatchSampler, reshards: Sequence[Reshard], epoch: int) -> int:
        if self._known_length is None or self._known_length[0] != epoch:
            step = first_step(self._reshards, epoch)
            other = dealt.for_rank(dealt.dp_size, dealt.dp_rank)
            other.load_state_dict(self.state_at(epoch, step)["samplers"][-1])
            length = step + sum(1 for _ in other.rest([reshard.counts_in(epoch) for reshard in reshards]))
            self._known_length = epoch, length
        return self._known_length[1]

    def num_in_last_round(self, epoch: int) -> int:
        """Return the samples of the last round over all ranks, if it is smaller than the others; else, or unknown, 0."""
        order = self._plain_order(epoch, self._share)
        return 0 if order is None else order.num_in_last_round

    def _plain_order(self, epoch: int, share: RankShare | None) -> SampleOrder | None:
        """Return an order with the same lengths, where batches are what torch's own class makes of indices."""
        batches = self._drawn_from
        indices: Any = getattr(batches, "sampler", None)
        is_dealt = share is not None or self._is_of_others(epoch)
        if not is_dealt or type(batches) is not BatchSampler or not isinstance(indices, Sized):
            return None
        size, drop_last = cast("int", self._batch_size), self._drop_last
        num_given = _num_given(len(indices), size, drop_last=drop_last)
        left = remainder_of(self._reshards, epoch, num_given, drop_last=drop_last)
        return SampleOrder(
            len(indices),
            size,
            drop_last=drop_last,
            shuffle=None,
            share=share,
            remainder=left,
            first=first_step(self._reshards, epoch),
        )

    def is_over(self, state: LoaderState) -> bool:
        """Return whether an epoch has nothing left at a saved position; if others delivered all before it, for any rank.

        False for samplers that are neither torch's own nor deal themselves out.
        """
        is_at_reshard = 0 < first_step(self._reshards, state.epoch) == state.step
        if self._dealt is not None:
            return is_at_reshard and state.step == self._num_batches(state.epoch, None)
        if self._distributed is None and not (self._draws_at_once and isinstance(self._sampler, Sized)):
            return False
        first_rank = None if self._share is None else self._share._replace(rank=0)
        return state.step == self._num_batches(state.epoch, first_rank if is_at_reshard else self._share)

    @property
    def has_states(self) -> bool:
        """Whether the order depends on states of samplers, and so on the epochs before."""
        states = self._states()
        return any(state is not None for state in (*states["generators"], *states["samplers"]))

    @property
    def _has_own_states(self) -> bool:
        """Whether a sampler of the user's has a state, of which only the sampler knows what it says."""
        return not self._draws_at_once and has_own_state(self._sampler)

    @property
    def _reports_start(self) -> bool:
        return bool(getattr(self._sampler, "reports_start", False))

    @property
    def _drawn_from(self) -> Any:
        """The sampler as it was when the epoch under way began; before one, as it is."""
        return self._sampler if self._begun is None or self._is_stale else self._iterable

    @property
    def _batch_size(self) -> int | None:
        return getattr(self._drawn_from, "batch_size", None)

    @property
    def _drop_last(self) -> bool:
        return bool(getattr(self._drawn_from, "drop_last", False))

    def _states(self) -> dict[str, Any]:
        return states_of(self._members)

    def _order_fields(self) -> dict[str, Any]:
        order_fields = self._states()
        if self._distributed is not None:
            order_fields["distributed"] = distributed_settings(self._distributed)
        elif type(self._members[0]) in (RandomSampler, SequentialSampler):
            order_fields["length"] = len(self._members[0])
        return order_fields

    def _load(self, states: Mapping[str, Any]) -> None:
        load_into(self._members, states)


def _tasks_of(most_ahead: int) -> tuple[int, int]:
    """Return how many tasks are drawn ahead of the one whose batches are next, and the batches of each."""
    size = max(1, most_ahead // 4)
    return max(1, most_ahead // size) - 1, size


def _frozen(sampler: Any) -> Any:
    """Return a sampler whose arguments stay as they are: a copy of torch's own, which draws from the same generators."""
    if type(sampler) not in _OF_TORCH:
        return sampler
    frozen = copy.copy(sampler)
    if type(sampler) is BatchSampler:
        frozen.sampler = _frozen(sampler.sampler)
    return frozen


def _compare_order(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Raise if the order of a ``DistributedSampler`` is not the one that other ranks had."""
    of_shuffle = ("seed", "epoch") if present["shuffle"] else ()
    for field in ("num_samples", "drop_last", "shuffle", *of_shuffle):
        if field in saved and saved[field] != present[field]:
            hint = "finish the epoch with the arguments of the DistributedSampler that began it"
            if field == "epoch":
                hint = f"call the sampler's set_epoch({saved[field]}) before the epoch that goes on, as the run that saved did"
            raise StateMismatchError(f"sampler.{field}", saved[field], present[field], hint)


def _num_given(num_samples: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the samples in the batches of torch's class."""
    return num_samples - num_samples % batch_size if drop_last else num_samples

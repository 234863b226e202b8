"""The plan of a loader with a sampler of the user's: it is iterated here, as torch does, a few batches ahead.

An epoch is cut into parts of some batches each. All parts are of one shard, so that random draws depend on the number
of the microbatch and not on where the parts begin.
"""

import base64
import copy
import marshal
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fkat_data.drop_in.dataset_plan import IndexPlan
from fkat_data.drop_in.own_generators import OwnGenerators
from fkat_data.drop_in.rank_share import Dealt, RankShare
from fkat_data.drop_in.sample_order import SampleOrder
from fkat_data.errors import StateMismatchError
from fkat_data.interruption import genuine
from fkat_data.plan.elastic import Piece
from fkat_data.seeding import ShardStreams
from fkat_data.types import Stateful
from fkat_data.worker.index_batches import NumberedBatches

__all__ = ["DrawnBatches", "DrawnPlan"]

_PART_SIZE = 32
_MOST_KEPT = 8
_INNER = ("batch_sampler", "sampler", "base_sampler")
_DEEPEST = 4
# Those that draw from the global generators draw when their iteration begins, and not later.
_DRAWS_AT_ONCE = {
    *(BatchSampler, SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler),
    *(list, tuple, range),
}


class DrawnBatches(NumberedBatches):
    """Some batches of an epoch.

    Args:
        first: The number of the first.
        batches: What the sampler gave.
    """

    in_words = "the dataset"

    def __init__(self, first: int, batches: list[Any]) -> None:
        self.first = first
        self._batches = batches

    def __len__(self) -> int:
        return self.first + len(self._batches)

    def __repr__(self) -> str:
        return f"<microbatches {self.first} to {len(self) - 1}>"

    def batch(self, index: int) -> Any:
        """Return the batch at ``index``; None for one of another part."""
        return self._batches[index - self.first] if index >= self.first else None


class DrawnPlan(IndexPlan):
    """Plans epochs that are loops over a sampler.

    Args:
        sampler: The batch sampler, or the sampler where microbatches are single samples.
        seed: The loader's.
        dp_rank: The loader's data-parallel rank.
        is_ahead: Whether batches are drawn some time before they are needed; False: the next one, unless all of an
            epoch are decided on when it begins.
        share: What this rank gets of the batches; None: there is one rank, or the sampler knows its rank.
    """

    has_parts = True

    def __init__(
        self, sampler: Iterable[Any], seed: int, dp_rank: int, *, is_ahead: bool, share: RankShare | None = None
    ) -> None:
        self._sampler = sampler
        self._share = share
        self._members = _members_of(sampler)
        self._draws_at_once = all(type(member) in _DRAWS_AT_ONCE for member in self._members)
        self._seed = seed
        self._dp_rank = dp_rank
        self._part_size = _PART_SIZE if is_ahead or self._draws_at_once else 1
        self._loaded: tuple[int, Mapping[str, Any]] | None = None
        self._epoch = -1
        # The samplers' states when the epoch began; None: the next one begins with what they are then.
        self._begun: dict[str, Any] | None = None
        # The same after the newest batch.
        self._drawn_to: dict[str, Any] | None = None
        self._generators = OwnGenerators(0)
        self._iterator: Iterator[Any] = iter(())
        self._is_torn = self._is_over = self._is_stale = False
        self._parts: dict[int, DrawnBatches] = {}
        self._num_parts = self._num_drawn = self._order = 0
        # The digest of all batches before a step, for the steps that a state may be asked for.
        self._orders: dict[int, int] = {0: 0}
        # The same of an earlier iteration over the sampler in this epoch.
        self._known: dict[int, int] = {}

    def renew(self, epoch: int, step: int) -> None:
        """Iterate the sampler again when the next iteration begins: its order is what it is by then.

        Args:
            epoch: The epoch of the caller's place.
            step: Microbatches of it that the caller has. With none, the iteration before has decided nothing: what it
                drew from the samplers' generators is taken back.
        """
        is_undone = self._begun is not None and epoch == self._epoch and not step
        if is_undone and (self._is_torn or self._states() == self._drawn_to):
            self._is_torn = True
            self._load(cast("dict[str, Any]", self._begun))
        self._is_stale = True

    def shard(self, epoch: int, index: int) -> Any:
        """Return a part of the epoch, or None past its end.

        Raises:
            Exception: The sampler's.
            StateMismatchError: The sampler gives another order than when the state of this epoch was saved, or than
                when it was iterated before.
        """
        is_dropped = index < self._num_parts and index not in self._parts
        if epoch != self._epoch or self._is_torn or self._is_stale or is_dropped:
            self._begin(epoch)
        while self._num_parts <= index and not self._is_over:
            self._draw_part()
        return self._parts.get(index)

    def piece(self, epoch: int, index: int) -> Piece | None:
        """Return where a part begins in the epoch's only shard."""
        part: DrawnBatches | None = self.shard(epoch, index)
        return None if part is None else Piece(self._dp_rank, 0, part.first)

    def load_sampler_state(self, epoch: int, state: dict[str, Any] | None) -> None:
        """Begin this epoch with samplers as they were when the state's epoch began, and go on at its step."""
        self._loaded = None if state is None else (epoch, state)
        self._epoch, self._begun = -1, None

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return what the order of the rest of an epoch depends on."""
        if epoch == self._epoch and self._begun is not None:
            return {**self._begun, "step": step, "order": self._order_before(step)}
        if self._loaded is not None and self._loaded[0] == epoch:
            return dict(self._loaded[1])
        return {**self._states(), "step": 0, "order": 0}

    def _begin(self, epoch: int) -> None:
        loaded: Mapping[str, Any] = {}
        if self._loaded is not None and self._loaded[0] == epoch:
            loaded = self._loaded[1]
        begun = self._begun if epoch == self._epoch and not self._is_stale else None
        self._known = {} if begun is None else {**self._known, **self._orders}
        self._is_torn, self._is_over = True, False
        if begun is not None or "generators" in loaded:
            self._load(loaded if begun is None else begun)
        self._begun, self._epoch = self._states(), epoch
        self._is_stale = False
        streams = ShardStreams.of(self._seed, 0, epoch, 0)
        self._generators = OwnGenerators(int.from_bytes(streams.key[:8], "little"))
        self._iterator = _copies(self._generators.call(iter, self._sampler))
        if self._share is not None:
            self._iterator = self._share.deal(self._iterator, self._batch_size, drop_last=self._drop_last)
        self._parts.clear()
        self._orders = {0: 0}
        self._num_parts = self._num_drawn = self._order = 0
        if "step" in loaded:
            self._skip(loaded["step"])
            self._compare(loaded["order"], "when the state was saved")
            self._orders = {self._num_drawn: self._order}
        self._is_torn = False

    def _skip(self, count: int) -> None:
        while self._num_drawn < count and self._draw(min(count - self._num_drawn, 1024)):
            self._orders.clear()

    def _draw_part(self) -> None:
        # After an interruption or an error, the iterator has gone past what is missing here.
        self._is_torn = True
        first = self._num_drawn
        batches = self._draw(self._part_size)
        if batches:
            self._parts[self._num_parts] = DrawnBatches(first, batches)
            self._num_parts += 1
            old = self._parts.pop(self._num_parts - _MOST_KEPT - 1, None)
            if old is not None:
                for step in range(old.first, len(old)):
                    self._orders.pop(step, None)
        self._is_over = len(batches) < self._part_size
        self._drawn_to = self._states()
        self._is_torn = False

    def _draw(self, count: int) -> list[Any]:
        """Return the next batches, at most ``count``."""
        if self._draws_at_once and self._num_drawn:
            drawn = self._drawn(count)
        else:
            drawn = self._generators.call(self._drawn, count)
        for batch in drawn:
            # The digest is of what all ranks get: any rank may load it.
            self._order = _digest(batch.drawn if isinstance(batch, Dealt) else batch, self._order)
            self._num_drawn += 1
            self._compare(self._known.get(self._num_drawn, self._order), "when it was iterated before")
            self._orders[self._num_drawn] = self._order
        return drawn if self._share is None else [dealt.own for dealt in drawn]

    def _order_before(self, step: int) -> int:
        if self._loaded is not None and self._loaded[0] == self._epoch and self._loaded[1].get("step") == step:
            return self._loaded[1]["order"]
        return self._orders.get(step, self._known.get(step, 0))

    def _compare(self, before: int, when: str) -> None:
        if self._order != before:
            raise StateMismatchError(
                "order",
                before,
                self._order,
                f"the sampler gives other samples than {when}: call its set_epoch() as then, or give it a generator, or "
                "state_dict() and load_state_dict()",
            )

    def _drawn(self, count: int) -> list[Any]:
        return list(islice(self._iterator, count))

    def num_batches(self) -> int:
        """Return this rank's microbatches of an epoch.

        Raises:
            TypeError: The sampler has no length.
        """
        order = self._plain_order()
        if order is not None:
            return len(order)
        num_drawn = len(cast("Any", self._sampler))
        return num_drawn if self._share is None else self._share.num_batches(num_drawn, drop_last=self._drop_last)

    def num_in_last_round(self) -> int:
        """Return the samples of the last round over all ranks, if it is smaller than the others; else, or unknown, 0."""
        order = self._plain_order()
        return 0 if order is None else order.num_in_last_round

    def _plain_order(self) -> SampleOrder | None:
        """Return an order with the same lengths, where batches are what torch's own class makes of indices."""
        indices: Any = getattr(self._sampler, "sampler", None)
        if self._share is None or type(self._sampler) is not BatchSampler or not isinstance(indices, Sized):
            return None
        return SampleOrder(len(indices), self._batch_size, drop_last=self._drop_last, shuffle=None, share=self._share)

    def is_over(self, step: int, state: Mapping[str, Any]) -> bool:
        """Return whether an epoch has nothing left at a saved step; False for samplers other than torch's own."""
        del state
        return self._draws_at_once and isinstance(self._sampler, Sized) and step == self.num_batches()

    @property
    def has_states(self) -> bool:
        """Whether the order depends on states of samplers, and so on the epochs before."""
        states = self._states()
        return any(state is not None for state in (*states["generators"], *states["samplers"]))

    @property
    def _batch_size(self) -> int | None:
        return getattr(self._sampler, "batch_size", None)

    @property
    def _drop_last(self) -> bool:
        return bool(getattr(self._sampler, "drop_last", False))

    def _states(self) -> dict[str, Any]:
        generators = [getattr(member, "generator", None) for member in self._members]
        return {
            "generators": [_text_of(each) if isinstance(each, torch.Generator) else None for each in generators],
            "samplers": [member.state_dict() if isinstance(member, Stateful) else None for member in self._members],
        }

    def _load(self, states: Mapping[str, Any]) -> None:
        for member, text, state in zip(self._members, states["generators"], states["samplers"], strict=True):
            if text is not None:
                member.generator.set_state(torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8))
            if state is not None:
                member.load_state_dict(state)


def _members_of(sampler: object) -> list[Any]:
    """Return the samplers that a sampler takes its indices from, the innermost first."""
    members: list[Any] = []
    while sampler is not None and len(members) < _DEEPEST:
        members.insert(0, sampler)
        attributes = (getattr(sampler, name, None) for name in _INNER)
        sampler = next((inner for inner in attributes if inner is not None and inner is not sampler), None)
    return members


def _copies(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield a copy of each batch: a sampler may fill one list again and again."""
    # Not `for`, which calls iter() again: a sampler that is its own iterator would begin again.
    while True:
        try:
            batch = next(batches)
        except genuine(StopIteration):
            return
        yield cast("list[Any]", batch)[:] if type(batch) is list else copy.copy(batch)


def _text_of(generator: torch.Generator) -> str:
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def _digest(batch: Any, before: int) -> int:
    try:
        return zlib.crc32(marshal.dumps(batch, 2), before)
    except genuine(ValueError):  # something that is no plain value: it is not compared
        return before

"""Samplers of the user's with a state: what they say of themselves, and how they are set to where an iteration was.

What such a sampler says between two iterations need not be where its next one begins: some say where the last one was left,
but begin again, or go on to a further epoch, unless a state was just loaded. What it says within an iteration is where that
one goes on, or nothing of its place. So an iteration is repeated from within, and compared, before it is relied on.
"""

import base64
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, cast

import torch

from fkat_data.arguments import copied_state
from fkat_data.drop_in.checked_order import Check, CheckedOrder
from fkat_data.errors import StateMismatchError
from fkat_data.interruption import genuine
from fkat_data.seeding import OwnGenerators, ShardStreams
from fkat_data.types import Stateful

_INNER = ("batch_sampler", "sampler", "base_sampler")
_DEEPEST = 4
# Of the newest parts of an iteration: the caller is no further behind.
_MOST_REACHED = 16
_END = object()


class Reached(NamedTuple):
    """What samplers said within an iteration.

    Attributes:
        states: What they said.
        num_drawn: Batches that were drawn by then.
        digest: The digest of those.
    """

    states: Mapping[str, Any]
    num_drawn: int
    digest: int


class Iteration:
    """What samplers with a state said in an iteration, by the batches that were drawn."""

    def __init__(self) -> None:
        self._reached: tuple[Reached, ...] = ()
        self.first: tuple[list[Any], Reached] | None = None
        """The first batches, one for each rank, and what the samplers said after them."""

    def first_said(self) -> dict[str, Any] | None:
        """Return what a state says of the first batches: samplers that cannot begin the iteration again go on behind them.

        None: they are not known, or no plain values, which a saved state may hold.
        """
        if self.first is None:
            return None
        batches, reached = self.first
        items = (item for batch in batches for item in (cast("list[Any]", batch) if type(batch) is list else [batch]))
        if not {type(item) for item in items} <= {int, str}:
            return None
        said = {name: reached.states[name] for name in ("generators", "samplers")}
        return {**said, "batches": batches, "drawn": reached.num_drawn, "order": reached.digest}

    def note(self, reached: Reached, first: list[Any] | None = None) -> None:
        """Remember what the samplers say; ``first``: the first batches, if no others were drawn."""
        if first is not None and len(first) == reached.num_drawn:
            self.first = first, reached
        if self._reached and self._reached[-1].num_drawn == reached.num_drawn:
            return  # what they say at the end may be of the next one
        self._reached = (*self._reached[-_MOST_REACHED:], reached)

    def at(self, count: int, newest: Check, *, is_over: bool, is_left: bool = False) -> dict[str, Any] | None:
        """Return what a state says of the iteration where this many batches were drawn; None: nothing can be relied on.

        Args:
            count: The batches.
            newest: How many were drawn in all, and their digest.
            is_over: Whether there are no others.
            is_left: Whether the iteration was left there, which one that is not begun again is not: if it is known only
                from there on, it is repeated to the newest batch.
        """
        known = [each for each in self._reached if each.num_drawn <= count]
        before = [each for each in known if each.num_drawn < (count if is_left else newest[0])]
        if not before and not (known and (is_over or known[-1].num_drawn < newest[0])):
            return None
        states, drawn, order = (before or known)[-1]
        said = {name: states[name] for name in ("generators", "samplers")}
        return {**said, "drawn": drawn, "order": order, "left": count, "newest": list(newest), "is_over": is_over}


class FirstBatch:
    """What a loader's first iteration has begun with: a state from before it, which has no batch yet, may be loaded later."""

    def __init__(self) -> None:
        self._epoch = -1
        self._begun: Mapping[str, Any] = {}

    def note(self, epoch: int, begun: Mapping[str, Any]) -> None:
        """Remember what samplers said where an epoch began, and its first batch, unless an earlier one is known."""
        if not self._begun and "first" in begun:
            self._epoch, self._begun = epoch, begun

    def of(self, epoch: int, begun: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what is known of the first batch of an epoch that begins with these states."""
        is_known = epoch == self._epoch and "previous" not in begun and is_same(self._begun, begun)
        return begun.get("first", self._begun["first"] if is_known else None)


def repeated(
    sampler: Iterable[Any], saved: Mapping[str, Any], generators: OwnGenerators, *, is_left: bool = True
) -> CheckedOrder | None:
    """Set samplers to where an iteration was, by repeating its last batches; return it.

    Args:
        sampler: The outermost one.
        saved: As ``Iteration.at`` returns it.
        generators: What they draw from beside their own.
        is_left: Whether another one follows it.

    Returns:
        None if they give other batches.
    """
    members = members_of(sampler)

    def go_to(count: int) -> CheckedOrder:
        load_into(members, saved)
        order = CheckedOrder(iter(sampler), num_before=saved["drawn"], digest=saved["order"])
        deque(islice(order, count - saved["drawn"]), 0)
        return order

    count, digest = saved["newest"]
    try:
        order = generators.call(go_to, count)
        if (order.count, order.digest) != (count, digest):
            return None
        if saved["is_over"] and generators.call(next, order, _END) is not _END:
            return None
        is_there = saved["left"] == count or (is_left and saved["left"] == saved["drawn"])
        return order if is_there else generators.call(go_to, saved["left"])
    except genuine(Exception):  # a sampler that is not made to be loaded within an iteration
        return None


def begun_again(
    sampler: Iterable[Any],
    begun: Mapping[str, Any],
    first: Mapping[str, Any] | None,
    known: Check,
    new_generators: Callable[[], OwnGenerators],
) -> list[Any] | None:
    """Set samplers to where an iteration began.

    Args:
        sampler: The outermost one.
        begun: What they said before it; in ``previous``, what is known of the iteration before.
        first: What is known of the first batch of it, as ``Iteration.first_said`` returns it; None: nothing.
        known: A number of its batches, and their digest.
        new_generators: Returns what an iteration draws from beside theirs.

    Returns:
        The first batches of the iteration, which they are past; None: they give others than those that are known.
    """
    members = members_of(sampler)
    if is_same(states_of(members), begun):
        return []
    if first is not None:
        known = max(known, (first["drawn"], first["order"]))

    def load() -> bool:
        load_into(members, begun)
        return True

    def repeat() -> bool:
        previous = begun.get("previous")
        return previous is not None and repeated(sampler, previous, OwnGenerators(0)) is not None

    def load_first() -> bool:
        if first is not None:
            load_into(members, first)
        return first is not None

    ways: list[tuple[Callable[[], bool], list[Any]]] = [(load, []), (repeat, [])]
    for set_to_start, before in [*ways, (load_first, [] if first is None else [*first["batches"]])]:
        if not set_to_start():
            continue
        if not known[0] or _digest_of(chain(before, _opened(sampler)), known[0], new_generators()) == known:
            return before if not known[0] or set_to_start() else None
    return None


def _opened(sampler: Iterable[Any]) -> Iterator[Any]:
    yield from iter(sampler)


def _digest_of(batches: Iterator[Any], count: int, generators: OwnGenerators) -> Check:
    order = CheckedOrder(batches)
    generators.call(lambda: deque(islice(order, count), 0))
    return order.count, order.digest


def samplers_in(sampler: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the field ``sampler`` of a state says of the samplers when its epoch began; None: nothing."""
    found: Mapping[str, Any] = sampler.get("samplers_begun", sampler)
    return found if "generators" in found else None


def generators_of(seed: int, epoch: int) -> OwnGenerators:
    """Return what samplers draw from in an epoch beside generators of their own."""
    return OwnGenerators(int.from_bytes(ShardStreams.of(seed, 0, epoch, 0).key[:8], "little"))


def with_samplers_set(
    sampler: Any, state: Mapping[str, Any], seed: int, epoch: int, known: FirstBatch
) -> dict[str, Any]:
    """Set samplers to what a state at an epoch's start says of them, now, so that the program may set them on.

    Args:
        sampler: The outermost one.
        state: The field ``sampler`` of the state.
        seed: The loader's.
        epoch: The epoch.
        known: Of the loader's first iteration.

    Returns:
        What is left for the plan that begins with the state.

    Raises:
        StateMismatchError: There are others; nothing has changed then. Or what a sampler's ``load_state_dict`` raises.
    """
    members, states = members_of(sampler), cast("Mapping[str, Any]", samplers_in(state))
    before = states_of(members)
    rest = {name: value for name, value in states.items() if name not in ("generators", "samplers", "previous")}
    previous, first = states.get("previous"), known.of(epoch, states)
    if previous is not None and repeated(sampler, previous, OwnGenerators(0)) is not None:
        rest["previous"] = {**previous, "set": states_of(members)}
    elif first is not None:
        passed = begun_again(sampler, states, first, (0, 0), partial(generators_of, seed, epoch))
        if passed is None:
            load_into(members, states)
            passed = []
        begun = {name: states[name] for name in ("generators", "samplers")}
        rest["first"] = {**first, "passed": passed, "begun": begun, "set": states_of(members)}
    elif previous is not None or not is_same(before, states):  # to load it would say that an iteration is to go on
        try:
            load_into(members, states)
        except BaseException:
            load_into(members, before)
            raise
    return {**state, "samplers_begun": rest} if "samplers_begun" in state else rest


def is_same(states: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether samplers say the same, once and now."""
    pair = [[each[name] for name in ("generators", "samplers")] for each in (states, others)]
    try:
        return bool(pair[0] == pair[1])
    except genuine(Exception):  # of arrays, there is no such answer
        return pickle.dumps(pair[0]) == pickle.dumps(pair[1])


def states_of(members: Sequence[Any]) -> dict[str, Any]:
    """Return what samplers say of themselves, the innermost first."""
    generators = [getattr(member, "generator", None) for member in members]
    return {
        "generators": [_text_of(each) if isinstance(each, torch.Generator) else None for each in generators],
        "samplers": [copied_state(member.state_dict()) if isinstance(member, Stateful) else None for member in members],
    }


def load_into(members: Sequence[Any], states: Mapping[str, Any]) -> None:
    """Set samplers to what ``states_of`` has returned.

    Raises:
        StateMismatchError: They are others. Or what a sampler's ``load_state_dict`` raises.
    """
    fields = [*zip(states["generators"], states["samplers"], strict=True)]
    if len(fields) != len(members):
        saved, present = f"<{len(fields)} nested samplers>", f"<{len(members)} nested samplers>"
        raise StateMismatchError("sampler", saved, present, "make the samplers as in the run that saved")
    for member, (text, state) in zip(members, fields, strict=True):
        if text is not None:
            if not isinstance(getattr(member, "generator", None), torch.Generator):
                raise StateMismatchError("sampler", "<with a generator>", type(member).__name__, "give it a generator")
            member.generator.set_state(torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8))
        if state is not None:
            if not isinstance(member, Stateful):
                hint = "make the samplers as in the run that saved"
                raise StateMismatchError("sampler", "<with a state>", type(member).__name__, hint)
            member.load_state_dict(copied_state(state))


def members_of(sampler: object) -> list[Any]:
    """Return the samplers that a sampler takes its indices from, the innermost first."""
    members: list[Any] = []
    while sampler is not None and len(members) < _DEEPEST:
        members.insert(0, sampler)
        attributes = (getattr(sampler, name, None) for name in _INNER)
        sampler = next((inner for inner in attributes if inner is not None and inner is not sampler), None)
    return members


def _text_of(generator: torch.Generator) -> str:
    return base64.b64encode(generator.get_state().numpy().tobytes()).decode()

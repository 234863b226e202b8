"""Samplers of the user's with a state: what they say of themselves, and how they are set to where an iteration was.

What such a sampler says between two iterations need not be where its next one begins: some say where the last one was left,
but begin again, or go on to a further epoch, unless a state was just loaded. What it says within an iteration is where that
one goes on, or nothing of its position. So an iteration is repeated from within, and compared, before it is relied on.
"""

import base64
import copy
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, cast

import torch

from fkat_data.errors import StateMismatchError
from fkat_data.errors.arguments import copied_state
from fkat_data.loaders.checked_order import Check, CheckedOrder
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.seeding import OwnGenerators, ShardRng
from fkat_data.types import Stateful

_INNER = ("batch_sampler", "sampler", "base_sampler")
_DEEPEST = 4
# Of the newest parts of an iteration: the caller is no further behind.
_MOST_REACHED = 16
# Batches by which two iterations are compared.
_NUM_TRIED = 32
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
        """Return the first batches and what was said after them; None: they are not known.

        Samplers that cannot begin the iteration again go on behind them.
        """
        if self.first is None:
            return None
        batches, reached = self.first
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


def as_saved(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without first batches that are no plain values, which a saved state may not hold."""
    batches = state.get("first", {}).get("batches", [])
    items = (item for batch in batches for item in (cast("list[Any]", batch) if type(batch) is list else [batch]))
    is_plain = {type(item) for item in items} <= {int, str}
    return {name: value for name, value in state.items() if name != "first" or is_plain}


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
        if not order.is_at((count, digest)):
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

    def load(states: Mapping[str, Any]) -> bool:
        load_into(members, states)
        return True

    def repeat() -> bool:
        previous = begun.get("previous")
        return previous is not None and repeated(sampler, previous, OwnGenerators(0)) is not None

    batches: list[Any] = []
    ways: list[tuple[Callable[[], bool], list[Any]]] = [(partial(load, begun), []), (repeat, [])]
    if first is not None:
        batches, known = [*first["batches"]], max(known, (first["drawn"], first["order"]))
        ways.append((partial(load, first), batches))
    for set_to_start, before in ways:
        if not set_to_start():
            continue
        if not known[0]:
            return before
        if _begins_with(chain(before, _opened(sampler)), known, batches, new_generators()):
            return before if set_to_start() else None
    return None


def _opened(sampler: Iterable[Any]) -> Iterator[Any]:
    yield from iter(sampler)


def _drawn(batches: Iterator[Any], count: int, generators: OwnGenerators, num_kept: int) -> CheckedOrder:
    order = CheckedOrder(batches, num_kept=num_kept)
    generators.call(lambda: deque(islice(order, count), 0))
    return order


def _begins_with(batches: Iterator[Any], known: Check, first: list[Any], generators: OwnGenerators) -> bool:
    order = _drawn(batches, known[0], generators, len(first))
    # A digest leaves out objects of unknown classes.
    return order.is_at(known) and _is_equal(order.first, first)


def has_own_state(sampler: object) -> bool:
    """Return whether a sampler, or one that it takes its indices from, has a state whose meaning it alone knows."""
    if getattr(sampler, "reports_start", False):
        return False
    return any(isinstance(member, Stateful) for member in members_of(sampler))


def _can_begin_at(sampler: Any, states: Mapping[str, Any], new_generators: Callable[[], OwnGenerators]) -> bool:
    """Return False if a load of what samplers said before their first iteration would have another one begin.

    Some go on to a further epoch unless a state was just loaded. This is tried with a copy: each iteration begins at the
    same position, or at the one that was said before it.
    """

    def try_it() -> bool:
        tried = copy.deepcopy(sampler)
        members = members_of(tried)

        def first_of(count: int) -> list[Any]:
            return _drawn(_opened(tried), count, new_generators(), count).first

        load_into(members, states)
        begun = first_of(_NUM_TRIED)
        load_into(members, states)
        first_of(1)
        said = states_of(members)
        following = first_of(_NUM_TRIED)
        if _is_equal(begun, following):
            return True
        load_into(members, said)
        return _is_equal(first_of(_NUM_TRIED), following)

    try:
        return try_it()
    except genuine(Exception):  # one that cannot be copied: nothing shows it
        return True


def samplers_in(sampler: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the field ``sampler`` of a state says of the samplers when its epoch began; None: nothing."""
    found: Mapping[str, Any] = sampler.get("samplers_begun", sampler)
    return found if "generators" in found else None


def generators_of(seed: int, epoch: int) -> OwnGenerators:
    """Return what samplers draw from in an epoch beside generators of their own."""
    return OwnGenerators(int.from_bytes(ShardRng.of(seed, 0, epoch, 0).key[:8], "little"))


_NOT_SET_BACK = (
    "the state is of before the sampler's first iteration, to which its load_state_dict() does not set it back: it would "
    "begin another epoch. Load the state into a new loader, with a new sampler made as in the run that saved"
)


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
        is_untouched = previous is None and not epoch and has_own_state(sampler)
        if is_untouched and not _can_begin_at(sampler, states, partial(generators_of, seed, epoch)):
            raise StateMismatchError("sampler", states["samplers"], before["samplers"], _NOT_SET_BACK)
        try:
            load_into(members, states)
        except BaseException:
            load_into(members, before)
            raise
    return {**state, "samplers_begun": rest} if "samplers_begun" in state else rest


def is_same(states: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether samplers say the same, once and now."""
    return _is_equal(*([each[name] for name in ("generators", "samplers")] for each in (states, others)))


def _is_equal(value: object, other: object) -> bool:
    try:
        return bool(value == other)
    except genuine(Exception):  # of arrays, there is no such answer
        with suppress(Exception):
            return pickle.dumps(value) == pickle.dumps(other)
    return False


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

"""What every object with a saved state must do."""

import copy
import io
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

import torch

from fkat_data.testing.contracts.expectation import expect, expect_error, expect_same

_NUM_EMPTY_LOOPS = 3


class StateContract:
    """Tests of ``state_dict`` and ``load_state_dict``: of a sampler, a dataset, a loader, or a mixture of them.

    Override ``make``; and ``course`` if a ``for`` loop is not how its items are taken.

    Attributes:
        num_items: How many items are compared. Let it be more than two epochs.
        refuses_others: Whether ``load_state_dict({})`` raises, as all states of this library do.
    """

    num_items: ClassVar[int] = 20
    refuses_others: ClassVar[bool] = True

    def make(self) -> Any:
        """Return a new object, the same in each call, at its start."""
        raise NotImplementedError

    def course(self, stateful: Any) -> Iterator[Any]:
        """Yield the items from the object's place on: loop after loop, without end."""
        num_empty = 0
        while num_empty < _NUM_EMPTY_LOOPS:
            num_empty += 1
            for item in stateful:
                num_empty = 0
                yield item

    def finish(self, stateful: Any) -> None:
        """Release what an object holds; its ``close``, if it has one."""
        if hasattr(stateful, "close"):
            stateful.close()

    def test_a_resume_at_each_item_changes_nothing(self) -> None:
        """A new object with the state after item *i* goes on with item *i* + 1, whatever it was."""
        whole = self._whole()
        expect(len(whole) == self.num_items, f"the course ended after {len(whole)} items")
        stopped = self.make()
        course = self.course(stopped)
        for count in range(self.num_items):
            resumed = self.make()
            resumed.load_state_dict(_saved(stopped.state_dict()))
            rest = list(islice(self.course(resumed), self.num_items - count))
            self.finish(resumed)
            expect_same(rest, whole[count:], f"what follows a resume after {count} items")
            next(course)
        self.finish(stopped)

    def test_saving_moves_nothing(self) -> None:
        """A state can be taken at any time and as often as wanted, and does not change afterwards."""
        whole, saving = self._whole(), self.make()
        states: list[tuple[Any, Any]] = []
        found: list[Any] = []
        for item in islice(self.course(saving), self.num_items):
            found.append(copy.deepcopy(item))
            state = saving.state_dict()
            states.append((state, copy.deepcopy(state)))
            expect_same(saving.state_dict(), state, f"the state that is taken again after {len(found)} items")
        self.finish(saving)
        expect_same(found, whole, "the items between which states were taken")
        for index, (state, kept) in enumerate(states):
            expect_same(state, kept, f"the state after {index + 1} items, at the end of the loop,")

    def test_a_state_is_plain_and_loads_into_what_it_says(self) -> None:
        """``torch.save`` keeps it, ``torch.load(weights_only=True)`` reads it, and what has loaded it has this state."""
        stopped = self.make()
        for _ in islice(self.course(stopped), self.num_items // 2):
            pass
        state = stopped.state_dict()
        self.finish(stopped)
        saved = _saved(state)
        expect_same(saved, state, "the state that torch.load(weights_only=True) reads")
        resumed = self.make()
        resumed.load_state_dict(saved)
        expect_same(resumed.state_dict(), state, "the state of an object that has just loaded one")
        self.finish(resumed)

    def test_an_object_under_way_goes_where_the_state_says(self) -> None:
        """A state of an earlier place takes an object back, and one of a later place takes it ahead."""
        whole, used = self._whole(), self.make()
        states = [_saved(used.state_dict())]
        states += [_saved(used.state_dict()) for _ in islice(self.course(used), self.num_items - 1)]
        for place in (0, self.num_items // 2, self.num_items - 1, 1):
            used.load_state_dict(states[place])
            rest = list(islice(self.course(used), self.num_items - place))
            expect_same(rest, whole[place:], f"what follows place {place}, in an object that was elsewhere")
        self.finish(used)

    def test_what_is_no_state_is_refused(self) -> None:
        """It is an error, and the object stays where it was."""
        if not self.refuses_others:
            return
        stateful, whole = self.make(), self._whole()
        before = stateful.state_dict()
        expect_error(Exception, lambda: stateful.load_state_dict({}), "load_state_dict({})")
        expect_same(stateful.state_dict(), before, "the state after load_state_dict({}) was refused")
        expect_same(next(self.course(stateful)), whole[0], "the item after load_state_dict({}) was refused")
        self.finish(stateful)

    def _whole(self) -> list[Any]:
        stateful = self.make()
        # A loader's microbatches may share memory with those that come later.
        items = [copy.deepcopy(item) for item in islice(self.course(stateful), self.num_items)]
        self.finish(stateful)
        return items


def _saved(state: Any) -> Any:
    """Return what a checkpoint gives back."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)

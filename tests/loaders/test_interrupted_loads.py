"""A load that is interrupted has happened, or it has not: no state says a mixture of two positions."""

import sys

from fkat_data import DataLoader
from fkat_data.loaders import session


class Interrupt:
    """Raises KeyboardInterrupt at one of the lines of the session that a call passes."""

    def __init__(self, number):
        self.num_left = number

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def trace(self, frame, event, _):
        if frame.f_code.co_filename != session.__file__:
            return None
        if event == "line":
            self.num_left -= 1
            if self.num_left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.trace


def begun(num_microbatches, *ranks):
    loader = DataLoader(range(48), batch_size=2, seed=3)
    if ranks:
        loader.deal_out(*ranks)
    iterator = iter(loader)
    for _ in range(num_microbatches):
        next(iterator)
    return loader


def test_a_load_that_is_interrupted_at_any_line_has_happened_or_not():
    of_two = [begun(count, 2, rank).local_state_dict() for rank, count in enumerate((3, 4))]
    state = DataLoader.merge_state_dicts(of_two)
    loaded = DataLoader(range(48), batch_size=2, seed=3)
    loaded.load_state_dict(state)
    before, after = begun(5).state_dict(), loaded.state_dict()
    assert before != after
    found = set()
    for number in range(1000):
        loader = begun(5)
        try:
            with Interrupt(number):
                loader.load_state_dict(state)
        except KeyboardInterrupt:
            assert loader.state_dict() in (before, after), number
            found.add(loader.state_dict() == after)
        else:
            break
    assert number > 10
    assert found == {False, True}

"""What an item draws follows from its microbatch's seed and its place alone."""

import pytest
import torch

import fkat_data
from fkat_data.seeding import enter_rng_scope, leave_rng_scope
from fkat_data.worker.fetch import items_in_turn

pytestmark = pytest.mark.usefixtures("generators_as_they_were")


class Items:
    """Items by a function of the index."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, index):
        return self.function(index)


def draws():
    made = fkat_data.item_generators()
    return made.python.random(), float(made.numpy.random()), float(torch.rand((), generator=made.torch))


def test_each_item_draws_anew_and_all_calls_for_one_go_on():
    enter_rng_scope(7)
    dataset = Items(lambda index: (draws(), draws()))
    made = items_in_turn(dataset, range(20))
    assert items_in_turn(dataset, range(20)) == made
    assert len({first for first, _ in made}) == 20
    assert all(first != second for first, second in made)


def test_an_items_draws_are_these():
    """They decide on every augmentation of a run: a change of them changes what a saved run goes on with."""
    enter_rng_scope(7)
    assert items_in_turn(Items(lambda index: draws()), range(2)) == GOLDEN[:2]
    assert draws() == GOLDEN[2]


def test_outside_of_production_draws_follow_from_torchs_generator():
    leave_rng_scope()
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append((draws(), draws()))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


GOLDEN = [
    (0.0434478966059727, 0.907096513479091, 0.1399349570274353),
    (0.01777720748852396, 0.1669404207648466, 0.9154772758483887),
    (0.32383276483316237, 0.625095466604667, 0.5349225401878357),
]

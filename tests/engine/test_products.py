"""What a factory may return: each kind of product, begun at any microbatch, and what goes wrong in it."""

import pytest
from drop_in_examples import Drawing
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_examples import make
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

pytestmark = pytest.mark.usefixtures("generators_as_they_were")


def run(factory, first=0):
    """All microbatches of a shard, from one on."""
    loader = make(["shard"], factory)
    loader.load_state_dict({"all_rank_indices": [-1], "all_rank_microbatches": [first]})
    return list(loader)


@given(
    count=st.integers(1, 150),
    batch_size=st.one_of(st.none(), st.integers(1, 7)),
    drop_last=st.booleans(),
    kind=st.sampled_from(["in order", "shuffled", "with replacement", "weighted", "batch sampler"]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_map_style_shard_begun_anywhere_goes_on_as_if_begun_at_its_start(count, batch_size, drop_last, kind, data):
    dataset = Drawing(count)

    def factory(shard):
        samplers = {
            "in order": None,
            "shuffled": RandomSampler(dataset),
            "with replacement": RandomSampler(dataset, replacement=True, num_samples=count),
            "weighted": WeightedRandomSampler([1.0] * count, count),
        }
        if kind == "batch sampler":
            batches = BatchSampler(RandomSampler(dataset), batch_size or 3, drop_last)
            return DataLoader(dataset, batch_sampler=batches, collate_fn=list)
        last = {"drop_last": drop_last} if batch_size else {}
        return DataLoader(dataset, batch_size=batch_size, sampler=samplers[kind], collate_fn=list, **last)

    whole = run(factory)
    first = data.draw(st.integers(0, max(0, len(whole) - 1)))
    assert run(factory, first) == whole[first:]


@pytest.mark.parametrize("product", [list, tuple, iter, lambda values: (value for value in values)])
def test_other_products_are_replayed_from_their_start(product):
    values = list(range(5))
    whole = run(lambda shard: product(values))
    assert whole == values
    assert run(lambda shard: product(values), 3) == whole[3:]


def test_a_product_that_can_skip_is_asked_to():
    asked = []

    class Product:
        def __iter__(self):
            raise AssertionError("was to be skipped")

        def skip(self, count):
            asked.append(count)
            return iter("de")

    assert run(lambda shard: Product(), 3) == ["d", "e"]
    assert asked == [3]


def test_a_product_is_not_changed_by_being_iterated():
    loader = DataLoader(Drawing(5), batch_size=2, shuffle=True, collate_fn=list)
    sampler = loader.batch_sampler
    assert run(lambda shard: loader) == run(lambda shard: loader)
    assert loader.batch_sampler is sampler
    assert loader.collate_fn is list
    assert len(loader) == 3


@pytest.mark.parametrize("num_good", range(8))
def test_what_a_sampler_gave_before_it_failed_is_made_before_its_failure(num_good):
    class Failing:
        def __iter__(self):
            yield from ([index] for index in range(num_good))
            raise OSError("the index broke off")

    def factory(shard):
        return DataLoader(Drawing(10), batch_sampler=Failing(), collate_fn=lambda samples: samples[0][0])

    made = []
    with pytest.raises(OSError, match="broke off") as caught:
        made.extend(make(["shard"], factory))
    assert made == list(range(num_good))
    assert f"microbatch {num_good} of shard 'shard'" in caught.value.__notes__[0]


def test_a_shard_that_is_left_ends_the_users_generator():
    ended = []

    def factory(shard):
        try:
            yield from range(10)
        finally:
            ended.append(shard)

    loader = make(["shard"], factory)
    next(iter(loader))
    loader.close()
    assert ended == ["shard"]


def test_a_failure_is_noted_once_with_its_place():
    def factory(shard):
        yield 0
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        run(factory)
    assert caught.value.__notes__ == [
        "fkat_data: at microbatch 1 of shard 'shard' (epoch 0, shard index 0)",
    ]

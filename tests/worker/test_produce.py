import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

from fkat_data.errors import ConfigurationError, WorkerError
from fkat_data.plan.task import Task
from fkat_data.seeding import preserved_generators
from fkat_data.worker.batches import is_map_style
from fkat_data.worker.produce import Producer, produce


@pytest.fixture(autouse=True)
def _generators_as_they_were():
    with preserved_generators():
        yield


def unheard(name, *place):
    """What is done is nobody's matter here."""


def run(factory, first=0, mark=unheard):
    task = Task(ticket=0, epoch=0, shard_index=0, shard="shard", first_microbatch=first)
    return [
        (made.microbatch_index, made.microbatch, made.is_last) for made in produce(task, Producer(factory, 7, 0, mark))
    ]


class Draws(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index, random.random()


@given(
    count=st.integers(1, 150),
    batch_size=st.one_of(st.none(), st.integers(1, 7)),
    drop_last=st.booleans(),
    kind=st.sampled_from(["in order", "shuffled", "with replacement", "weighted", "batch sampler"]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_map_style_shard_begun_anywhere_goes_on_as_if_begun_at_its_start(count, batch_size, drop_last, kind, data):
    dataset = Draws(count)

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
    assert [index for index, _, _ in whole] == list(range(len(whole)))
    assert [is_last for _, _, is_last in whole] == [False] * (len(whole) - 1) + [True] * bool(whole)
    first = data.draw(st.integers(0, len(whole) + 1))
    assert run(factory, first) == whole[first:]


@pytest.mark.parametrize("product", [list, tuple, iter, lambda values: (value for value in values)])
def test_other_products_are_replayed_from_their_start(product):
    values = list(range(5))
    whole = run(lambda shard: product(values))
    assert [microbatch for _, microbatch, _ in whole] == values
    assert run(lambda shard: product(values), 3) == whole[3:]
    assert run(lambda shard: product(values), 9) == []


def test_a_product_that_can_skip_is_asked_to():
    asked = []

    class Product:
        def __iter__(self):
            raise AssertionError("was to be skipped")

        def skip(self, count):
            asked.append(count)
            return iter("de")

    assert [microbatch for _, microbatch, _ in run(lambda shard: Product(), 3)] == ["d", "e"]
    assert asked == [3]


def test_a_product_is_not_changed_by_being_iterated():
    loader = DataLoader(Draws(5), batch_size=2, shuffle=True, collate_fn=list)
    sampler = loader.batch_sampler
    assert run(lambda shard: loader) == run(lambda shard: loader)
    assert loader.batch_sampler is sampler
    assert len(loader) == 3


def test_a_data_loader_that_iterates_by_itself_is_not_taken_apart():
    class Own(DataLoader):
        def __iter__(self):
            yield from "abc"

    assert not is_map_style(Own([1, 2]))
    assert is_map_style(DataLoader([1, 2]))
    assert [microbatch for _, microbatch, _ in run(lambda shard: Own([1, 2]))] == ["a", "b", "c"]


def test_a_dataset_that_raises_stop_iteration_does_not_end_its_shard():
    class Stops(Draws):
        def __getitem__(self, index):
            if index == 4:
                raise StopIteration
            return index

    for count in (5, 9):
        with pytest.raises(WorkerError, match="raised StopIteration"):
            run(lambda shard: DataLoader(Stops(count)))  # noqa: B023


def test_a_factory_that_raises_stop_iteration_is_told_of():
    def factory(shard):
        raise StopIteration

    with pytest.raises(WorkerError, match="factory raised StopIteration"):
        run(factory)


@pytest.mark.parametrize("num_good", range(8))
def test_what_a_sampler_gave_before_it_failed_is_made_before_its_failure(num_good):
    class Failing:
        def __iter__(self):
            yield from ([index] for index in range(num_good))
            raise OSError("the index broke off")

    def factory(shard):
        return DataLoader(Draws(10), batch_sampler=Failing(), collate_fn=lambda samples: samples[0][0])

    production = produce(Task(0, 0, 0, "shard", 0), Producer(factory, 7, 0, unheard))
    made = []
    with pytest.raises(OSError, match="broke off") as caught:
        made.extend(produced.microbatch for produced in production)
    assert made == list(range(num_good))
    assert f"microbatch {num_good} of shard 'shard'" in caught.value.__notes__[0]


def test_a_product_that_is_not_iterable_is_refused():
    with pytest.raises(ConfigurationError, match="dataloader_factory = None"):
        run(lambda shard: None)


def test_marks_say_what_is_done_where_and_that_it_ended():
    marks = []
    run(lambda shard: [1, 2], mark=lambda *mark: marks.append(mark))
    assert marks == [("build", 0, "'shard'"), ("produce", 0), ("produce", 1), ("produce", 2), ("",)]


def test_what_was_delivered_before_is_marked_as_made_again():
    marks = []
    run(lambda shard: iter([1, 2, 3]), 2, mark=lambda *mark: marks.append(mark))
    assert marks[1:4] == [("replay", 0), ("replay", 1), ("produce", 2)]


def test_a_production_that_is_dropped_ends_the_users_generator():
    ended = []

    def factory(shard):
        try:
            yield from range(10)
        finally:
            ended.append(shard)

    task = Task(0, 0, 0, "shard", 0)
    production = produce(task, Producer(factory, 7, 0, unheard))
    next(production)
    production.close()
    del production
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

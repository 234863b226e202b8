"""Resume at each position, in a fresh loader with another number of workers."""

import base64
import dataclasses
import itertools
import json
import logging
import operator
import random

import pytest
import torch
from drop_in_examples import Counting, Drawing, Forgetful, Items, Lazy, Remembering, Restarting, Sized, unchanged
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Subset, WeightedRandomSampler
from walks import at_state, begun

from fkat_data import ConfigurationError, DataLoader, StaleIteratorError, StateMismatchError
from fkat_data.datasets import BufferSortedDataset, DistributedShardedDataset, MapDataset, ShardedDataset
from fkat_data.testing import digest

# A machine may have fewer cores than torch wants for that many workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ORDERS = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True},
    "items": lambda: {"batch_size": None, "shuffle": True},
    "torch's shuffle": lambda: {"sampler": RandomSampler(range(14))},
    "with a generator": lambda: {"sampler": RandomSampler(range(14), generator=torch.Generator().manual_seed(5))},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * 14, 14)},
    "distributed": lambda: {"sampler": DistributedSampler(range(14), 2, 1)},
    "drawn one by one": lambda: {"sampler": Lazy(14)},
    "batches": lambda: {"batch_size": 1, "batch_sampler": BatchSampler(Lazy(14), 3, drop_last=True)},
}


def loader_of(order, num_workers, **options):
    return DataLoader(Drawing(14), **{"batch_size": 3, "num_workers": num_workers, **ORDERS[order](), **options})


def recorded(loader, num_epochs=3):
    """Return the digests of each epoch, and the state behind each microbatch as JSON."""
    epochs, states = [], {(0, 0): json.dumps(loader.state_dict())}
    for epoch in range(num_epochs):
        epochs.append([])
        for step, microbatch in enumerate(loader, 1):
            epochs[-1].append(digest(microbatch))
            states[epoch, step] = json.dumps(loader.state_dict())
    return epochs, states


def follows(make, epochs, states):
    """Compare the rest of the run with what each of some states leads to."""
    for (epoch, step), state in states:
        with at_state(make(), json.loads(state)) as loader:
            wanted = [epochs[epoch][step:], *epochs[epoch + 1 :]]
            for rest in filter(None, wanted):
                assert [digest(microbatch) for microbatch in loader] == rest, (epoch, step)


@pytest.mark.long
@pytest.mark.parametrize("order", ORDERS)
def test_each_position_resumes_exactly_in_process(order):
    torch.manual_seed(random.randrange(1000))
    epochs, states = recorded(loader_of(order, 0))
    assert epochs[0] != epochs[1]
    follows(lambda: loader_of(order, 0), epochs, states.items())


@pytest.mark.parametrize(("saved", "resumed"), [(2, 0), (0, 1), (1, 2)])
def test_each_position_resumes_exactly_with_other_workers(saved, resumed, processes, some):
    for order in ("shuffled", "drawn one by one", "with a generator"):
        with loader_of(order, saved) as loader:
            epochs, states = recorded(loader, 2)
        follows(lambda order=order: loader_of(order, resumed), epochs, some(states.items()))


@pytest.mark.parametrize(
    ("dataset", "saved", "resumed"),
    [
        *(
            (dataset, *numbers)
            for numbers in [(0, 0), (3, 3), (2, 1), (2, 0), (0, 2)]
            for dataset in (Counting, Remembering)
        ),
        (Restarting, 0, 0),
        (Restarting, 2, 2),
    ],
)
def test_an_iterable_dataset_resumes_exactly(dataset, saved, resumed, processes, some):
    def make(num_workers):
        return DataLoader(dataset(11), 2, num_workers=num_workers, snapshot_every_n_steps=2)

    with make(saved) as loader:
        epochs, states = recorded(loader, 2)
    follows(lambda: make(resumed), epochs, some(states.items()))


def check_ends_of_epochs(make):
    """Save at and around the end of the first epoch, and train the rest in the loop that the docs show."""
    with make() as loader:
        whole = [[digest(each) for each in loader] for _ in range(2)]
    for num_taken in {*range(max(1, len(whole[0]) - 1), len(whole[0]) + 1), len(whole[0]) + 1}:
        with make() as loader:
            taken = [digest(each) for each in itertools.islice(loader, num_taken)]  # the end is asked for by the last
            state = json.dumps(loader.state_dict())
        num_delivered = len(taken)
        with at_state(make(), json.loads(state)) as resumed:
            at_end = num_delivered == len(whole[0])
            assert (resumed.epoch, resumed.step) == ((1, 0) if at_end else (0, num_delivered))
            rest = [[digest(each) for each in resumed] for _ in range(resumed.epoch, 2)]
        assert rest == (whole[1:] if at_end else [whole[0][num_delivered:], whole[1]])


@pytest.mark.parametrize("dataset", [Counting, Remembering, Restarting])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_state_behind_an_epochs_last_microbatch_begins_the_next_epoch(dataset, count):
    for batch_size, drop_last in ((None, False), (1, False), (2, False), (2, True), (3, True)):
        if not drop_last or count >= batch_size:
            check_ends_of_epochs(lambda: DataLoader(dataset(count), batch_size, drop_last=drop_last, seed=1))  # noqa: B023


@pytest.mark.parametrize(
    ("dataset", "count", "batch_size", "is_kept"),
    [(Counting, 2, 1, None), (Counting, 4, 2, None), (Remembering, 2, None, True), (Restarting, 5, 2, True)],
)
def test_it_does_so_with_more_workers_than_samples_and_with_workers_that_keep_the_dataset(
    dataset, count, batch_size, is_kept, processes
):
    options = {"num_workers": 3, "persistent_workers": is_kept, "seed": 1}
    check_ends_of_epochs(lambda: DataLoader(dataset(count), batch_size, **options))


def test_a_last_microbatch_that_is_taken_back_comes_again():
    loader = DataLoader(Remembering(4), 2, seed=1)
    iterator = iter(loader)
    last = [digest(next(iterator)) for _ in range(2)][-1]
    assert (loader.epoch, loader.step) == (1, 0)
    assert loader.take_back()
    assert (loader.epoch, loader.step) == (0, 1)
    resumed = at_state(DataLoader(Remembering(4), 2, seed=1), loader.state_dict())
    assert [digest(each) for each in resumed] == [last]
    assert [digest(each) for each in iterator] == [last]
    assert [digest(each) for each in resumed] == [digest(each) for each in loader]


def test_a_dataset_with_a_state_makes_nothing_again(caplog):
    dataset = Remembering(20)
    loader = DataLoader(dataset, 2)
    begun(loader, 6)
    state = loader.state_dict()
    resumed = at_state(DataLoader(other := Remembering(20), 2), state)
    assert len(list(resumed)) == 4
    assert (dataset.made, other.made) == (14, 8)  # one microbatch ahead, to know which is the last
    assert not caplog.records


def test_a_dataset_without_a_state_is_replayed_with_a_word_in_the_log(caplog):
    loader = DataLoader(Counting(20), 2)
    next(iter(loader))
    resumed = DataLoader(Counting(20), 2)
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(loader.state_dict())
        assert len(list(resumed)) == 9
    assert ["making 1 microbatch again" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_loads_nothing_that_was_delivered(num_workers, processes):
    loader = DataLoader(Items(40, "int"), 4, shuffle=True, num_workers=num_workers, collate_fn=unchanged)
    with loader:
        rest = begun(loader, 6)
        loader.load_state_dict(loader.state_dict())
        assert len(list(loader)) == 4
        # 4 for the rest, and what a worker that replaces none would make again: nothing
        assert loader.statistics().produced == 4
        with pytest.raises(StaleIteratorError):
            next(rest)


def test_a_resume_draws_nothing_from_the_programs_generators():
    loader = DataLoader(Items(9, "int"), shuffle=True)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_order_that_cannot_be_repeated_is_an_error_instead_of_other_data():
    loader = DataLoader(Items(9, "int"), sampler=Forgetful(9))
    list(loader)
    next(iter(loader))
    resumed = at_state(DataLoader(Items(9, "int"), sampler=Forgetful(9)), loader.state_dict())
    with pytest.raises(StateMismatchError, match="gives other samples than when the state was saved"):
        list(resumed)


class ForgetfulOf(Forgetful):
    """Such an order, of values that no state holds."""

    def __init__(self, count, made):
        super().__init__(count)
        self.made = made

    def __iter__(self):
        return map(self.made, super().__iter__())


class Numbers(Items):
    def __getitem__(self, value):
        return int(value.index if isinstance(value, Cut) else value["index"] if isinstance(value, dict) else value)


@dataclasses.dataclass
class Cut:
    index: torch.Tensor


VALUES = {
    "tensors": torch.tensor,
    "dictionaries of tensors": lambda index: {"index": torch.tensor(index)},
    "dataclasses": lambda index: Cut(torch.tensor(index)),
}


@pytest.mark.parametrize("batch_size", [1, 2, None])
@pytest.mark.parametrize("made", VALUES)
def test_an_order_of_other_values_that_cannot_be_repeated_is_an_error_too(made, batch_size):
    loaders = [DataLoader(Numbers(9, "int"), batch_size, sampler=ForgetfulOf(9, VALUES[made])) for _ in range(2)]
    list(loaders[0])
    next(iter(loaders[0]))
    resumed = at_state(loaders[1], loaders[0].state_dict())
    with pytest.raises(StateMismatchError, match="gives other samples than when the state was saved"):
        list(resumed)


def test_a_sampler_of_another_epoch_is_an_error_instead_of_other_data():
    samplers = [DistributedSampler(range(20), 2, 0) for _ in range(2)]
    samplers[0].set_epoch(4)
    loaders = [DataLoader(Items(20, "int"), sampler=sampler) for sampler in samplers]
    next(iter(loaders[0]))
    state = loaders[0].state_dict()
    loaders[1].load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"set_epoch\(\)"):
        list(loaders[1])
    samplers[1].set_epoch(4)
    loaders[1].load_state_dict(state)
    assert len(list(loaders[1])) == 9


def test_what_does_not_fit_is_refused_by_name():
    loader = DataLoader(Items(9, "int"), 2, seed=7)
    sealed = loader.state_dict()
    state = sealed["place"][0]
    for other, field in (
        ({**sealed, "version": 99}, "version"),
        ({**sealed, "step": 3}, "step"),
        ({**sealed, "place": ()}, "place"),
        ({**state, "seed": 8}, "seed"),
        ({**state, "drop_last": True}, "drop_last"),
        ({}, "version"),
        ([], "state_dict"),
        ({name: value for name, value in state.items() if name != "sampler"}, "sampler"),
        (DataLoader(Counting(9), 2, seed=7).state_dict(), "strands"),
    ):
        with pytest.raises(StateMismatchError) as raised:
            loader.load_state_dict(other)
        assert raised.value.field == field
    longer = at_state(DataLoader(Items(10, "int"), 2, seed=7), state)
    with pytest.raises(StateMismatchError, match="num_samples"):
        list(longer)


@pytest.mark.parametrize("make", [lambda: Items(9, "int"), lambda: Counting(9)])
def test_a_field_that_a_framework_adds_to_a_state_is_kept_until_the_loader_goes_on(make):
    """As accelerate's loaders add ``_iterator_finished``, where torchdata's state has it."""
    loader = DataLoader(make(), 2, seed=7)
    rest = begun(loader, 2)
    tagged = {**loader.state_dict(), "_iterator_finished": False, "note": {"run": 3}}
    resumed = at_state(DataLoader(make(), 2, seed=7), json.loads(json.dumps(tagged)))
    assert resumed.state_dict() == tagged
    assert [digest(microbatch) for microbatch in resumed] == [digest(microbatch) for microbatch in rest]
    assert set(resumed.state_dict()) == {"version", "place"}
    with pytest.raises(StateMismatchError, match=r"'step'.*state\['place'\]\[0\]"):
        resumed.load_state_dict({**tagged, "step": 3})


def test_a_state_holds_the_seed_and_small_plain_values():
    def made(seed, generator_seed):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(generator_seed)
        return DataLoader(Drawing(6), sampler=RandomSampler(range(6), generator=generator))

    loader = made(11, 5)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    generators = state["place"][0]["sampler"]["generators"]
    assert len(base64.b64decode(generators[0])) == len(torch.Generator().get_state())
    other = at_state(made(12, 6), state)
    assert [digest(microbatch) for microbatch in other] == [digest(microbatch) for microbatch in list(made(11, 5))[1:]]


def test_a_state_of_several_ranks_gives_each_rank_its_own():
    samplers = [DistributedSampler(range(20), 2, rank) for rank in range(2)]
    loaders = [DataLoader(Items(20, "int"), 2, sampler=sampler, seed=1) for sampler in samplers]
    rests = [[microbatch.tolist() for microbatch in loader] for loader in loaders]
    for loader in loaders:
        next(iter(loader))
    merged = DataLoader.merge_state_dicts([loader.local_state_dict() for loader in loaders])
    for rank, state in enumerate(merged["place"][0]["all_rank_states"]):
        loaders[rank].load_state_dict(state)
        assert [microbatch.tolist() for microbatch in loaders[rank]] == rests[rank][1:]
        loaders[rank].load_state_dict(merged)
        assert [microbatch.tolist() for microbatch in loaders[rank]] == rests[rank][1:]
    assert DataLoader.merge_state_dicts([state])["place"] == (state,)


@pytest.mark.parametrize("dataset", [Drawing, Counting, Remembering])
def test_the_end_of_an_epoch_may_be_counted_as_delivered(dataset):
    loader, whole = (DataLoader(dataset(12), 2, seed=1) for _ in range(2))
    loader.end_epoch()
    assert (loader.epoch, loader.step) == (0, 0)
    rest = begun(loader, 1)
    state = loader.state_dict()
    loader.end_epoch()
    assert (loader.epoch, loader.step) == (1, 0)
    with pytest.raises(StaleIteratorError):
        next(rest)
    list(whole)
    assert [len(microbatch) for microbatch in loader] == [len(microbatch) for microbatch in whole]
    loader.load_state_dict(state)
    loader.end_epoch()
    assert (loader.epoch, loader.step) == (1, 0)


@pytest.mark.parametrize("dataset", [Drawing, Counting, Remembering])
def test_a_microbatch_may_be_taken_back_once(dataset):
    loader = DataLoader(dataset(12), 2, seed=1)
    assert not loader.take_back()
    rest = iter(loader)
    microbatches = [digest(next(rest)) for _ in range(3)]
    assert loader.take_back()
    assert not loader.take_back()
    assert loader.step == 2
    assert digest(next(rest)) == microbatches[-1]


def test_an_iteration_that_delivers_nothing_leaves_the_rest_of_a_loaded_epoch():
    loader = DataLoader(Counting(12), 2, seed=1)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    iter(loader)
    assert len(list(loader)) == 5


def check_epochs_after_one_that_is_left(make, num_left, counts):
    """Leave an epoch early, in a run that was not stopped and in one that was, once and twice."""
    for num_saved, num_more in counts:
        with make() as whole:
            left = [[digest(each) for each in itertools.islice(whole, num_saved + num_more)] for _ in range(num_left)]
            expected = [[digest(each) for each in whole] for _ in range(2)]
        with make() as loader:
            before = [[digest(each) for each in itertools.islice(loader, num_saved + num_more)] for _ in left[1:]]
            last = [digest(each) for each in itertools.islice(loader, num_saved)]
            state = json.dumps(loader.state_dict())
        for _ in range(num_more):
            with at_state(make(), json.loads(state)) as loader:
                last += [digest(each) for each in itertools.islice(loader, 1)]
                state = json.dumps(loader.state_dict())
                followed = [[digest(each) for each in loader] for _ in range(2)]
            assert [*before, last] == [*left[:-1], left[-1][: len(last)]]
            assert followed == expected
        with at_state(make(), json.loads(state)) as ended:
            ended.end_epoch()
            assert [[digest(each) for each in ended] for _ in range(2)] == expected


@pytest.mark.parametrize("dataset", [pytest.param(Counting, marks=pytest.mark.long), Remembering, Restarting])
@pytest.mark.parametrize("every", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_an_epoch_that_is_left_after_a_resume_is_followed_by_whole_ones(dataset, every):
    def make():
        return DataLoader(dataset(11), 2, seed=1, snapshot_every_n_steps=every)

    for num_left in (1, 2):
        check_epochs_after_one_that_is_left(make, num_left, [(1, 1), (2, 1), (4, 1), (1, 2), (3, 2), (1, 3)])


@pytest.mark.parametrize(
    ("dataset", "num_workers"), [(Counting, 2), (Remembering, 1), (Remembering, 2), (Restarting, 2)]
)
@pytest.mark.parametrize("is_kept", [None, True])
def test_it_is_with_workers_too(dataset, num_workers, is_kept, processes):
    options = {"num_workers": num_workers, "persistent_workers": is_kept, "seed": 1}
    check_epochs_after_one_that_is_left(lambda: DataLoader(dataset(11), 2, **options), 2, [(3, 1)])


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.with_processes)])
def test_a_state_that_does_not_say_how_its_epoch_began_is_followed_by_whole_ones(num_workers):
    options = {"num_workers": num_workers, "persistent_workers": num_workers > 0, "seed": 1, "batch_size": 2}
    with DataLoader(Remembering(12), **options) as loader:
        list(itertools.islice(loader, 3))
        state = loader.state_dict()
    for strand in state["place"][0]["strands"]:
        strand.pop("begun", None)  # as versions wrote it that did not look ahead to this
    with at_state(DataLoader(Remembering(12), **options), state) as resumed:
        next(iter(resumed))
        assert [values.tolist() for values, *_ in resumed] == [[i, i + 1] for i in range(0, 12, 2)]
        assert [values.tolist() for values, *_ in resumed] == [[i, i + 1] for i in range(0, 12, 2)]


def test_a_sampler_that_gives_another_order_after_an_interruption_is_an_error_instead_of_other_data():
    class Interrupting(Forgetful):
        is_armed = True

        def __iter__(self):
            for position, index in enumerate(super().__iter__()):
                if position == 4 and self.is_armed:
                    self.is_armed = False
                    raise KeyboardInterrupt
                yield index

    rest = iter(DataLoader(Items(9, "int"), sampler=Interrupting(9)))
    with pytest.raises(KeyboardInterrupt):
        list(rest)
    with pytest.raises(StateMismatchError, match="gives other samples than when it was iterated before"):
        next(rest)


def test_all_strands_are_in_one_timeline(processes, tmp_path):
    with DataLoader(Counting(6), num_workers=2, trace=tmp_path / "run.json") as loader:
        list(loader)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    events = json.loads((tmp_path / "run.json").read_text())
    assert {"worker 0", "worker 1"} <= {event.get("args", {}).get("name") for event in events}


def bucketed(view=None, **options):
    dataset = BufferSortedDataset(Sized(40), buffer_size=16, pack_size=4, **options)
    dataset = view(dataset) if view else dataset
    return DataLoader(dataset, batch_size=4), dataset


VIEWS = {
    "none": None,
    "mapped": lambda dataset: MapDataset(dataset, operator.neg),
    "a rank's": lambda dataset: ShardedDataset(dataset, 2, 1, "sequential", pad_to_equal_size_across_shards=False),
    "a subset": lambda dataset: Subset(dataset, range(3, 38)),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_an_order_whose_seed_the_dataset_drew_goes_on(view):
    torch.manual_seed(random.randrange(1000))
    loader, _ = bucketed(view)
    first, second = [[(microbatch.tolist(), loader.state_dict()) for microbatch in loader] for _ in range(2)]
    assert [numbers for numbers, _ in first] != [numbers for numbers, _ in second]
    for step, (_, state) in enumerate([*first, *second][:-1], 1):
        other, _ = bucketed(view)
        other.load_state_dict(json.loads(json.dumps(state)))
        assert other.state_dict() == state
        rest = [*first, *second][step : len(first) if step < len(first) else None]
        assert [microbatch.tolist() for microbatch in other] == [numbers for numbers, _ in rest]


@pytest.mark.parametrize("is_seed_given", [False, True])
def test_epochs_of_a_bucketed_dataset_differ_and_resume_with_and_without_set_epoch(is_seed_given):
    def epochs_of(loader, dataset, first, *, is_told):
        for epoch in range(first, 3):
            if is_told:
                dataset.set_epoch(epoch + 5)
            yield [(microbatch.tolist(), loader.state_dict()) for microbatch in loader]

    options = {"init_seed": 3} if is_seed_given else {}
    orders = []
    for is_told in (False, True):
        loader, dataset = bucketed(**options)
        epochs = list(epochs_of(loader, dataset, 0, is_told=is_told))
        other, dataset = bucketed(**options)
        other.load_state_dict(epochs[1][3][1])
        rest = list(epochs_of(other, dataset, 1, is_told=is_told))
        delivered = [[numbers for numbers, _ in epoch] for epoch in epochs]
        assert [[numbers for numbers, _ in epoch] for epoch in rest] == [delivered[1][4:], delivered[2]]
        orders += delivered
    assert all(one != other for one, other in itertools.combinations(orders, 2))


def test_workers_that_stay_get_the_order_of_the_epoch(processes):
    loader, _ = bucketed()
    wanted = [[microbatch.tolist() for microbatch in loader] for _ in range(2)]
    with DataLoader(loader.dataset, batch_size=4, num_workers=1, persistent_workers=True) as staying:
        assert [[microbatch.tolist() for microbatch in staying] for _ in range(2)] == wanted


def test_an_order_that_a_state_does_not_say_is_an_error_instead_of_other_data():
    drawn, seeded = bucketed()[0].state_dict(), bucketed(init_seed=3)[0].state_dict()
    assert "dataset" in drawn["place"][0]
    assert "dataset" not in seeded["place"][0]
    for state, arguments in [(seeded, {}), (drawn, {"init_seed": 3})]:
        with pytest.raises(StateMismatchError, match="seed"):
            bucketed(**arguments)[0].load_state_dict(state)
    with pytest.raises(StateMismatchError, match="the dataset determines the order"):
        DataLoader(range(40), batch_size=4).load_state_dict(drawn)
    bucketed(init_seed=3)[0].load_state_dict(seeded)


def test_epochs_of_a_dataset_of_shuffled_shards_differ_and_resume():
    def made(**options):
        params = {str(number): ((range(5 * number, 5 * number + 5),), {}) for number in range(4)}
        return DataLoader(
            DistributedShardedDataset(list, params, rank=0, world_size=1, prefetch=False, **options), batch_size=4
        )

    loader = made(shuffle=True)
    first, second = list(loader), list(loader)
    assert not all(map(torch.equal, first, second))
    list(zip(range(2), loader, strict=False))
    other = at_state(made(shuffle=True), loader.state_dict())
    rest = list(other)
    loader.load_state_dict(loader.state_dict())
    assert len(rest) == 3
    assert all(map(torch.equal, rest, loader))
    assert all(map(torch.equal, *(made() for _ in range(2))))


KINDS = {"in order": {}, "shuffled": {"shuffle": True}, "a sampler": {"sampler": RandomSampler(range(14))}}


@pytest.mark.parametrize("saved", KINDS)
@pytest.mark.parametrize("present", KINDS)
def test_an_epoch_is_not_finished_in_another_kind_of_order(saved, present):
    loader = DataLoader(range(14), batch_size=3, **KINDS[saved])
    begins = loader.state_dict()
    next(iter(loader))
    other = at_state(DataLoader(range(14), batch_size=3, **KINDS[present]), loader.state_dict())
    if saved != present:
        with pytest.raises(StateMismatchError, match="finish the epoch in the order in which it began"):
            iter(other)
    other.load_state_dict(begins)
    assert sorted(torch.cat(list(other)).tolist()) == list(range(14))


def test_ranks_with_orders_of_their_own_are_refused():
    dataset = bucketed()[1]
    with pytest.raises(ConfigurationError, match="the same on all 2 ranks"):
        iter(DataLoader(dataset, sampler=DistributedSampler(dataset, 2, 1)))
    dataset = bucketed(init_seed=3)[1]
    assert len(list(DataLoader(dataset, sampler=DistributedSampler(dataset, 2, 1)))) == 20

"""What a program sets between two microbatches, or between two epochs, as with torch's DataLoader."""

import json

import pytest
import torch
from drop_in_examples import Counting, FromGenerator
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler
from walks import at_state, begun

from fkat_data import ConfigurationError, DataLoader, StateMismatchError
from fkat_data.datasets import DictDataset, TokenBudgetBatchSampler
from fkat_data.mixing import DictBatchSampler, Weighted


def flat(microbatches):
    return [int(sample) for microbatch in microbatches for sample in microbatch]


def set_batch_size(loader, size):
    loader.batch_sampler.batch_size = size


ORDERS = {
    "in order": lambda **options: DataLoader(range(20), 2, **options),
    "shuffled": lambda **options: DataLoader(range(20), 2, shuffle=True, seed=3, **options),
    "dealt out": lambda **options: dealt_out(DataLoader(range(20), 2, shuffle=True, seed=3, **options)),
    "given batches": lambda **options: DataLoader(
        range(20), batch_sampler=BatchSampler(SequentialSampler(range(20)), 2, drop_last=False), **options
    ),
    "a generator": lambda **options: DataLoader(
        range(20), 2, sampler=RandomSampler(range(20), generator=torch.Generator()), **options
    ),
    "a list": lambda **options: DataLoader(range(20), 2, sampler=[*range(20)], **options),
    "a distributed one": lambda **options: DataLoader(
        range(20), 2, sampler=DistributedSampler(range(20), 1, 0), **options
    ),
    "rows": lambda **options: DataLoader(range(20), 2, window_fn=list, window_size=6, **options),
    "iterable": lambda **options: DataLoader(Counting(20), 2, collate_fn=first_of_each, **options),
}


def first_of_each(samples):
    return [number for number, _ in samples]


def dealt_out(loader):
    loader.deal_out(1, 0)
    return loader


@pytest.mark.parametrize("kind", ORDERS)
def test_a_batch_size_that_is_set_within_an_epoch_counts_from_the_next_one(kind):
    loader, other = ORDERS[kind](), ORDERS[kind]()
    iterator = begun(loader, 2)
    set_batch_size(loader, 7)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [*iterator]
    assert [len(microbatch) for microbatch in rest] == [2] * 8
    assert flat(at_state(other, state)) == flat(rest)
    begins = loader.state_dict()
    sizes = [len(microbatch) for microbatch in loader]
    assert sizes == [7, 7, 6]
    set_batch_size(other, 7)
    assert [len(microbatch) for microbatch in at_state(other, begins)] == sizes


@pytest.mark.parametrize("kind", ["in order", "shuffled", "given batches", "a generator", "a list"])
def test_a_state_before_and_after_a_set_batch_size_loses_no_sample(kind):
    loader = ORDERS[kind]()
    list(loader)
    set_batch_size(loader, 7)
    iterator = begun(loader, 1)
    state = loader.state_dict()
    rest = flat(iterator)
    other = ORDERS[kind]()
    set_batch_size(other, 7)
    assert flat(at_state(other, state)) == rest


def test_whether_the_last_batch_is_left_out_counts_from_the_next_epoch():
    loader, other = (DataLoader(range(10), 4) for _ in range(2))
    iterator = begun(loader, 1)
    loader.batch_sampler.drop_last = True
    state = loader.state_dict()
    rest = flat(iterator)
    assert rest == [4, 5, 6, 7, 8, 9]
    assert flat(at_state(other, state)) == rest
    assert [len(microbatch) for microbatch in loader] == [4, 4]
    with pytest.raises(StateMismatchError, match="drop_last"):
        other.load_state_dict(loader.state_dict())


def test_the_samplers_of_a_batch_sampler_may_be_replaced_between_epochs():
    loader = DataLoader(range(6), 2, seed=3)
    list(loader)
    for sampler in (
        [5, 0, 4, 1, 3, 2],
        SequentialSampler(range(6)),
        RandomSampler(range(6), generator=torch.Generator()),
    ):
        iterator = begun(loader, 1)
        loader.batch_sampler.sampler = sampler
        assert len(flat(iterator)) == 4
        iterator = begun(loader, 1)
        state = loader.state_dict()
        rest = flat(iterator)
        other = DataLoader(range(6), 2, seed=3)
        other.batch_sampler.sampler = sampler
        assert flat(at_state(other, state)) == rest


def test_a_dataset_that_grows_within_an_epoch_counts_from_the_next_one():
    samples = list(range(6))
    loader = DataLoader(samples, 2, shuffle=True, seed=3)
    iterator = begun(loader, 1)
    samples += [6, 7]
    state = loader.state_dict()
    assert max(flat(iterator)) < 6
    assert sorted(flat(loader)) == list(range(8))
    with pytest.raises(StateMismatchError, match="num_samples"):
        flat(at_state(DataLoader(samples, 2, shuffle=True, seed=3), state))


def test_what_was_set_between_a_load_and_its_iteration_is_refused_by_name():
    loader = DataLoader(range(10), 2)
    begun(loader, 2)
    state = loader.state_dict()
    for name, value in (("batch_size", 5), ("drop_last", True)):
        other = at_state(DataLoader(range(10), 2), state)
        setattr(other.batch_sampler, name, value)
        with pytest.raises(StateMismatchError, match=f"{name}.*set it before load_state_dict"):
            iter(other)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 5),
        ("window_size", 3),
        ("on_sample_error", "skip"),
        ("window_fn", list),
        ("snapshot_every_n_steps", -1),
        ("max_worker_restarts", "many"),
        ("device", "nowhere"),
        ("dp_rank", -1),
        ("start_method", "magic"),
        ("memory_limit_bytes", 1),
    ],
)
def test_what_cannot_be_set_is_refused_by_name_and_changes_nothing(name, value):
    loader = DataLoader(range(10), 2, seed=4)
    iterator = begun(loader, 1)
    before = getattr(loader, name)
    with pytest.raises(ConfigurationError, match=name):
        setattr(loader, name, value)
    assert getattr(loader, name) == before
    assert flat(iterator) == [*range(2, 10)]


def test_a_shuffle_with_replacement_is_refused_where_it_would_have_no_effect():
    loader = DataLoader(range(4), 2, shuffle=True)
    loader.sampler.replacement = True
    with pytest.raises(ConfigurationError, match=r"replacement.*RandomSampler"):
        list(loader)


def test_what_may_be_set_counts_from_the_next_epoch():
    loader = DataLoader(Counting(4), 1, seed=4, collate_fn=first_of_each)
    iterator = begun(loader, 1)
    loader.collate_fn = len
    loader.dp_rank = 3
    loader.snapshot_every_n_steps = 2
    assert flat(iterator) == [1, 2, 3]
    assert [*loader] == [1] * 4


def test_a_device_may_be_set():
    loader = DataLoader(range(4), 2)
    list(loader)
    loader.device = "cpu"
    assert flat(loader) == [0, 1, 2, 3]
    assert loader.epoch == 2


def test_between_two_epochs_a_state_holds_the_length_and_the_kind_of_order():
    loader = DataLoader(range(10), 2, shuffle=True, seed=3)
    list(loader)
    state = loader.state_dict()
    assert len(list(at_state(DataLoader(range(10), 5, shuffle=True, seed=3), state))) == 2
    for other, field in (
        (DataLoader(range(10), 2, seed=3), "sampler"),
        (DataLoader(range(10), 2, seed=3, sampler=[*range(10)]), "sampler"),
        (DataLoader(range(12), 2, shuffle=True, seed=3), "num_samples"),
    ):
        other.load_state_dict(state)
        with pytest.raises(StateMismatchError) as raised:
            list(other)
        assert raised.value.field == field
    other = DataLoader(range(12), 2, shuffle=True, seed=3)  # what the message says
    other.set_epoch(1)
    assert sorted(flat(other)) == list(range(12))


def test_torchs_own_shuffle_of_another_dataset_is_refused_between_two_epochs_too():
    def make(count):
        return DataLoader(range(count), 2, sampler=RandomSampler(range(count), generator=torch.Generator()))

    loader = make(10)
    list(loader)
    with pytest.raises(StateMismatchError, match="num_samples"):
        list(at_state(make(12), loader.state_dict()))


def mixed():
    names = {"a": 1.0, "b": 1.0}
    dataset = DictDataset({name: [{"x": index} for index in range(16)] for name in names})
    samplers = {name: BatchSampler(SequentialSampler(range(16)), 2, drop_last=False) for name in names}
    return DataLoader(dataset, batch_sampler=DictBatchSampler(Weighted(names), samplers), collate_fn=list)


def test_an_epoch_that_a_sampler_is_set_to_after_a_load_is_the_one_that_comes():
    loader = mixed()
    first = [*map(str, loader)]
    state = loader.state_dict()
    loader.batch_sampler.set_epoch(1)
    second = [*map(str, loader)]
    assert first != second
    other = at_state(mixed(), state)
    other.batch_sampler.set_epoch(other.epoch)
    begins = other.state_dict()
    iter(other)
    assert [*map(str, other)] == second
    assert [*map(str, at_state(mixed(), begins))] == second


class Drawn(Sampler):
    """Counts how many numbers were drawn from it."""

    def __init__(self, count):
        self.count = count
        self.num_drawn = 0

    def __len__(self):
        return self.count

    def __iter__(self):
        for index in range(self.count):
            self.num_drawn = index + 1
            yield index


@pytest.mark.parametrize(("num_workers", "factor"), [(1, 1), (1, None), (2, 1), (2, 3)])
@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_a_sampler_is_drawn_as_far_ahead_as_with_torch(num_workers, factor, workers, processes):
    sampler = Drawn(60)
    options = {"num_workers": num_workers, "prefetch_factor": factor, "workers": workers}
    with DataLoader(range(60), 1, sampler=sampler, **options) as loader:
        most = num_workers * (factor or 2)
        for number, microbatch in enumerate(loader, 1):
            assert int(microbatch) == number - 1
            assert sampler.num_drawn - number <= most


def test_in_process_a_sampler_is_drawn_one_ahead():
    sampler = Drawn(60)
    for number, _ in enumerate(DataLoader(range(60), 1, sampler=sampler), 1):
        assert sampler.num_drawn - number <= 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_next_epoch_draws_on_where_the_caller_has_left_the_one_before(num_workers, processes):
    def drawn(count):
        return [int(torch.randint(60, (1,), generator=expected)) for _ in range(count)]

    expected, given = (torch.Generator().manual_seed(4) for _ in range(2))
    with DataLoader(range(60), 1, sampler=FromGenerator(60, given), num_workers=num_workers) as loader:
        assert flat(next(iter(loader)) for _ in range(1)) == drawn(1)
        assert flat(begun(loader, 0)) == drawn(60)
        loader.kept = begun(loader, 5)
        loader.end_epoch()
        drawn(5)
        assert flat(loader) == drawn(60)


def test_batches_by_tokens_have_the_next_epoch_whole_after_one_that_was_ended():
    def make():
        return DataLoader(range(40), batch_sampler=TokenBudgetBatchSampler([5] * 40, 20, 16, seed=3))

    whole = make()
    epochs = [[*map(str, whole)] for _ in range(2)]
    loader = make()
    begun(loader, 3)
    loader.load_state_dict(loader.state_dict())
    loader.end_epoch()
    state = loader.state_dict()
    assert [*map(str, at_state(make(), state))] == epochs[1]
    assert [*map(str, loader)] == epochs[1]

import copy
import pickle
import threading
from functools import partial
from itertools import islice, pairwise, product

import pytest
import torch
from drop_in_examples import (
    FORMS,
    Counting,
    Drawing,
    Growing,
    Items,
    Lazy,
    Remembering,
    Restarting,
    Rows,
    Slow,
    Told,
    enter,
    refuse,
    unchanged,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader
from walks import at_state, begun

from fkat_data import ConfigurationError, DataLoader, ShardedDataLoader, StaleIteratorError, WorkerStalledError
from fkat_data.testing import digest

# A machine may have fewer cores than torch wants for that many workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

OPTIONS = st.one_of(
    st.fixed_dictionaries({"batch_size": st.none()}),
    st.fixed_dictionaries({"batch_size": st.integers(1, 9), "drop_last": st.booleans()}),
    st.fixed_dictionaries({"batch_size": st.integers(1, 9), "sampler": st.lists(st.integers(0, 6), max_size=40)}),
    st.fixed_dictionaries(
        {"batch_sampler": st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), max_size=40)}
    ),
)


def digests(loader):
    return [digest(microbatch) for microbatch in loader]


def same(form, count, options, num_workers):
    dataset = Items(count, form)
    expected = TorchDataLoader(dataset, **options)
    with DataLoader(dataset, num_workers=num_workers, **options) as loader:
        assert digests(loader) == digests(expected)
        assert len(loader) == len(expected)


@given(form=st.sampled_from(sorted(FORMS)), count=st.integers(7, 40), options=OPTIONS)
def test_the_same_bits_as_torch_in_process(form, count, options):
    same(form, count, options, 0)


def test_the_same_bits_as_torch_in_workers(processes):
    @settings(max_examples=40)
    @given(
        form=st.sampled_from(sorted(FORMS)), count=st.integers(7, 40), options=OPTIONS, num_workers=st.integers(1, 2)
    )
    def check(form, count, options, num_workers):
        same(form, count, options, num_workers)

    check()


class OwnIterator:
    """Batches of indices that begin again whenever somebody calls iter(), as samplers do that are their own iterators."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        self.left = iter(range(self.count))
        return self

    def __next__(self):
        return [next(self.left)]


@pytest.mark.parametrize("count", [5, 70])
def test_a_sampler_that_is_its_own_iterator_gives_each_batch_once(count):
    """Lightning makes one for every prediction."""
    expected = [[index] for index in range(count)]
    product = TorchDataLoader(range(count), batch_sampler=OwnIterator(count))
    for loader in (
        DataLoader(range(count), batch_sampler=OwnIterator(count)),
        ShardedDataLoader(0, ["shard"], lambda shard: product, multiprocessing=False),
    ):
        assert [batch.tolist() for batch in islice(loader, count + 1)] == expected


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_iterable_dataset_comes_in_torchs_order(num_workers, processes):
    for options in ({"batch_size": 3}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}):
        expected = [batch[0] for batch in TorchDataLoader(Counting(17), num_workers=num_workers, **options)]
        with DataLoader(Counting(17), num_workers=num_workers, **options) as loader:
            for _ in range(2):
                assert digests(batch[0] for batch in loader) == digests(expected)


def test_frameworks_find_torchs_class_and_attributes():
    dataset = Items(10, "int")
    loader = DataLoader(dataset, 3, shuffle=True)
    expected = TorchDataLoader(dataset, 3, shuffle=True)
    assert isinstance(loader, TorchDataLoader)
    assert isinstance(loader.sampler, RandomSampler)
    assert type(loader.batch_sampler) is BatchSampler
    names = ("dataset", "batch_size", "num_workers", "collate_fn", "drop_last", "timeout", "generator", "pin_memory")
    for name in (*names, "worker_init_fn", "multiprocessing_context", "persistent_workers"):
        assert getattr(loader, name) == getattr(expected, name), name
    assert isinstance(DataLoader(dataset).sampler, SequentialSampler)
    with pytest.raises(ValueError, match="should not be set after DataLoader is initialized"):
        loader.dataset = dataset
    assert DataLoader[int] is not None


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"batch_size": 0},
        {"sampler": [0], "shuffle": True},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "unknown"},
    ],
)
def test_what_torch_refuses_is_refused_alike(options):
    dataset = Items(10, "int")
    with pytest.raises(ValueError) as expected:
        TorchDataLoader(dataset, **options)
    with pytest.raises(ValueError) as raised:
        DataLoader(dataset, **options)
    assert str(raised.value) == str(expected.value)


def test_an_empty_dataset_cannot_be_shuffled():
    with pytest.raises(ValueError, match="num_samples should be a positive integer"):
        DataLoader(Items(0, "int"), shuffle=True)
    assert list(DataLoader(Items(0, "int"))) == []
    assert list(DataLoader(Items(5, "int"), sampler=[])) == []


def test_a_wrong_value_is_refused_where_the_loader_is_made():
    for name, value in {"device": "cudaa", "dp_rank": -1, "zero_copy": "yes", "start_method": "forked"}.items():
        with pytest.raises(ConfigurationError, match=f"^{name} = "):
            DataLoader([1], **{name: value})


def test_data_pipes_are_refused():
    class Pipe(torch.utils.data.IterDataPipe):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ConfigurationError, match="DataPipes"):
        DataLoader(Pipe())


def test_the_programs_own_draws_are_those_with_torch():
    """A model that is made and trained beside an unshuffled loader has the same bits."""
    found = []
    for make in (TorchDataLoader, DataLoader):
        torch.manual_seed(3)
        loader = make(Drawing(6) if make is DataLoader else Items(6, "int"), 2)
        draws = [torch.rand(1)]
        for _ in range(3):
            draws += [torch.rand(1) for _ in loader]
        found.append(torch.cat(draws))
    assert torch.equal(*found)


def test_a_program_that_seeds_torch_gets_the_same_epochs_again():
    def epochs(seed):
        torch.manual_seed(seed)
        loader = DataLoader(Drawing(20), 4, shuffle=True)
        return [digests(loader) for _ in range(3)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    first, second, third = epochs(1)
    assert first != second != third

    def by_generator():
        return digests(DataLoader(Drawing(20), 4, shuffle=True, generator=torch.Generator().manual_seed(4)))

    assert by_generator() == by_generator()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_set_epoch_of_a_distributed_sampler_counts_when_an_epoch_begins(num_workers, processes):
    dataset = Items(20, "int")
    own, reference = (DistributedSampler(dataset, 2, 1) for _ in range(2))
    with DataLoader(dataset, 3, sampler=own, num_workers=num_workers) as loader:
        next(iter(loader))
        for epoch in (3, 0, 7):
            own.set_epoch(epoch)
            reference.set_epoch(epoch)
            iter(loader)  # an iteration that delivers nothing decides nothing
            assert torch.cat(list(loader)).tolist() == list(reference)
        own.set_epoch(1)
        iter(loader)
        own.set_epoch(2)
        reference.set_epoch(2)
        assert torch.cat(list(loader)).tolist() == list(reference)


def test_a_worker_is_told_what_torch_tells_it(processes):
    with DataLoader(Told(8), 1, num_workers=2, worker_init_fn=enter, collate_fn=unchanged) as loader:
        told = [sample for _ in range(3) for (sample,) in loader]
    assert {sample[1:] for sample in told} <= {(2, (0,), True), (2, (1,), True)}
    assert all(number == entered[0] for number, _, entered, _ in told)
    assert list(DataLoader(Told(8), None)) == [None] * 8


@pytest.mark.parametrize(("persistent_workers", "marks"), [(None, [0, 1, 1]), (True, [0, 0, 0]), (False, [0, 1, 1])])
@pytest.mark.parametrize("start_method", ["template", "fork"])
def test_when_a_changed_dataset_reaches_the_workers(start_method, persistent_workers, marks, processes):
    dataset = Growing(4)
    found, pids = [], []
    options = {
        "num_workers": 1,
        "timeout": 600,
        "start_method": start_method,
    }  # with a time-out, workers alone make samples
    with DataLoader(dataset, None, persistent_workers=persistent_workers, **options) as loader:
        for mark in (0, 1, 1):
            dataset.mark = mark
            samples = list(loader)
            found.append(samples[0][0])
            pids.append(samples[0][1])
    assert found == marks
    has_new = [before != after for before, after in pairwise(pids)]
    unsaid = [True, start_method == "fork"]
    assert has_new == {None: unsaid, True: [False, False], False: [True, True]}[persistent_workers]


@pytest.mark.parametrize(("persistent_workers", "epochs"), [(None, [0, 0]), (True, [0, 1]), (False, [0, 0])])
def test_whether_an_iterable_dataset_stays_from_epoch_to_epoch(persistent_workers, epochs, processes):
    with DataLoader(Remembering(4), None, num_workers=1, persistent_workers=persistent_workers) as loader:
        assert [next(iter([*loader]))[1] for _ in epochs] == epochs


def test_a_newer_iterator_ends_an_older_one(processes):
    for dataset in (Items(9, "int"), Counting(9)):
        with DataLoader(dataset, num_workers=1) as loader:
            older = begun(loader, 1)
            newer = iter(loader)
            with pytest.raises(StaleIteratorError):
                next(older)
            assert len(list(newer)) == 9
            assert loader.epoch == 2  # the first was left early
            assert next(newer, None) is None


def test_a_look_at_a_resumed_epoch_is_named(caplog):
    loader = DataLoader(Items(12, "int"), 2, shuffle=True, seed=1)
    rest = begun(loader, 1)
    state, expected = loader.state_dict(), digests(rest)
    for num_looked, is_taken_back, num_lines in ((1, True, 0), (2, False, 0), (1, False, 1)):
        resumed = at_state(DataLoader(Items(12, "int"), 2, shuffle=True, seed=1), state)
        looked = iter(resumed)
        for _ in range(num_looked):
            next(looked)
        assert resumed.take_back() if is_taken_back else True
        caplog.clear()
        assert (digests(resumed) == expected) == is_taken_back
        assert len([line for line in caplog.messages if "rest of epoch 0" in line]) == num_lines
        assert "take_back()" in caplog.text or not num_lines


def test_torchs_name_for_an_iterator_is_one_of_this_loader():
    class Doubled(DataLoader):
        def __iter__(self):
            return (2 * batch for batch in self._get_iterator())

    loader = Doubled(Items(4, "int"), 2)
    assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6]]
    assert loader.epoch == 1


def test_what_a_worker_raises_is_the_users_own(processes):
    loader = DataLoader(Items(3, "int"), num_workers=1, worker_init_fn=refuse)
    with loader, pytest.raises(KeyError, match="worker 0 is refused"):
        next(iter(loader))


def test_a_worker_that_takes_too_long_is_a_runtime_error(processes):
    with DataLoader(Slow(2), num_workers=1, timeout=0.2) as loader, pytest.raises(WorkerStalledError) as raised:
        next(iter(loader))
    assert isinstance(raised.value, RuntimeError)


def test_what_cannot_be_sent_is_named_as_the_user_knows_it():
    dataset = Items(3, "int")
    dataset.lock = threading.Lock()
    with pytest.raises(ConfigurationError, match=r"^dataset\.lock = .*or num_workers=0"):
        iter(DataLoader(dataset, num_workers=1, start_method="spawn"))


def test_more_samples_than_an_iterable_dataset_says_is_a_warning():
    class Short(IterableDataset):
        def __iter__(self):
            return iter(range(4))

        def __len__(self):
            return 3

    loader = DataLoader(Short(), None)
    assert list(loader) == [0, 1, 2, 3]
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="reported to be 3"):
        assert list(loader) == [0, 1, 2, 3]


def formed(name, samples):
    return [name, *samples]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_is_set_between_two_epochs_counts_from_the_next_one(num_workers, processes):
    for dataset in (Items(6, "int"), Counting(6)):
        with DataLoader(dataset, 2, seed=1, num_workers=num_workers, collate_fn=partial(formed, "first")) as loader:
            older = iter(loader)
            assert next(older)[0] == "first"
            loader.collate_fn = partial(formed, "second")
            assert next(older)[0] == "first"
            assert [batch[0] for batch in loader] == ["second"] * 3
            assert loader.epoch == 2
            state = loader.state_dict()
            assert list(loader)
            loader.load_state_dict(state)
            loader.num_workers = 0
            assert [len(batch) for batch in loader] == [3] * 3


def pickled(value):
    return pickle.loads(pickle.dumps(value))


COPIES = (copy.copy, copy.deepcopy, pickled)


@pytest.mark.parametrize("copied_by", COPIES)
@pytest.mark.parametrize(
    "options",
    [
        {"dataset": Drawing(12), "shuffle": True},
        {"dataset": Drawing(12), "sampler": [5, 3, 4, 11, 0, 2]},
        {"dataset": range(9), "sampler": RandomSampler(range(9), generator=torch.Generator())},
    ],
    ids=["shuffle", "sampler", "generator"],
)
def test_a_copy_of_a_loader_under_iteration_has_its_epoch_from_the_start(copied_by, options):
    loader = DataLoader(batch_size=2, seed=1, **options)
    list(loader)
    rest = iter(loader)
    delivered = [digest(next(rest)) for _ in range(2)]
    copied = copied_by(loader)
    assert (copied.epoch, copied.step) == (1, 0)
    whole = digests(copied)
    assert (copied.epoch, loader.epoch, loader.step) == (2, 1, 2)
    assert delivered + digests(rest) == whole


class Cursor(IterableDataset):
    """Goes on where it stands, and gives its own variables as its state."""

    def __init__(self):
        self.next = 1

    def __iter__(self):
        while self.next <= 6:
            self.next += 1
            yield self.next - 1
        self.next = 1

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


STREAMS = pytest.mark.parametrize(
    "make", [partial(Counting, 6), partial(Remembering, 6), partial(Restarting, 6), Cursor, partial(Rows, 6)]
)


@STREAMS
@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.long), {"batch_size": 2, "snapshot_every_n_steps": 0}]
)
def test_a_copy_of_an_iterable_dataset_has_the_whole_epoch_at_each_place_of_it(make, options):
    options = {"batch_size": None, "seed": 1, **options}
    expected = epochs(DataLoader(make(), **options), 3)
    for copied_by in COPIES:
        for epoch in range(2):
            for step in range(len(expected[epoch])):
                loader = DataLoader(make(), **options)
                assert epochs(loader, epoch) == expected[:epoch]
                rest = iter(loader)
                delivered = [digest(sample) for sample in islice(rest, step)]
                copied = copied_by(loader)
                assert (copied.epoch, copied.step) == (epoch, 0)
                if copied_by is not copy.copy:  # which shares the dataset
                    assert delivered + digests(rest) == expected[epoch]
                assert epochs(copied, 3 - epoch) == expected[epoch:]


@STREAMS
def test_a_copy_of_a_resumed_loader_has_the_whole_epoch_and_takes_nothing_of_the_rest(make):
    options = {"batch_size": None, "seed": 1}
    expected = epochs(DataLoader(make(), **options), 3)
    for copied_by, epoch, step in product((copy.deepcopy, pickled), range(2), range(1, 5)):
        saved = DataLoader(make(), **options)
        epochs(saved, epoch)
        list(islice(saved, step))
        resumed = at_state(DataLoader(make(), **options), saved.state_dict())
        rest = begun(resumed, 1)
        copied = copied_by(resumed)
        assert (copied.epoch, copied.step) == (epoch, 0)
        assert epochs(copied, 1) == [expected[epoch]]
        assert epochs(copied, 1) == [expected[epoch + 1]]
        assert digests(rest) == expected[epoch][step + 1 :]


@pytest.mark.parametrize("num_delivered", range(6))
def test_an_epoch_that_is_set_within_another_begins_at_the_datasets_start(num_delivered):
    loader = DataLoader(Cursor(), None)
    rest = iter(loader)
    list(islice(rest, num_delivered))
    loader.set_epoch(5)
    assert list(loader) == [1, 2, 3, 4, 5, 6]
    assert loader.epoch == 6


def epochs(loader, count):
    return [digests(loader) for _ in range(count)]


def test_a_copy_keeps_a_position_that_was_loaded_and_not_begun():
    loader = DataLoader(Drawing(12), 2, shuffle=True)
    rest = begun(loader, 1)
    loaded = at_state(DataLoader(Drawing(12), 2, shuffle=True), loader.state_dict())
    expected = digests(rest)
    for copied_by in COPIES:
        copied = copied_by(loaded)
        assert copied.step == 1
        assert digests(copied) == expected
    assert digests(loaded) == expected


@pytest.mark.parametrize("dataset", [range(6), Counting(6)])
def test_an_iterator_is_one_of_torchs_that_refuses_to_be_copied(dataset):
    iterator = iter(DataLoader(dataset, 2))
    assert isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter)
    for copied_by in COPIES:
        with pytest.raises(
            NotImplementedError, match=r"iterator of a fkat_data.DataLoader cannot be pickled or copied"
        ):
            copied_by(iterator)
    assert iterator
    assert len(list(iterator)) == 3


@pytest.mark.parametrize("dataset", [{"shuffle": True}, {"sampler": Lazy(14)}, {"iterable": True}])
def test_an_error_names_the_epoch_and_the_microbatch_of_the_dataset(dataset):
    class Broken(Items):
        def __getitem__(self, index):
            raise KeyError("label")

        def __iter__(self):
            yield from range(4)
            raise KeyError("label")

    kind = type("Kind", (Broken, IterableDataset), {}) if dataset.pop("iterable", False) else Broken
    with pytest.raises(KeyError) as caught:
        list(DataLoader(kind(14, "int"), batch_size=4, **dataset))
    (note,) = caught.value.__notes__
    assert note == f"fkat_data: at microbatch {int(issubclass(kind, IterableDataset))} of the dataset (epoch 0)"

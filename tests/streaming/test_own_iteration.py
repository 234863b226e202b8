from itertools import chain

import pytest
from own_datasets import Buffered, Endless, Filtered, Iterated, OwnOrder
from streaming_examples import numbers, worlds, write
from torch.utils.data import DataLoader

from fkat_data.errors import ConfigurationError, StaleIteratorError
from fkat_data.streaming import StreamingDataLoader, StreamingDataset


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("data") / "numbers", 97)
    return {"local": path, "batch_size": 4, "shuffle": True, "shuffle_algo": "block", "num_canonical_nodes": 2}


@pytest.mark.long
def test_a_state_is_exact_at_every_position_and_in_other_worlds(options):
    plain = StreamingDataLoader(StreamingDataset(**options | {"batch_size": 12}))
    states = [plain.state_dict(), *(plain.state_dict() for _ in plain)]
    loader = StreamingDataLoader(Iterated(**options | {"batch_size": 12}))
    batches = numbers(loader)
    loader.load_state_dict(states[0])
    assert [loader.state_dict(), *(loader.state_dict() for _ in loader)] == states
    for position, state in enumerate(states):
        read = []
        for one in worlds(2, 3):
            other = StreamingDataLoader(Iterated(**options | {"batch_size": 2}, world=one))
            other.load_state_dict(state)
            assert other.state_dict() == state
            read.append(numbers(other))
        full = [sorted(batch) for batch in batches[position:] if len(batch) == 12]
        assert [sorted(chain.from_iterable(step)) for step in zip(*read, strict=True)][: len(full)] == full
    assert [len(batch) for batch in numbers(StreamingDataLoader(Iterated(**options), drop_last=True))] == [4] * 24


def test_epochs_follow_one_another_in_one_iteration(options):
    plain = StreamingDataLoader(StreamingDataset(**options))
    expected = [[number + 1000 for number in batch] for _ in range(2) for batch in numbers(plain)]
    loader = StreamingDataLoader(Endless(**options))
    for batch, wanted in zip(loader, expected, strict=False):
        assert batch["number"].tolist() == wanted
        state = loader.state_dict()
        if state["epoch"] == 1 and state["sample_in_epoch"] == 40:
            break
    other = StreamingDataLoader(Endless(**options))
    other.load_state_dict(state)
    assert [batch["number"].tolist() for batch, _ in zip(other, range(15), strict=False)] == expected[35:]


@pytest.mark.parametrize("kind", [Filtered, Buffered, OwnOrder])
def test_what_a_state_cannot_say_is_refused(options, kind):
    loader = StreamingDataLoader(kind(**options))
    batches = numbers(loader)
    assert batches == numbers(DataLoader(kind(**options), batch_size=4))
    with pytest.raises(ConfigurationError, match=kind.__name__):
        loader.state_dict()
    # Where it begins is known again.
    loader.load_state_dict({**StreamingDataLoader(StreamingDataset(**options)).state_dict()})
    assert loader.state_dict()["sample_in_epoch"] == 0


@pytest.mark.usefixtures("processes")
def test_workers_report_what_a_state_cannot_say(options):
    loader = StreamingDataLoader(Filtered(**options), num_workers=2, multiprocessing_context="fork")
    assert sorted(chain.from_iterable(numbers(loader))) == [number for number in range(97) if number % 7]
    with pytest.raises(ConfigurationError, match="Filtered"):
        loader.state_dict()


def test_an_older_iterator_says_that_it_is_replaced(options):
    loader = StreamingDataLoader(Iterated(**options))
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(StaleIteratorError):
        next(older)
    assert next(newer)
    assert not hasattr(loader, "num_microbatches")


def test_an_iteration_has_the_epoch_that_it_began_whatever_others_begin_meanwhile(options):
    dataset = Iterated(**options)
    plain = StreamingDataLoader(StreamingDataset(**options))
    expected = [[number + 1000 for number in batch] for batch in numbers(plain)], numbers(plain)
    iterator = iter(StreamingDataLoader(dataset))
    assert next(iter(dataset))["number"] == expected[1][0][0] + 1000
    assert [batch["number"].tolist() for batch in iterator] == expected[0]


def test_an_iteration_that_another_one_replaces_within_an_epoch_says_so(options):
    dataset = Iterated(**options)
    iterator = iter(StreamingDataLoader(dataset))
    next(iterator)
    next(iter(dataset))
    with pytest.raises(StaleIteratorError, match=r"a later iter\(\)"):
        list(iterator)


@pytest.mark.usefixtures("processes")
def test_workers_that_stay_read_epoch_after_epoch(options):
    plain = StreamingDataLoader(StreamingDataset(**options))
    loader = StreamingDataLoader(
        Iterated(**options), num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    for _ in range(2):
        assert numbers(loader) == [[number + 1000 for number in batch] for batch in numbers(plain)]
        assert loader.state_dict() == plain.state_dict()
    state = {**loader.state_dict(), "epoch": 0, "sample_in_epoch": 40}
    for one in (plain, loader):
        one.load_state_dict(state)
    assert numbers(loader) == [[number + 1000 for number in batch] for batch in numbers(plain)]
    del loader

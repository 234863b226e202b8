"""Microbatches that the caller commits: each is used once, whatever happens in between."""

import copy
import json
import random
import sys

import pytest
from committing import COUNT, ELASTIC, FACES, Numbers, Walk, numbers_of, plain, reference, sharded
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from fkat_data import ConfigurationError, DataLoader, OutstandingError, ShardedDataLoader, StateMismatchError, Ticket
from fkat_data.datasets import PackedDataset


@pytest.mark.long
@pytest.mark.parametrize("face", FACES)
@given(seed=st.integers(0, 1 << 32))
def test_every_microbatch_is_committed_once_in_any_order_with_its_bits(face, seed):
    assert Walk(face, seed, 2).go() == numbers_of(face, 2)


@pytest.mark.with_processes
@pytest.mark.parametrize("face", FACES)
def test_workers_make_what_comes_behind_what_was_released(face, processes):
    hows = [{"num_workers": 2} if face != "shards" else {"num_workers": 1, "num_workers_per_shard": 2}, {}]
    assert Walk(face, 7, 1, hows).go() == numbers_of(face, 1)


@pytest.mark.long
@pytest.mark.parametrize("face", ELASTIC)
@given(seed=st.integers(0, 1 << 32))
def test_what_is_outstanding_is_dealt_out_to_other_ranks_with_its_bits(face, seed):
    rng = random.Random(seed)
    found, bits, states = [], {}, None
    for _ in range(4):
        num_ranks = rng.randint(1, 3)
        how = {"is_dealt": True} if face == "shards" else {}
        loaders = [FACES[face](num_ranks, rank, commit="manual", **how) for rank in range(num_ranks)]
        for loader in loaders if states else ():
            loader.load_state_dict(type(loader).merge_state_dicts(states))
        num_steps = rng.randint(0, 3)
        for loader in loaders:
            tickets = []
            for number, microbatch in enumerate(loader if loader.epoch == 0 else ()):
                assert bits.setdefault(loader.ticket, plain(microbatch)) == plain(microbatch)
                tickets.append(loader.ticket)
                if number == num_steps:
                    break
            for ticket in rng.sample(tickets, rng.randint(0, len(tickets))):
                loader.commit(ticket)
                found.append(ticket)
        states = [json.loads(json.dumps(loader.local_state_dict())) for loader in loaders]
    loader = FACES[face](1, 0, commit="manual", **how)
    loader.load_state_dict(type(loader).merge_state_dicts(states))
    while loader.epoch == 0:
        for microbatch in loader:
            assert bits.setdefault(loader.ticket, plain(microbatch)) == plain(microbatch)
            found.append(loader.ticket)
            loader.commit(loader.ticket)
    assert len(found) == len({*found})
    numbers = sorted(number for ticket in found for number in numbers_in(bits[ticket]))
    expected = sorted(number for each in reference(face, 1)[0] for number in numbers_in(each))
    if face == "shards":
        assert numbers == expected
    else:  # accelerate's rule fills the last round up
        assert {*numbers} == {*expected}


def numbers_in(text):
    return [int(row.split("[")[-1].split(",")[0]) for row in text.split("],")]


def taken(loader, count):
    iterator, found = iter(loader), {}
    for _ in range(count):
        microbatch = next(iterator)
        found[loader.ticket] = plain(microbatch)
    return iterator, found


@pytest.mark.parametrize("face", FACES)
def test_the_limit_raises_with_numbers_and_the_iterator_goes_on(face):
    loader = FACES[face](commit="manual", max_outstanding=2)
    iterator, found = taken(loader, 2)
    with pytest.raises(OutstandingError, match=r"2 delivered microbatches .* step 0 of epoch 0.*at most 2") as raised:
        next(iterator)
    assert (raised.value.num_outstanding, raised.value.epoch, raised.value.step) == (2, 0, 0)
    loader.commit(min(found))
    assert plain(next(iterator)) == reference(face, 1)[0][2]


@pytest.mark.parametrize("face", [face for face in FACES if face != "stream"])
def test_an_epoch_begins_when_the_one_before_is_committed_unless_it_may_be_ahead(face):
    expected = reference(face, 2)
    loader, ahead = (FACES[face](commit="manual", epochs_ahead=count) for count in (0, 1))
    _, found = taken(loader, len(expected[0]))
    first, second = sorted(found)[:2]
    for ticket in sorted(found)[2:]:
        loader.commit(ticket)
    with pytest.raises(OutstandingError, match="epochs_ahead=1"):
        iter(loader)
    loader.release(second)
    assert (loader.epoch, loader.step) == second[:2]
    assert [plain(each) for each in loader] == [expected[0][1]]
    with pytest.raises(OutstandingError):
        iter(loader)
    loader.commit(first)
    loader.commit(second)
    assert plain(next(iter(loader))) == expected[1][0]
    _, found = taken(ahead, len(expected[0]))
    ahead.release(second)
    iterator = iter(ahead)
    assert [plain(next(iterator)), plain(next(iterator))] == [expected[0][1], expected[1][0]]
    assert [plain(each) for each in iterator] == expected[1][1:]
    with pytest.raises(OutstandingError, match="oldest at step 0 of epoch 0"):
        iter(ahead)


@pytest.mark.parametrize("face", FACES)
def test_what_is_taken_back_is_not_outstanding_and_comes_again(face):
    loader = FACES[face](commit="manual")
    iterator, found = taken(loader, 3)
    newest = loader.ticket
    assert loader.take_back()
    assert loader.num_outstanding == 2
    assert plain(next(iterator)) == found[newest]
    assert loader.ticket == newest
    loader.release(newest)
    assert plain(next(iterator)) == found[newest]
    assert loader.take_back()
    assert plain(next(iterator)) == found[newest]
    loader.commit(newest)
    assert not loader.take_back()


def test_a_result_that_comes_after_a_resume_is_committed_all_the_same():
    loader = sharded(commit="manual")
    _, found = taken(loader, 3)
    resumed = sharded(commit="manual")
    resumed.load_state_dict(loader.state_dict())
    resumed.commit(Ticket(*json.loads(json.dumps([*found][1]))))
    assert [plain(each) for each in resumed] == [
        each for step, each in enumerate(reference("shards", 1)[0]) if step != 1
    ]


@pytest.mark.parametrize("face", FACES)
def test_a_state_of_what_is_not_committed_is_refused_where_it_would_be_lost(face):
    loader = FACES[face](commit="manual")
    _, found = taken(loader, 2)
    other = FACES[face]()
    with pytest.raises(StateMismatchError, match="commit='manual'"):
        other.load_state_dict(loader.state_dict())
    for ticket in found:
        loader.commit(ticket)
    other.load_state_dict(loader.state_dict())
    assert [plain(each) for each in other] == reference(face, 1)[0][2:]


def test_a_state_of_one_of_several_ranks_is_refused_on_another_number():
    loader = sharded(2, 0, commit="manual")
    taken(loader, 2)
    other = sharded(3, 0, commit="manual")
    with pytest.raises(StateMismatchError):
        other.load_state_dict(loader.local_state_dict())


@pytest.mark.parametrize("damage", [7, [], [{}], [{"dp_rank": 0, "num_ranks": 1, "microbatches": [[[0, 0], []]]}]])
def test_a_damaged_state_is_refused(damage):
    loader = sharded(commit="manual")
    with pytest.raises(StateMismatchError, match="outstanding"):
        loader.load_state_dict({**loader.state_dict(), "outstanding": damage})


def test_states_without_tickets_have_no_field_of_them():
    assert "outstanding" not in sharded().state_dict()
    assert "outstanding" not in json.dumps(FACES["shuffled"]().state_dict())


def test_an_unknown_ticket_and_a_second_commit_are_refused():
    loader = sharded(commit="manual")
    with pytest.raises(ConfigurationError, match="ticket"):
        _ = loader.ticket
    _, found = taken(loader, 1)
    loader.commit(loader.ticket)
    for settle in (loader.commit, loader.release):
        with pytest.raises(ConfigurationError, match="0 microbatches that are outstanding"):
            settle(next(iter(found)))


def test_a_loader_that_commits_by_delivery_has_no_tickets():
    loader = sharded()
    assert loader.num_outstanding == 0
    with pytest.raises(ConfigurationError, match="'manual'"):
        _ = loader.ticket
    with pytest.raises(ConfigurationError, match="'manual'"):
        sharded(max_outstanding=3)
    with pytest.raises(ConfigurationError, match="commit"):
        sharded(commit="later")


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(COUNT))


@pytest.mark.parametrize(
    ("dataset", "how"),
    [
        (Endless(), {}),
        (PackedDataset([{"tokens": [1] * 3}] * 9, 7, lengths=[3] * 9, seed=1), {}),
        (Numbers(), {"num_workers": 1, "worker_init_fn": print}),
    ],
    ids=["iterable", "packed", "worker_init_fn"],
)
def test_what_cannot_be_made_again_by_its_number_is_refused_by_name(dataset, how):
    with pytest.raises(ConfigurationError, match="commit"):
        iter(DataLoader(dataset, commit="manual", **how))


def test_shards_are_made_again_in_order_too():
    def of_iterable(shard):
        return TorchDataLoader(Endless(), batch_size=5)

    loader = ShardedDataLoader(3, [1, 2], of_iterable, multiprocessing=False, commit="manual")
    iterator, found = taken(loader, 8)
    for ticket in (*sorted(found)[1:4], max(found)):
        loader.release(ticket)
        assert plain(next(iterator)) == found[ticket]


def test_a_copy_has_what_was_loaded_and_else_begins_its_epoch():
    loader = FACES["shuffled"](commit="manual")
    _, found = taken(loader, 3)
    assert copy.copy(loader).num_outstanding == 0
    resumed = FACES["shuffled"](commit="manual")
    resumed.load_state_dict(loader.state_dict())
    assert [plain(each) for each in copy.copy(resumed)][:3] == [*found.values()]


def interrupt_at(number):
    """Raise KeyboardInterrupt at this line of the package that is run from now on."""
    left = [number]

    def trace(frame, event, _):
        if event == "line" and "fkat_data" in frame.f_code.co_filename:
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)


@pytest.mark.long
@pytest.mark.parametrize("num_released", [0, 1])
@pytest.mark.parametrize("face", ["shards", "shuffled"])
def test_an_interruption_at_any_line_loses_and_repeats_nothing(face, num_released):
    expected = [(0, step) for step in range(len(reference(face, 1)[0]))]
    number = 0
    is_interrupted = True
    while is_interrupted:
        number += 9
        loader = FACES[face](commit="manual")
        iterator, found = taken(loader, 2)
        for ticket in [*found][:num_released]:
            loader.release(ticket)
        interrupt_at(number)
        try:
            next(iterator)
            is_interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        resumed = FACES[face](commit="manual")
        resumed.load_state_dict(loader.local_state_dict())
        tickets = []
        for microbatch in resumed:
            assert plain(microbatch) == reference(face, 1)[0][resumed.ticket.step]
            tickets.append(resumed.ticket[:2])
        assert tickets == expected, number
        for microbatch in iterator:
            assert plain(microbatch) == reference(face, 1)[0][loader.ticket.step]
        assert loader.num_outstanding == len(expected), number
    assert number > 20

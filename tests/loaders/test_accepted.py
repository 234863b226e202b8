"""A state whose difference the caller accepts goes on; each other one is refused, and says whether it can be accepted."""

import copy
import json
import logging
from functools import partial

import pytest
from accepted_examples import Counted, Numbers, fields_of, halves, items, kept, renamed
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import SequentialSampler

from fkat_data import (
    ConfigurationError,
    DataLoader,
    DistributedDataParallelShardSampler,
    ShardedDataLoader,
    StateMismatchError,
    accepting,
)
from fkat_data.datasets import PackedDataset
from fkat_data.mixing import DictDataLoader, RoundRobin
from fkat_data.tools import positions_in

FOUR = ["0", "1", "2", "3"]


def batches_of(shard, digest=1):
    return TorchDataLoader(Numbers(12, offset=100 * int(shard), digest=digest), batch_size=2)


class Renamed(SequentialSampler):
    """A sampler under one name, and under another."""


class Before(Renamed):
    pass


def sampled(shard, kind=Renamed, batch_size=2):
    return TorchDataLoader(Numbers(12, offset=100 * int(shard)), batch_size, sampler=kind(range(12)))


def of_shards(shards=FOUR, factory=batches_of):
    return ShardedDataLoader(7, shards, factory, multiprocessing=False)


def mixed(**options):
    sources = {"one": DataLoader(Numbers(40, **options), 4, seed=1), "two": DataLoader(range(8), 4)}
    return DictDataLoader(sources, RoundRobin(["one", "two"]), key=None)


def loader(dataset=None, **options):
    return DataLoader(Numbers(40) if dataset is None else dataset, 4, seed=1, **options)


#: By a name: the field, the loader that saves, the one that loads, and what the second makes of the first's items.
CASES = {
    "files": ("files", loader, partial(loader, Numbers(40, offset=1000, digest=2)), lambda item: item + 1000),
    "files of a shuffle": (
        "files",
        partial(loader, shuffle=True),
        partial(loader, Numbers(40, digest=2), shuffle=True),
        None,
    ),
    "another number of files": (
        "files",
        partial(loader, Numbers(40)),
        partial(loader, Numbers(20, digest=2) + Numbers(20, offset=20)),
        None,
    ),
    "files, iterated": (
        "files",
        partial(loader, Counted(40)),
        partial(loader, Counted(40, digest=2)),
        None,
    ),
    "window_fn": (
        "window_fn",
        partial(loader, window_fn=kept, window_size=8),
        partial(loader, window_fn=renamed, window_size=8),
        None,
    ),
    "window_fn, iterated": (
        "window_fn",
        partial(loader, Counted(40), window_fn=kept, window_size=8),
        partial(loader, Counted(40), window_fn=renamed, window_size=8),
        None,
    ),
    "renamed shards": ("shards", of_shards, partial(of_shards, ["00", "01", "02", "03"]), None),
    "more shards": ("num_shards", of_shards, partial(of_shards, ["00", *FOUR[1:], "4"]), None),
    "files of a shard": (
        "files",
        of_shards,
        partial(of_shards, factory=partial(batches_of, digest=2)),
        None,
    ),
    "a renamed sampler": (
        "batching",
        partial(of_shards, factory=partial(sampled, kind=Before)),
        partial(of_shards, factory=sampled),
        None,
    ),
    "a mixture": ("files", mixed, partial(mixed, digest=2), None),
}


def saved_after(make, num_delivered, **options):
    """Return the state of a loader behind some microbatches, and what follows it."""
    saver = make(**options)
    iterator = iter(saver)
    for _ in range(num_delivered):
        next(iterator)
    state = copy.deepcopy(saver.state_dict())
    return state, items(values(iterator))


def finish(resumed, state, accept=()):
    """Load a state, and deliver all that follows it."""
    resumed.load_state_dict(state, accept=accept)
    return items(values(resumed))


def of_renamed_rows(function):
    return DataLoader(Numbers(40), 4, seed=1, window_fn=function, window_size=8, num_workers=2)


def of_changed_files(digest):
    return ShardedDataLoader(7, FOUR, partial(batches_of, digest=digest))


def values(microbatches):
    return [batch[1] if isinstance(batch, tuple) else batch for batch in microbatches]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_delivered", [1, 3])
def test_what_differs_is_refused_with_its_price_and_loads_where_it_is_accepted(name, num_delivered, caplog):
    field, make, make_other, changed = CASES[name]
    state, rest = saved_after(make, num_delivered)
    expected = [item if changed is None else changed(item) for item in rest]
    if name == "more shards":
        expected += range(400, 412)
    with pytest.raises(StateMismatchError) as caught:
        finish(make_other(), state)
    assert f"load_state_dict(state, accept={{'{field}'}}) loads it all the same, at the price that " in str(
        caught.value
    )
    assert caught.value.field.rpartition(".")[2].partition("[")[0] == field
    resumed = make_other()
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(state, accept={field})
    (record,) = [each for each in caplog.records if each.name == "fkat_data.errors.acceptance"]
    assert f"{field}' is accepted: saved " in record.getMessage().replace("[0]", "")
    assert "; the price is that " in record.getMessage()
    iterator = iter(resumed)
    first = values([next(iterator)])
    after = copy.deepcopy(resumed.state_dict())
    assert items(first + values(iterator)) == expected
    assert {each[0] for each in fields_of(after)} == {field}
    notes = [note for position in positions_in(after) for note in position.notes]
    if name != "a mixture":
        assert (
            f"{field} differed in a state that was loaded in epoch 0 at step {num_delivered}, and was accepted" in notes
        )
    # What was accepted is the present loader's: its states load as they are, and keep what was.
    caplog.clear()
    again = make_other()
    again.load_state_dict(after)
    assert fields_of(again.state_dict()) == fields_of(after)
    assert items(values(again)) == expected[len(items(first)) :]
    assert not [each for each in caplog.records if each.name == "fkat_data.errors.acceptance"]


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_differ_costs_nothing(name, caplog):
    field, make, _, _ = CASES[name]
    state, rest = saved_after(make, 0)
    resumed = make()
    resumed.load_state_dict(state, accept={field})
    assert not fields_of(resumed.state_dict())
    assert items(values(resumed)) == rest
    assert not [each for each in caplog.records if each.name == "fkat_data.errors.acceptance"]


#: Loaders that cannot go on with a state, whatever is accepted.
NEVER = {
    "seed": (partial(DataLoader, range(40), 4, shuffle=True, seed=1), partial(DataLoader, range(40), 4, seed=2)),
    "drop_last": (loader, partial(loader, drop_last=True)),
    "window_size": (
        partial(loader, window_fn=kept, window_size=8),
        partial(loader, window_fn=renamed, window_size=9),
    ),
    "window_fn": (partial(loader, window_fn=kept), loader),
    "stream|strands": (loader, partial(loader, Counted(40))),
    "fingerprint.seed": (of_shards, lambda: ShardedDataLoader(8, FOUR, batches_of, multiprocessing=False)),
    "fingerprint.batching": (
        partial(of_shards, factory=sampled),
        partial(of_shards, factory=partial(sampled, batch_size=3)),
    ),
}


@pytest.mark.parametrize("field", NEVER)
def test_what_would_lose_samples_in_unknown_number_is_refused_where_it_is_named_too(field):
    make, make_other = NEVER[field]
    state, _ = saved_after(make, 1)
    for accept in (set(), set(make_other().acceptable_fields)):
        with pytest.raises(StateMismatchError) as caught:
            finish(make_other(), state, accept)
        assert caught.value.field in field.split("|")
        assert "accept=" not in str(caught.value)


@pytest.mark.parametrize("make", [loader, of_shards, mixed, partial(loader, Counted(40))])
@pytest.mark.parametrize("accept", [{"seed"}, {"files", "batch_size"}, "files", {"window_fn"}])
def test_an_unknown_field_is_a_mistake_that_lists_those_that_can_be_accepted(make, accept):
    state, _ = saved_after(make, 1)
    resumed = make()
    with pytest.raises(ConfigurationError, match=r"accept = .*expected .*'files'"):
        resumed.load_state_dict(state, accept=accept)
    assert resumed.step == 0


def test_a_damaged_record_is_named():
    state, _ = saved_after(of_shards, 1)
    for damaged in ("text", [{"field": "files"}], 3, [{"field": "files", "epoch": "no", "step": 1}]):
        with pytest.raises(StateMismatchError, match="'accepted'"):
            of_shards().load_state_dict({**state, "accepted": damaged})


@given(
    before=st.integers(1, 60),
    now=st.integers(1, 60),
    batch_size=st.integers(1, 7),
    shuffle=st.booleans(),
    fraction=st.floats(0, 1),
)
def test_a_dataset_of_another_length_goes_on_and_says_how_many_are_lost_and_come_again(
    before, now, batch_size, shuffle, fraction
):
    def made(count):
        return DataLoader(range(count), batch_size, seed=3, shuffle=shuffle)

    num_batches = -(-before // batch_size)
    num_delivered = int(fraction * (num_batches - 1))
    saver = made(before)
    iterator = iter(saver)
    delivered = items(next(iterator) for _ in range(num_delivered))
    state = copy.deepcopy(saver.state_dict())
    whole = items(made(now))
    resumed = made(now)
    if before == now:
        resumed.load_state_dict(state, accept={"num_samples"})
        assert items(resumed) == whole[len(delivered) :]
        return
    refusing = made(now)
    refusing.load_state_dict(state)
    with pytest.raises(StateMismatchError) as caught:
        list(refusing)
    assert caught.value.field == "num_samples"
    if num_delivered > -(-now // batch_size):
        assert "accept=" not in str(caught.value)
        return
    resumed.load_state_dict(state, accept={"num_samples"})
    rest = items(resumed)
    if num_delivered < -(-now // batch_size):
        assert rest == whole[len(delivered) :]
    lost = set(range(now)) - set(delivered) - set(rest) if num_delivered < -(-now // batch_size) else None
    again = set(delivered) & set(rest)
    if lost is not None:
        assert f"{len(lost):,} sample" in str(caught.value)
        assert f"{len(again):,} sample" in str(caught.value)


@given(cut=st.integers(0, 19))
def test_rows_of_another_function_follow_those_of_the_one_before(cut):
    saver = DataLoader(Numbers(80), 4, seed=1, window_fn=kept, window_size=16)
    iterator = iter(saver)
    delivered = items(next(iterator) for _ in range(cut))
    resumed = DataLoader(Numbers(80), 4, seed=1, window_fn=halves, window_size=16)
    resumed.load_state_dict(saver.state_dict(), accept={"window_fn"})
    num_windows, num_rows = divmod(len(delivered), 16)
    rows = [index for start in range(0, 80, 16) for index in range(start, start + 16, 2)]
    # Where nothing is left of an epoch, the next one comes.
    assert items(resumed) == (rows[8 * num_windows + min(8, num_rows) :] or rows)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_what_was_accepted_is_kept_where_states_are_merged_and_dealt_out_again(num_ranks):
    def made(rank, size, shards):
        sampler = DistributedDataParallelShardSampler(shards, size, rank, drop_last=False)
        return ShardedDataLoader(7, sampler, batches_of, dp_rank=rank, multiprocessing=False)

    shards = [str(number) for number in range(6)]
    others = [f"0{shard}" for shard in shards]
    savers = [made(rank, 2, shards) for rank in range(2)]
    for saver in savers:
        next(iter(saver))
    merged = ShardedDataLoader.merge_state_dicts([saver.local_state_dict() for saver in savers])
    rest = [item for saver in savers for item in items(values(saver.load_batch_sync() for _ in range(17)))]
    loaded = [made(rank, num_ranks, others) for rank in range(num_ranks)]
    with pytest.raises(StateMismatchError, match=r"accept={'shards'}"):
        loaded[0].load_state_dict(merged)
    for each in loaded:
        each.load_state_dict(merged, accept={"shards"})
    locals_ = [json.loads(json.dumps(each.local_state_dict())) for each in loaded]
    again = ShardedDataLoader.merge_state_dicts(locals_)
    assert fields_of(again) == [("shards", 0, 1)]
    found = [item for each in loaded for item in items(each)]
    assert sorted(found) == sorted(rest)


def test_ranks_of_a_dealt_out_loader_keep_what_was_accepted():
    def dealt(rank, digest):
        found = DataLoader(Numbers(40, digest=digest), 4, seed=1, shuffle=True)
        found.deal_out(2, rank)
        return found

    savers = [dealt(rank, 1) for rank in range(2)]
    for saver in savers:
        next(iter(saver))
    merged = DataLoader.merge_state_dicts([saver.local_state_dict() for saver in savers])
    loaded = [dealt(rank, 2) for rank in range(2)]
    for each in loaded:
        each.load_state_dict(merged, accept={"files"})
    again = DataLoader.merge_state_dicts([each.local_state_dict() for each in loaded])
    assert fields_of(again) == [("files", 0, 1)]
    alone = DataLoader(Numbers(40, digest=2), 4, seed=1, shuffle=True)
    alone.load_state_dict(again)
    assert fields_of(alone.state_dict()) == [("files", 0, 1)]


def test_a_packed_dataset_of_another_length_is_never_accepted():
    def made(lengths):
        dataset = PackedDataset([list(range(length)) for length in lengths], 8, lengths=lengths, seed=1)
        return DataLoader(dataset, 1, seed=1)

    saver = made([4] * 10)
    next(iter(saver))
    resumed = made([4] * 12)
    with pytest.raises(StateMismatchError) as caught:
        finish(resumed, saver.state_dict(), {"num_samples"})
    assert "accept=" not in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_what_a_framework_loads_is_accepted_where_it_is_named_around_the_call(name):
    field, make, make_other, _ = CASES[name]
    state, _ = saved_after(make, 1)
    with accepting(field, "a field of another loader"):
        finish(make_other(), state)
    with pytest.raises(StateMismatchError):
        finish(make_other(), state)


@pytest.mark.parametrize(
    ("field", "made", "before", "now"),
    [("window_fn", of_renamed_rows, kept, renamed), ("files", of_changed_files, 1, 2)],
)
def test_workers_go_on_with_what_is_accepted(field, made, before, now, processes):
    with made(before) as saver:
        iterator = iter(saver)
        next(iterator)
        state = copy.deepcopy(saver.state_dict())
        rest = items(iterator)
    with made(now) as refusing, pytest.raises(StateMismatchError, match=rf"accept={{'{field}'}}"):
        finish(refusing, state)
    with made(now) as resumed:
        assert finish(resumed, state, {field}) == rest
        assert {each[0] for each in fields_of(resumed.state_dict())} == {field}

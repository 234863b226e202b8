import itertools
import json

import pytest
from streaming_examples import global_batches, numbers
from walks import at_state, recorded

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.streaming import Stream, StreamingDataLoader, StreamingDataset


def make(two, **options):
    settings = {"batch_size": 4, "shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 30}
    return StreamingDataset(streams=[Stream(local=path) for path in two], **settings | options)


def read(dataset):
    return numbers(StreamingDataLoader(dataset))


def test_samples_that_an_epoch_shows_very_often_are_counted(two):
    stream = Stream(local=two[1], repeat=40_000)
    found = StreamingDataset(streams=[stream], batch_size=1000).coverage()
    assert (found.streams[0].fewest, found.streams[0].most) == (40_000, 40_000)
    assert found.is_as_due


@pytest.mark.parametrize("algorithm", ["block", "py1e"])
def test_an_audit_names_what_was_read(two, algorithm):
    dataset = make(two, shuffle_algo=algorithm)
    epochs = [read(dataset) for _ in range(2)]
    for step in (0, 7, 24, 25, 31):
        records = dataset.samples_of(step)
        found = [dataset[record.sample_id]["number"] for record in records]
        assert found == [*epochs[0], *epochs[1]][step]
        assert records == dataset.samples_of(step % 25, epoch=step // 25)
        for record in records:
            assert record.stream == (dataset[record.sample_id]["number"] >= 1000)
            shard, row = dataset.spanner[record.sample_id]
            assert (dataset.shards[shard].raw_data.basename, row) == (record.shard, record.row)
    with pytest.raises(ConfigurationError, match="step"):
        dataset.samples_of(25, epoch=0)


def test_coverage_proves_each_sample_once_and_counts_what_is_left(two):
    dataset = make(two, batch_size=10)
    whole = dataset.coverage()
    assert whole.is_each_once
    assert [(stream.num_seen, stream.fewest, stream.most) for stream in whole.streams] == [(60, 1, 1), (37, 1, 1)]
    part = dataset.coverage(num_steps=3)
    assert not part.is_each_once
    assert sum(stream.num_seen for stream in part.streams) == 30
    repeated = StreamingDataset(streams=[Stream(local=two[0], repeat=1.5)], batch_size=10).coverage()
    assert not repeated.is_each_once
    assert (repeated.streams[0].fewest, repeated.streams[0].most, repeated.streams[0].num_due) == (1, 2, 90)


def test_batches_that_are_skipped_are_left_out_and_nothing_else_changes(two):
    whole = [read(make(two, shuffle_seed=3))]
    dataset = make(two, shuffle_seed=3, skip=[{"epoch": 0, "batches": [2, 5]}, {"epoch": 1, "batches": [0, 1]}])
    assert read(dataset) == whole[0][:2] + whole[0][5:]
    other = make(two, shuffle_seed=3)
    other.next_epoch = 1
    assert read(dataset) == read(other)[1:]
    assert [record.is_skipped for record in dataset.samples_of(3, epoch=0)] == [True] * 4
    assert sum(stream.num_skipped for stream in dataset.coverage().streams) == 12


def test_samples_that_are_skipped_are_left_out_on_every_rank(two):
    options = {"streams": [Stream(local=path) for path in two], "shuffle": True, "num_canonical_nodes": 2}
    whole = global_batches(1, 2, batch_size=2, **options)
    # A whole rank's batch among them: that step is left out on both ranks, as none may have more steps.
    ids = [5, 17, 90]
    records = StreamingDataset(batch_size=2, world=None, **options).samples_of(4)
    ids += [record.sample_id for record in records[:2]]
    dataset = StreamingDataset(batch_size=2, **options)
    skipped = {dataset[number]["number"] for number in ids}
    found = global_batches(1, 2, batch_size=2, skip=[{"samples": ids}], **options)
    left = [[number for number in step if number not in skipped] for step in whole]
    assert len(found) >= len(whole) - 2
    assert not skipped & {number for step in found for number in step}
    assert all(step in left for step in found)


def test_a_state_keeps_what_is_skipped_and_the_position(two):
    skip = [{"epoch": 0, "batches": [2, 5]}, {"samples": [3]}]
    loader = StreamingDataLoader(make(two, skip=skip))
    whole, states = recorded(loader, lambda batch: batch["number"].tolist())
    states = json.loads(json.dumps(states))
    for place in (1, 2, 3, 11):
        other = at_state(StreamingDataLoader(make(two)), states[place])
        assert numbers(other) == whole[place:]
        assert other.state_dict()["skip"] == loader.state_dict()["skip"]
    # Taken before a spike, resumed with what caused it left out.
    resumed = at_state(StreamingDataLoader(make(two, skip=[{"epoch": 0, "batches": [7, 9]}])), states[1])
    assert numbers(resumed) == whole[1:4] + whole[6:]


def test_weights_change_as_a_schedule_says(two):
    schedule = [{"from_sample": 0, "weights": [3, 1]}, {"from_sample": 80, "weights": [0, 1]}]
    dataset = make(two, epoch_size=40, weight_schedule=schedule)
    parts = [sum(number >= 1000 for batch in read(dataset) for number in batch) for _ in range(4)]
    assert parts == [10, 10, 40, 40]
    state = dataset.state_dict(0, from_beginning=True)
    assert state["weight_schedule"] == tuple(schedule)
    # What has passed must agree; what is to come may change.
    state["epoch"] = 1
    changed = [schedule[0], {"from_sample": 120, "weights": [1, 1]}]
    make(two, epoch_size=40, weight_schedule=changed).load_state_dict(state)
    state["epoch"] = 2
    with pytest.raises(StateMismatchError, match="weight_schedule"):
        make(two, epoch_size=40, weight_schedule=changed).load_state_dict(state)


SCHEDULE = [
    {"from_sample": 0, "weights": [1, 0]},
    {"from_sample": 16, "weights": [1, 1]},
    {"from_sample": 24, "weights": [0, 1]},
    {"from_sample": 64, "weights": [3, 1]},
]


def test_weights_change_within_an_epoch(two):
    dataset = make(two, epoch_size=40, weight_schedule=SCHEDULE)
    epochs = [read(dataset) for _ in range(3)]
    shares = [[sum(number >= 1000 for number in batch) for batch in epoch] for epoch in epochs]
    assert (shares[0][:4], sum(shares[0][4:6]), shares[0][6:]) == ([0] * 4, 4, [4] * 4)
    assert (shares[1][:6], sum(shares[1][6:]), sum(shares[2])) == ([4] * 6, 4, 10)
    assert len(set(itertools.chain(*epochs[0][:4]))) == 16  # a phase shows no sample twice before it has shown all
    for epoch in range(3):
        assert dataset.coverage(epoch).is_as_due
    found = [[dataset[record.sample_id]["number"] for record in dataset.samples_of(step)] for step in range(30)]
    assert found == list(itertools.chain(*epochs))


@pytest.mark.long
@pytest.mark.parametrize("method", ["random", "stratified", "per_stream"])
@pytest.mark.parametrize("algorithm", ["block", "py1e", "py1b", "naive", None])
def test_phases_of_an_epoch_are_the_same_in_other_worlds_and_after_every_resume(two, algorithm, method, some):
    schedule = [
        {"from_sample": start, "weights": weights} for start, weights in ((0, [1, 1]), (32, [3, 1]), (64, [1, 3]))
    ]
    options = {
        "streams": [Stream(local=path) for path in two],
        "shuffle": algorithm is not None,
        "shuffle_algo": algorithm or "block",
        "shuffle_block_size": 30,
        "epoch_size": 96,
        "batching_method": method,
        "num_canonical_nodes": 2,
        "weight_schedule": schedule,
    }
    expected = global_batches(1, 1, batch_size=8, **options)
    assert len(expected) == 12
    assert global_batches(2, 2, batch_size=2, **options) == expected
    for step in some(range(12)):
        state = StreamingDataset(batch_size=8, **options).state_dict(8 * step, from_beginning=True)
        assert global_batches(1, 2, batch_size=4, state=state, **options) == expected[step:]


def test_the_rest_of_an_epoch_that_has_begun_is_settled(two):
    state = make(two, epoch_size=40, weight_schedule=SCHEDULE).state_dict(4, from_beginning=True)
    later = [*SCHEDULE[:3], {"from_sample": 40, "weights": [1, 1]}]
    make(two, epoch_size=40, weight_schedule=later).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="weight_schedule"):
        make(two, epoch_size=40, weight_schedule=SCHEDULE[:2]).load_state_dict(state)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("skip", [{"samples": [-1]}]),
        ("skip", [{"samples": [97]}]),
        ("skip", [{"epoch": 0, "batches": [1]}]),
        ("skip", [{"batches": [1, 2]}]),
        ("weight_schedule", [{"from_sample": 0, "weights": [1]}]),
        ("weight_schedule", [{"from_sample": 0, "weights": [0, 0]}]),
        *(
            ("weight_schedule", [{"from_sample": 0, "weights": [1, 1]}, {"from_sample": start, "weights": [1, 2]}])
            for start in (30, 41, 0)
        ),
    ],
)
def test_what_says_nothing_or_cannot_be_followed_is_refused(two, argument, value):
    with pytest.raises(ConfigurationError, match=argument):
        make(two, **{"epoch_size": 40, argument: value} if argument == "weight_schedule" else {argument: value})


def test_a_schedule_beside_weights_is_refused(two):
    with pytest.raises(ConfigurationError, match="weights of their own"):
        StreamingDataset(streams=[Stream(local=two[0], repeat=1)], weight_schedule=[{"from_sample": 0, "weights": [1]}])

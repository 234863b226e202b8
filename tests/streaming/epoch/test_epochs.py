"""An epoch that resumes in other grids of nodes, ranks and batch sizes: each remaining sample comes once."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.streaming.epoch import Epochs, ResumePoint, WeightSchedule, World
from fkat_data.streaming.order import BATCHING_METHODS, PARTITIONS, SHUFFLES, Grid, OrderSettings, StreamWeight

GLOBAL_BATCH_SIZE = 24
#: Every grid whose ranks together read 24 samples in a step.
GRIDS = [
    Grid(nodes, ranks, GLOBAL_BATCH_SIZE // (nodes * ranks))
    for nodes in (1, 2, 3, 4, 6, 8)
    for ranks in (1, 2, 3, 4, 6, 8)
    if GLOBAL_BATCH_SIZE % (nodes * ranks) == 0
]
#: Samples in each shard, of each stream.
SHARDS = (np.array([30, 7, 25, 31]), np.array([40, 33]), np.array([52, 9, 3]))
FIRST_SAMPLES = np.cumsum([0, *(sizes.sum() for sizes in SHARDS)])


def epochs_in(grid, order, weights, schedule, canonical_nodes, epoch_size):
    made = None if schedule is None else WeightSchedule(schedule, len(SHARDS), epoch_size)
    world = World(grid.num_nodes, grid.ranks_per_node)
    return Epochs(order, weights, made, epoch_size, 5, canonical_nodes, grid.batch_size, None, world)


def epochs_of(order, grid, canonical_nodes=None):
    return epochs_in(grid, order, [StreamWeight()] * len(order.shard_sizes), None, canonical_nodes, None)


def begun(epochs, point):
    """The global batches from a point on that every rank reads; -1 where a batch is short."""
    plan = epochs.plan(epochs.with_defaults(point))
    found = plan.global_batches(np.arange(plan.batching.num_even_batches))
    for rank in range(plan.grid.num_ranks):
        own = plan.rank_batches(rank, np.arange(len(found)))
        assert np.array_equal(own, found[:, rank])
    if epochs.settings.batching_method == "device_per_stream":
        streams = np.searchsorted(FIRST_SAMPLES, found, side="right")
        assert (streams == streams[:, :, :1]).all(), "a rank's batch has samples of several streams"
    return [Counter(batch[batch >= 0].tolist()) for batch in found]


def stopped(epochs, point, num_batches):
    """The state after some global batches."""
    point = epochs.with_defaults(point)
    batching = epochs.batching(point)
    read = batching.num_rank_samples(num_batches) * epochs.grid().num_ranks
    return json.loads(json.dumps(epochs.state(replace(point, sample_in_epoch=point.sample_in_epoch + read))))


@st.composite
def configurations(draw):
    shuffle_algo = draw(st.sampled_from([None, *SHUFFLES]))
    order = OrderSettings(
        SHARDS,
        shuffle=shuffle_algo is not None,
        shuffle_algo=shuffle_algo or "py1e",
        shuffle_block_size=40,
        partition_algo=draw(st.sampled_from(PARTITIONS)),
        batching_method=draw(st.sampled_from(BATCHING_METHODS)),
    )
    kind = draw(st.sampled_from(["whole", "proportions", "schedule"]))
    weights = [StreamWeight()] * len(SHARDS)
    schedule, epoch_size = None, None
    if kind == "proportions":
        weights = [StreamWeight("proportion", value) for value in (0.5, 0.3, 0.2)]
        epoch_size = draw(st.integers(200, 300))
    elif kind == "schedule":
        epoch_size = draw(st.sampled_from([240, 264, 270]))
        change = draw(st.sampled_from([96, 120, 144]))
        schedule = [{"from_sample": 0, "weights": [2, 1, 1]}, {"from_sample": change, "weights": [1, 1, 2]}]
    return order, weights, schedule, draw(st.sampled_from([None, 1, 2, 3, 4, 6])), epoch_size


@settings(max_examples=150)
@given(configurations(), st.lists(st.sampled_from(GRIDS), min_size=2, max_size=4), st.data())
def test_a_run_in_other_grids_gives_each_remaining_sample_once_or_is_refused(configuration, grids, data):
    order, *rest = configuration
    epochs = epochs_in(grids[0], order, *rest)
    try:
        epochs.check()
        whole = begun(epochs, ResumePoint(1))
    except ConfigurationError:
        assume(False)
    is_random = order.batching_method == "random"
    point, read, remaining = ResumePoint(1), list[Counter[int]](), whole
    for grid in grids[1:]:
        if is_random:
            # One order for any size of the global batch.
            grid = data.draw(st.sampled_from([grid, replace(grid, batch_size=grid.batch_size + 1)]))  # noqa: PLW2901 - drawn
        num_batches = data.draw(st.integers(0, len(remaining)))
        state = stopped(epochs, point, num_batches)
        if not is_random or (order.shuffle and order.shuffle_algo == "block"):
            # In the same world, a run goes on as if it had not been stopped.
            assert begun(epochs, epochs.resume_point(state)) == remaining[num_batches:]
        read += remaining[:num_batches]
        epochs = epochs_in(grid, order, *rest)
        try:
            point = epochs.resume_point(state)
            remaining = begun(epochs, point)
        except (ConfigurationError, StateMismatchError) as error:
            assert is_due(error, order, state, grid, rest[1])  # noqa: PT017 - whether it raises depends on the example
            return
        if not state["sample_in_epoch"]:
            # Nothing was read, so the epoch begins in this grid.
            whole, read = remaining, []
        elif not is_random:
            assert read + remaining == whole
    if is_random:
        check_each_once(epochs, sum([*read, *remaining], Counter()), grids, point.num_canonical_nodes)


def is_due(error, order, state, grid, schedule):
    """Whether the present grid cannot continue the order."""
    if isinstance(error, StateMismatchError):
        return (order.batching_method, error.field) == ("device_per_stream", "batch_size") and state["initial_grid"][
            "batch_size"
        ] % grid.batch_size != 0
    if error.argument == "weight_schedule":
        return schedule is not None
    if state["sample_in_epoch"] and order.batching_method != "random":
        return False
    nodes = state["num_canonical_nodes"], grid.num_nodes
    divides = max(nodes) % min(nodes) == 0
    is_fresh = not state["sample_in_epoch"]
    return (
        error.argument in ("num_canonical_nodes", "batch_size")
        and (is_fresh or order.partition_algo == "orig")
        and (is_fresh or not divides)
    )


def check_each_once(epochs, delivered, grids, canonical_nodes):
    """Every sample came as often as it was due, and only the end of a phase was filled up with a few more."""
    due = Counter()
    for phase in epochs.phases(1):
        for stream, (sizes, choose) in enumerate(zip(SHARDS, phase.choose, strict=True)):
            least = choose // int(sizes.sum())
            due.update(dict.fromkeys(range(FIRST_SAMPLES[stream], FIRST_SAMPLES[stream] + int(sizes.sum())), least))
    assert all(delivered[sample] >= count for sample, count in due.items())
    size = sum(phase.epoch_size for phase in epochs.phases(1))
    most_filled = canonical_nodes + 2 * max(grid.num_ranks for grid in grids)
    assert size <= delivered.total() <= size + len(epochs.phases(1)) * most_filled


@given(
    st.sampled_from([None, *SHUFFLES]),
    st.integers(1, 12),
    st.integers(1, 3),
    *[st.builds(Grid, st.just(1), st.integers(1, 16), st.integers(1, 3))] * 2,
)
def test_of_an_epoch_that_some_ranks_have_ended_nothing_is_left_for_others(shuffle_algo, size, nodes, grid, other):
    order = OrderSettings(
        (np.array([size]),),
        shuffle=shuffle_algo is not None,
        shuffle_algo=shuffle_algo or "py1e",
        shuffle_block_size=40,
    )
    epochs, others = epochs_of(order, grid, nodes), epochs_of(order, other, nodes)
    try:
        epochs.check()
        state = stopped(epochs, ResumePoint(1), len(begun(epochs, ResumePoint(1))))
    except ConfigurationError:  # as the reference's shuffles say of so few samples
        assume(False)
    point = others.resume_point(state)
    assert not begun(others, point)
    assert others.state(point)["sample_in_epoch"] == state["sample_in_epoch"] >= size


def test_without_a_shuffle_a_resume_fills_up_the_last_batch_as_the_reference_does():
    # As MosaicML's partitions of 50 samples for 3 nodes of 2 ranks, of which 0 and then 48 have been read.
    epochs = epochs_of(OrderSettings((np.array([50]),)), Grid(3, 2, 4))
    whole = epochs.plan(ResumePoint()).global_batches(np.array([2]))
    rest = epochs.plan(epochs.resume_point(stopped(epochs, ResumePoint(), 2))).global_batches(np.array([0]))
    assert whole[0, :, 0].tolist() == [15, 15, 32, 31, 49, 48]
    assert rest[0, :, 0].tolist() == [15, 15, 32, 32, 49, 49]
    assert (whole[0, :, 1:] == -1).all()
    assert (rest[0, :, 1:] == -1).all()


def test_a_state_without_a_grid_is_continued_as_if_the_grid_were_the_present_one(caplog):
    order = OrderSettings(SHARDS, shuffle=True, shuffle_block_size=40, batching_method="per_stream")
    epochs = epochs_of(order, Grid(2, 2, 6), 2)
    state = stopped(epochs, ResumePoint(), 3)
    assert state.pop("initial_grid") == {"num_nodes": 2, "ranks_per_node": 2, "batch_size": 6}
    point = epochs_of(order, Grid(2, 2, 6), 2).resume_point(state)
    assert begun(epochs, point) == begun(epochs, ResumePoint())[3:]
    assert "no initial_grid" in caplog.text


@pytest.mark.parametrize("grid", [3, {}, {"num_nodes": 2, "ranks_per_node": 2, "batch_size": 0}])
def test_a_grid_that_is_none_is_refused(grid):
    epochs = epochs_of(OrderSettings(SHARDS, batching_method="stratified"), Grid(2, 2, 6), 2)
    state = stopped(epochs, ResumePoint(), 3)
    with pytest.raises(StateMismatchError, match=r"initial_grid|batch_size"):
        epochs.resume_point({**state, "initial_grid": grid})
    with pytest.raises(StateMismatchError, match="global_batch_size"):
        epochs.resume_point({**state, "initial_grid": {"num_nodes": 2, "ranks_per_node": 2, "batch_size": 5}})


@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 20]), min_size=2, max_size=12),
    kind=st.sampled_from([None, "repeat", "choose", "proportion"]),
    is_given=st.booleans(),
    data=st.data(),
)
def test_shards_that_were_appended_are_told_apart_from_those_of_then(sizes, kind, is_given, data):
    weights = [StreamWeight(kind, kind and value) for value in (2, 9 if kind == "choose" else 1.5)]
    epoch_size = 40 if is_given and kind in (None, "proportion") else None

    def made(last):
        order = OrderSettings(shard_sizes=(np.array([20]), np.array(last)))
        return epochs_in(Grid(1, 1, 4), order, weights, None, 1, epoch_size)

    count = data.draw(st.integers(1, len(sizes)))
    assume(sum(sizes[:count]))
    then, now = made(sizes[:count]), made(sizes)
    state = stopped(then, ResumePoint(2), 1)
    found = now.as_begun(state)
    assert found.begun == (None if count == len(sizes) else (2, count))
    assert found.fingerprint(2) == then.fingerprint(2)
    changed = [*sizes]
    changed[data.draw(st.integers(0, count - 1))] += 1
    assert made(changed).as_begun(state).begun is None


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize("epoch_size", [None, 1000], ids=["all samples", "a given number of samples"])
def test_a_state_of_other_shards_is_refused_at_once_however_many_there_are(epoch_size):
    sizes = 10 + np.arange(200_000) % 7
    then, now = (
        epochs_in(Grid(1, 1, 10), OrderSettings(shard_sizes=(each,)), [StreamWeight()], None, 1, epoch_size)
        for each in (sizes[:150_000] + 1, sizes)
    )
    state = then.state(then.with_defaults(ResumePoint(1, 10)))
    with pytest.raises(StateMismatchError, match="shards"):
        now.as_begun(state).resume_point(state)

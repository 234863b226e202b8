"""Streams of files without an index: the same samples in the same orders as MDS shards, from everywhere, in any world."""

import numpy as np
import parquet_examples
import pytest
import tar_examples
from file_streams import COUNT, OPTIONS, all_same, equal, fill_and_be_killed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streaming_examples import global_batches, numbers, same, world

from fkat_data.streaming import LocalDataset, StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.usefixtures("own_caches")


@pytest.fixture(scope="module", params=["parquet", "tar"])
def both(request, tmp_path_factory):
    """The options that read the dataset as MDS shards, and as the other files; and all its columns."""
    folder = tmp_path_factory.mktemp("both")
    if request.param == "tar":
        mds, files = tar_examples.write_both(folder, COUNT)
        return {"local": mds}, {"local": files, "decode": tar_examples.DECODE}, list(tar_examples.COLUMNS)
    mds, files = parquet_examples.write_both(folder, COUNT)
    return {"local": mds}, {"local": files}, list(parquet_examples.COLUMNS)


def chosen_of(both):
    """The columns that the default collate takes."""
    return [name for name in both[2] if name != "ragged"]


def test_every_sample_is_that_of_mds_in_every_way_of_reading(both):
    for options in ({}, {"writable": True}, {"arrays": "torch"}):
        theirs, ours = (LocalDataset(**place, **options) for place in both[:2])
        assert len(ours) == len(theirs) == COUNT
        order = np.random.default_rng(0).permutation(COUNT).tolist()
        for pair in (zip(ours[order], theirs[order], strict=True), ((ours[n], theirs[n]) for n in range(COUNT))):
            for mine, other in pair:
                assert list(mine) == list(other) == both[2]
                assert all(equal(mine[name], other[name]) for name in both[2])
    options = {"shuffle": True, "columns": chosen_of(both), **OPTIONS}
    theirs, ours = (StreamingDataset(**place, **options) for place in both[:2])
    assert ours.num_shards == theirs.num_shards > 10
    for mine, other in zip(StreamingDataLoader(ours), StreamingDataLoader(theirs), strict=True):
        assert same(mine, other)
        for value in mine.values():
            # Not a view of more than the batch.
            assert not hasattr(value, "nbytes") or value.untyped_storage().nbytes() == value.nbytes


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_orders_resumes_and_worlds_are_those_of_mds(both, data):
    shuffle_algo = data.draw(st.sampled_from([None, "py1e", "py1s", "py2s", "naive", "block"]), "shuffle")
    options = {
        "shuffle": shuffle_algo is not None,
        "shuffle_algo": shuffle_algo or "py1e",
        "shuffle_block_size": 40,
        "num_canonical_nodes": 2,
        "sampling_granularity": data.draw(st.sampled_from([1, 5]), "granularity"),
        "columns": ["number"],
    }
    first, second = (
        data.draw(st.sampled_from([(1, 4, 4), (2, 2, 4), (4, 1, 4), (1, 2, 8), (2, 1, 8), (1, 1, 16)]), name)
        for name in ("world", "world of the resume")
    )
    at = data.draw(st.integers(0, 9), "steps before the resume")
    orders = []
    for place in both[:2]:
        nodes, ranks, batch_size = first
        found = global_batches(nodes, ranks, **place, **options, batch_size=batch_size)
        dataset = StreamingDataset(world=world(nodes, ranks), **place, **options, batch_size=batch_size)
        state = dataset.state_dict(16 * at, from_beginning=True)
        nodes, ranks, batch_size = second
        rest = global_batches(nodes, ranks, state=state, **place, **options, batch_size=batch_size)
        assert [*found[:at], *rest] == found
        orders.append((found, state))
    assert orders[0] == orders[1]


def test_workers_read_the_same(both, processes):
    options = {"shuffle": True, "columns": chosen_of(both), **both[1], **OPTIONS}
    alone = numbers(StreamingDataLoader(StreamingDataset(**options)))
    assert numbers(StreamingDataLoader(StreamingDataset(**options), num_workers=1)) == alone


def test_killed_readers_leave_a_cache_that_is_right(both, tmp_path, processes):
    options = {"columns": chosen_of(both), **OPTIONS}
    cached = {**both[1], "remote": both[1]["local"], "local": str(tmp_path / "local"), **options}
    fill_and_be_killed(**cached)
    found = StreamingDataLoader(StreamingDataset(shuffle=True, **cached))
    assert all_same(found, StreamingDataLoader(StreamingDataset(shuffle=True, **both[0], **options)))
    assert not list((tmp_path / "local" / ".fkat_data" / "making").iterdir())

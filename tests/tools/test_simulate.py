import json
import math
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import MDSWriter, StreamingDataset, World
from fkat_data.tools import simulate_dataset

ORDER = {"batch_size": 3, "shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 16}
#: Of a shard of the folder: its samples.
SAMPLES = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """12 shards of numbers, which are the samples' ids."""
    directory = tmp_path_factory.mktemp("data")
    with MDSWriter(out=str(directory), columns={"number": "int"}, size_limit=1 << 20) as writer:
        for number in range(12 * SAMPLES):
            writer.write({"number": number})
            if number % SAMPLES == SAMPLES - 1:
                writer.flush_shard()
    return str(directory)


def simulated(folder, num_nodes=1, ranks_per_node=1, *, num_epochs=1, cache_limit_bytes=None, **order):
    dataset = StreamingDataset(local=folder, world=World(num_nodes, ranks_per_node), **ORDER | order)
    return simulate_dataset(
        dataset,
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        num_epochs=num_epochs,
        cache_limit_bytes=cache_limit_bytes,
    )


def read_by(folder, node, num_nodes, ranks_per_node, num_epochs, **order):
    """Return the shards that a node's ranks read, by epoch and step, as the loader delivers them."""
    epochs = [{} for _ in range(num_epochs)]
    for rank in range(node * ranks_per_node, (node + 1) * ranks_per_node):
        world = World(num_nodes, ranks_per_node, 1, rank)
        dataset = StreamingDataset(local=folder, world=world, **ORDER | order)
        for steps in epochs:
            for place, sample in enumerate(dataset):
                steps.setdefault(place // 3, set()).add(int(sample["number"]) // SAMPLES)
    return [[sorted(steps[step]) for step in sorted(steps)] for steps in epochs]


def misses(epochs, size_bytes, limit_bytes):
    """Return the fetches of each epoch into a cache that evicts the least recently used of equal shards."""
    cache, counts = OrderedDict(), []
    for steps in epochs:
        counts.append(0)
        for shard in (shard for step in steps for shard in step):
            if shard in cache:
                cache.move_to_end(shard)
                continue
            counts[-1] += 1
            while cache and (len(cache) + 1) * size_bytes > limit_bytes:
                cache.popitem(last=False)
            cache[shard] = True
    return counts


@settings(max_examples=30, deadline=None)
@given(
    world=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    replication=st.sampled_from([None, 2]),
    algorithm=st.sampled_from(["block", "py1e", "naive"]),
    num_epochs=st.integers(1, 2),
    num_cached=st.sampled_from([1, 2, 4, math.inf]),
)
def test_nodes_fetch_what_their_ranks_read_and_their_caches_miss(
    folder, world, replication, algorithm, num_epochs, num_cached
):
    if replication and world[0] * world[1] % replication:
        replication = None
    order = {"shuffle_algo": algorithm, "replication": replication}
    whole = simulated(folder, *world, num_epochs=num_epochs, **order)
    nodes = [read_by(folder, node, *world, num_epochs, **order) for node in range(world[0])]
    size_bytes = whole.epochs[0][0].shard_bytes // whole.epochs[0][0].num_shards
    found = simulated(folder, *world, num_epochs=num_epochs, cache_limit_bytes=num_cached * size_bytes, **order)
    assert list(found.num_steps) == [len(steps) for steps in nodes[0]]
    for number, epochs in enumerate(nodes):
        own = [epoch[number] for epoch in found.epochs]
        assert [totals.num_shards for totals in own] == [len(set().union(*steps)) for steps in epochs]
        assert [totals.num_fetches for totals in own] == misses(epochs, size_bytes, num_cached * size_bytes)
        assert [totals.fetched_bytes for totals in own] == [totals.num_fetches * size_bytes for totals in own]


def test_nodes_of_few_canonical_nodes_fetch_the_same(folder):
    together = simulated(folder, 2, num_canonical_nodes=1).epochs[0]
    assert sum(node.num_shards for node in together) > 20
    assert sum(node.num_shards for node in simulated(folder, 2).epochs[0]) <= 13


def test_a_second_epoch_finds_what_the_first_has_kept(folder):
    first, second = simulated(folder, num_epochs=2).epochs
    assert (first[0].num_fetches, second[0].num_fetches, second[0].num_shards) == (12, 0, 12)
    assert first[0].num_fetched_again == 0


def test_what_is_skipped_is_not_fetched(folder):
    assert simulated(folder, skip=[{"samples": [*range(SAMPLES)]}]).epochs[0][0].num_shards == 11
    found = simulated(folder, num_epochs=2, skip=[{"epoch": 0, "batches": [1, 4]}])
    assert found.num_steps == (25, 28)


def test_compressed_shards_take_space_for_both_while_they_are_decompressed(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={"text": "str"}, compression="zstd", size_limit=4096) as writer:
        for _ in range(400):
            writer.write({"text": "again " * 10})
    found = simulated(str(tmp_path)).epochs[0][0]
    assert found.fetched_bytes < found.shard_bytes / 4
    with_zip = simulated(str(tmp_path), keep_zip=True).epochs[0][0]
    assert with_zip.shard_bytes == found.shard_bytes + found.fetched_bytes
    largest = max(path.stat().st_size for path in tmp_path.glob("shard*"))
    with pytest.raises(ConfigurationError, match="the size of the largest shard"):
        simulated(str(tmp_path), cache_limit_bytes=largest)


def test_the_numbers_are_plain(folder):
    found = simulated(folder, 2, num_epochs=2, cache_limit_bytes=math.inf)
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["cache_limit_bytes"] is None
    assert [len(epoch["nodes"]) for epoch in plain["epochs"]] == [2, 2]
    assert plain["epochs"][0]["num_steps"] == found.num_steps[0]


def test_the_limit_is_the_datasets_unless_another_is_given(folder):
    assert simulated(folder, cache_limit="1gb").cache_limit_bytes == 1 << 30
    assert simulated(folder, cache_limit="1gb", cache_limit_bytes=math.inf).cache_limit_bytes is None


def test_a_number_that_cannot_be_simulated_is_refused_by_name(folder):
    with pytest.raises(ConfigurationError, match="num_nodes"):
        simulate_dataset(StreamingDataset(local=folder, batch_size=10, world=World(1, 1)), num_nodes=2)
    for changes, argument in (
        ({"num_epochs": 0}, "num_epochs"),
        ({"cache_limit_bytes": 10}, "cache_limit"),
        ({"batch_size": None}, "batch_size"),
    ):
        with pytest.raises(ConfigurationError, match=argument):
            simulated(folder, **changes)

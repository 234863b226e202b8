import numpy as np
import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.epoch import Epochs, RankBatches, ResumePoint, SampleSkips, World, in_groups
from fkat_data.streaming.order import OrderSettings, Spanner, StreamWeight
from fkat_data.tools.simulation.needs import Needs

SIZES = (np.full(12, 30), np.array([17, 40, 5, 0, 60]))
SPANNER = Spanner(np.concatenate(SIZES))


def epochs_of(num_nodes=1, ranks_per_node=1, batch_size=4, replication=None, **options):
    streams = len(SIZES)
    return Epochs(
        OrderSettings(SIZES, **({"shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 64} | options)),
        [StreamWeight()] * streams,
        None,
        None,
        9176,
        None,
        batch_size,
        replication,
        World(num_nodes, ranks_per_node, 1, 0),
    )


def needs_of(epochs, skips=None, together=1, chunk=2048, count=None, num_steps=None, num_epochs=None):
    needs = Needs(epochs, SPANNER, skips or SampleSkips(None), together, chunk, count)
    return list(needs.by_epoch(ResumePoint(), num_steps, num_epochs))


def num_steps_of(parts):
    return sum(part.num_steps for part in parts)


def read_of(epochs, epoch, rank, skips, together):
    """The parts that a rank's loader reads of an epoch: batches, samples and shards."""
    place = epochs.settled(ResumePoint(epoch))
    chunks = ((indices.tolist(), ids) for indices, ids in RankBatches(epochs.plan(place), place, rank, skips).chunks())
    for _, part in in_groups(chunks, 1, together):
        shards, _ = SPANNER.locate(np.concatenate(part))
        yield len(part), sum(map(len, part)), sorted(set(shards.tolist()))


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle_algo": "py1e"}, {"shuffle": False}, {"batching_method": "stratified"}]
)
@pytest.mark.parametrize("world", [(1, 1), (2, 2), (1, 3)])
def test_parts_are_those_that_each_rank_reads(world, options, together):
    epochs = epochs_of(*world, **options)
    found = needs_of(epochs, together=together, num_epochs=2)
    assert len(found) == 2
    for epoch, parts in enumerate(found):
        for rank in range(world[0] * world[1]):
            expected = list(read_of(epochs, epoch, rank, SampleSkips(None), together))
            assert [(part.num_steps, part.num_samples, part.of(rank)) for part in parts] == expected


def test_what_is_skipped_is_not_read():
    epochs = epochs_of()
    skips = SampleSkips([{"epoch": 0, "batches": [3, 20]}, {"samples": list(range(100, 140))}])
    counted = []
    (parts,) = needs_of(epochs, skips, num_epochs=1, count=lambda ids: counted.extend(ids.tolist()))
    assert [part.of(0) for part in parts] == [part[2] for part in read_of(epochs, 0, 0, skips, 1)]
    assert counted
    assert not set(range(100, 140)) & set(counted)


def test_steps_go_on_over_the_end_of_an_epoch():
    (whole,) = needs_of(epochs_of(), num_epochs=1)
    found = needs_of(epochs_of(), num_steps=2 * num_steps_of(whole) + 7)
    assert [num_steps_of(parts) for parts in found] == [num_steps_of(whole), num_steps_of(whole), 7]
    assert found[1][0].of(0) != whole[0].of(0)


def test_a_short_run_is_the_beginning_of_a_long_one():
    epochs = epochs_of(2, 2)
    (whole,) = needs_of(epochs, together=2, num_epochs=1)
    (short,) = needs_of(epochs, together=2, num_steps=9)
    assert num_steps_of(short) == 9
    for part, other in zip(short[:4], whole, strict=False):
        assert part.num_steps == other.num_steps
        assert [part.of(rank) for rank in range(4)] == [other.of(rank) for rank in range(4)]


def test_parts_begin_anew_where_a_loaders_chunk_ends():
    (parts,) = needs_of(epochs_of(), together=3, chunk=7, num_steps=20)
    assert [part.num_steps for part in parts] == [1, 2, 3, 1, 3, 3, 1, 3, 3]


def test_an_epoch_without_a_batch_size_cannot_be_planned():
    with pytest.raises(ConfigurationError, match="batch_size"):
        needs_of(epochs_of(batch_size=None), num_epochs=1)

import math

import numpy as np
import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.epoch.epochs import Epochs
from fkat_data.streaming.epoch.rank_batches import RankBatches, in_groups
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.epoch.skips import SampleSkips
from fkat_data.streaming.epoch.world import World
from fkat_data.streaming.order.epoch_order import OrderSettings
from fkat_data.streaming.order.spanner import Spanner
from fkat_data.streaming.order.weights import StreamWeight
from fkat_data.tools.simulation.needs import needs_of
from fkat_data.tools.simulation.setup import Setup

SIZES = (np.full(12, 30), np.array([17, 40, 5, 0, 60]))


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


def setup_of(num_nodes=1, ranks_per_node=1, **options):
    return Setup(
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        step_s=1.0,
        bandwidth_bytes_per_s=math.inf,
        predownload=0,
        **options,
    )


def read_of(epochs, epoch, rank, skips, together):
    """The parts that a rank's loader reads of an epoch: batches, samples and shards."""
    place = epochs.settled(ResumePoint(epoch))
    spanner = Spanner(np.concatenate(SIZES))
    chunks = ((indices.tolist(), ids) for indices, ids in RankBatches(epochs.plan(place), place, rank, skips).chunks())
    for _, part in in_groups(chunks, 1, together):
        shards, _ = spanner.locate(np.concatenate(part))
        yield len(part), sum(map(len, part)), list(dict.fromkeys(shards.tolist()))


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle_algo": "py1e"}, {"shuffle": False}, {"batching_method": "stratified"}]
)
@pytest.mark.parametrize("world", [(1, 1), (2, 2), (1, 3)])
def test_parts_are_those_that_each_rank_reads(world, options, together):
    epochs = epochs_of(*world, **options)
    found = needs_of(
        epochs,
        Spanner(np.concatenate(SIZES)),
        SampleSkips(None),
        setup_of(*world, num_epochs=2, batches_together=together),
    )
    assert [needs.epoch for needs in found] == [0, 1]
    for needs in found:
        for rank in range(world[0] * world[1]):
            expected = list(read_of(epochs, needs.epoch, rank, SampleSkips(None), together))
            parts = [(part.num_steps, part.num_samples, part.shards[rank].tolist()) for part in needs.parts]
            assert [part[0] for part in parts] == [part[0] for part in expected]
            assert [part[2] for part in parts] == [part[2] for part in expected]
            assert [part[1] for part in parts] == [part[1] for part in expected]


def test_what_is_skipped_is_not_read():
    epochs = epochs_of()
    skips = SampleSkips([{"epoch": 0, "batches": [3, 20]}, {"samples": list(range(100, 140))}])
    (needs,) = needs_of(epochs, Spanner(np.concatenate(SIZES)), skips, setup_of(num_epochs=1))
    expected = list(read_of(epochs, 0, 0, skips, 1))
    assert [part.shards[0].tolist() for part in needs.parts] == [part[2] for part in expected]


def test_steps_go_on_over_the_end_of_an_epoch():
    epochs, spanner = epochs_of(), Spanner(np.concatenate(SIZES))
    (whole,) = needs_of(epochs, spanner, SampleSkips(None), setup_of(num_epochs=1))
    found = needs_of(epochs, spanner, SampleSkips(None), setup_of(num_steps=2 * whole.num_steps + 7))
    assert [needs.num_steps for needs in found] == [whole.num_steps, whole.num_steps, 7]
    assert found[1].parts[0].shards[0].tolist() != whole.parts[0].shards[0].tolist()


@pytest.mark.parametrize("samples", [32, 64, 1 << 19])
def test_it_makes_no_difference_how_much_is_planned_at_once(monkeypatch, samples):
    epochs, spanner = epochs_of(2, 2), Spanner(np.concatenate(SIZES))
    setup = setup_of(2, 2, num_epochs=1, batches_together=2, batches_per_chunk=3)
    (whole,) = needs_of(epochs, spanner, SampleSkips(None), setup)
    monkeypatch.setattr("fkat_data.tools.simulation.needs._CHUNK", samples)
    (found,) = needs_of(epochs, spanner, SampleSkips(None), setup)
    assert [part.num_steps for part in found.parts] == [part.num_steps for part in whole.parts]
    for part, other in zip(found.parts, whole.parts, strict=True):
        assert [shards.tolist() for shards in part.shards] == [shards.tolist() for shards in other.shards]


@pytest.mark.parametrize("samples", [8, 16, 1 << 19])
def test_a_part_that_is_planned_in_pieces_is_the_same(monkeypatch, samples):
    epochs, spanner = epochs_of(2, 2, shuffle_algo="py1e"), Spanner(np.concatenate(SIZES))
    setup = setup_of(2, 2, num_epochs=1, batches_together=8)
    skips = SampleSkips([{"samples": list(range(40, 90))}])
    counted = []
    monkeypatch.setattr("fkat_data.tools.simulation.needs._CHUNK", samples)
    (found,) = needs_of(epochs, spanner, skips, setup, count=lambda ids: counted.extend(ids.tolist()))
    for rank in range(4):
        expected = [part[2] for part in read_of(epochs, 0, rank, skips, 8)]
        assert [part.shards[rank].tolist() for part in found.parts] == expected
    assert not set(range(40, 90)) & set(counted)
    assert set(range(spanner.size)) - set(range(40, 90)) == set(counted)


def test_visits_are_the_same_where_keys_are_too_large_to_sort(monkeypatch):
    epochs, spanner = epochs_of(2, 2), Spanner(np.concatenate(SIZES))
    setup = setup_of(2, 2, num_epochs=1, batches_together=4)
    (whole,) = needs_of(epochs, spanner, SampleSkips(None), setup)
    monkeypatch.setattr("fkat_data.tools.simulation.needs._MOST_BITS", 1)
    (found,) = needs_of(epochs, spanner, SampleSkips(None), setup)
    for part, other in zip(found.parts, whole.parts, strict=True):
        assert [shards.tolist() for shards in part.shards] == [shards.tolist() for shards in other.shards]
        assert [shards.tolist() for shards in part.shards[1:3]] == [part.shards[rank].tolist() for rank in (1, 2)]


def test_a_short_run_is_the_beginning_of_a_long_one():
    epochs, spanner = epochs_of(2, 2), Spanner(np.concatenate(SIZES))
    (whole,) = needs_of(epochs, spanner, SampleSkips(None), setup_of(2, 2, num_epochs=1, batches_together=2))
    (short,) = needs_of(epochs, spanner, SampleSkips(None), setup_of(2, 2, num_steps=9, batches_together=2))
    assert short.num_steps == 9
    for part, other in zip(short.parts[:4], whole.parts, strict=False):
        assert part.num_steps == other.num_steps
        assert [shards.tolist() for shards in part.shards] == [shards.tolist() for shards in other.shards]


def test_parts_begin_anew_where_a_loaders_chunk_ends():
    (needs,) = needs_of(
        epochs_of(),
        Spanner(np.concatenate(SIZES)),
        SampleSkips(None),
        setup_of(num_steps=20, batches_together=3, batches_per_chunk=7),
    )
    assert [part.num_steps for part in needs.parts] == [1, 2, 3, 1, 3, 3, 1, 3, 3]


def test_an_epoch_without_a_batch_size_cannot_be_planned():
    with pytest.raises(ConfigurationError, match="batch_size"):
        needs_of(epochs_of(batch_size=None), Spanner(np.concatenate(SIZES)), SampleSkips(None), setup_of(num_epochs=1))

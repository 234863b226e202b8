import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkat_data.streaming.epoch import RankBatches, ResumePoint, SampleSkips
from fkat_data.streaming.order import EpochStart, Grid, OrderSettings, StreamWeight, plan_epoch, shares_of

SIZES = (np.array([40, 31, 17, 9]),)
SKIPS = [[], [{"epoch": 0, "batches": [3, 6]}], [{"samples": [1, 2, 3, 50]}, {"epoch": 0, "batches": [0, 1]}]]


def batches_of(algorithm, rank, skip, grid):
    settings_ = OrderSettings(SIZES, shuffle=True, shuffle_algo=algorithm, shuffle_block_size=30)
    shares = shares_of([StreamWeight()], [97], None, 0)
    plan = plan_epoch(settings_, shares, EpochStart(0, 0, 0, 2), grid)
    return RankBatches(plan, ResumePoint(), rank, SampleSkips(skip))


def read(batches, *arguments):
    return [
        (index, batch.tolist())
        for indices, chunk in batches.chunks(*arguments)
        for index, batch in zip(indices.tolist(), chunk, strict=True)
    ]


@pytest.fixture(autouse=True, params=[8, 8192])
def _chunk(request, monkeypatch):
    """So few samples are planned together that it takes many times."""
    monkeypatch.setattr("fkat_data.streaming.epoch.rank_batches._CHUNK", request.param)


@pytest.mark.parametrize("algorithm", ["block", "py1e"])
@pytest.mark.parametrize("skip", SKIPS)
@given(first=st.integers(0, 30), num_parts=st.integers(1, 4), rank=st.integers(0, 1))
@settings(max_examples=15)
def test_workers_share_what_is_left_and_no_more(algorithm, skip, first, num_parts, rank):
    batches = batches_of(algorithm, rank, skip, Grid(1, 2, 3))
    whole = read(batches)
    parts = [read(batches, first, part, num_parts) for part in range(num_parts)]
    assert sorted(batch for own in parts for batch in own) == whole[first:]
    # As torch's DataLoader asks its workers in turn, beginning with the first.
    for part, own in enumerate(parts):
        assert own == [batch for place, batch in enumerate(whole) if place >= first and place % num_parts == part]


def test_the_sample_in_epoch_after_a_batch_is_what_all_ranks_have_read():
    batches = batches_of("block", 0, SKIPS[1], Grid(1, 2, 3))
    assert [batches.sample_in_epoch_after(index) for index, _ in read(batches)] == [6, 12, 18, *range(42, 97, 6), 98]
    assert [index for index, _ in read(batches) if batches.is_short(index)] == [16]

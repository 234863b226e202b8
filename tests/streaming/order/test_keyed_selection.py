from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.streaming.order import KeyedSelection, StreamSamples, fair_counts, selected


@given(
    sizes=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), min_size=1, max_size=3),
    times=st.floats(0, 3),
    granularity=st.integers(1, 40),
    epoch=st.integers(0, 3),
    make=st.sampled_from([KeyedSelection, partial(selected, is_balanced=True, is_shuffled=True)]),
)
def test_it_takes_what_it_is_asked_for_and_no_sample_once_more_than_another(sizes, times, granularity, epoch, make):
    streams, first = [], 0
    for shard_sizes in sizes:
        streams.append(StreamSamples(np.array(shard_sizes, np.int64), first, int(sum(shard_sizes) * times)))
        first += sum(shard_sizes)
    made = make(streams, seed=3, epoch=epoch, granularity=granularity)
    ids = made.sample_ids(np.arange(made.size))
    assert made.size == made.unit_sizes.sum()
    for stream in streams:
        total = int(stream.shard_sizes.sum())
        own = ids[(ids >= stream.first_sample) & (ids < stream.first_sample + total)] - stream.first_sample
        assert len(own) == (stream.choose if total else 0)
        if total:
            seen = np.bincount(own, minlength=total)
            assert set(seen.tolist()) <= {stream.choose // total, stream.choose // total + 1}


def test_shards_give_in_proportion_and_epochs_take_turns():
    stream = StreamSamples(np.full(100, 64, np.int64), 0, 100 * 64 // 4)
    assert set(fair_counts(stream, 1, 0, 0).tolist()) == {16}
    taken = [set(made_ids(stream, epoch).tolist()) for epoch in range(2)]
    assert taken[0] != taken[1]


def test_a_granularity_of_a_shard_takes_whole_shards():
    stream = StreamSamples(np.full(100, 64, np.int64), 0, 100 * 64 // 4)
    assert sorted(fair_counts(stream, 64, 0, 0).tolist()) == [0] * 75 + [64] * 25


def made_ids(stream, epoch):
    made = KeyedSelection([stream], seed=0, epoch=epoch, granularity=1)
    return made.sample_ids(np.arange(made.size))

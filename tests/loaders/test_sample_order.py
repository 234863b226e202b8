import time
import tracemalloc

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader

from fkat_data import DataLoader


def batches_of(count, batch_size, epoch=0, seed=5, **options):
    """The batches of an epoch."""
    loader = DataLoader(range(count), batch_size, shuffle=count > 0, seed=seed, collate_fn=list, **options)
    loader.load_state_dict(loader.state_dict()["place"][0] | {"epoch": epoch})
    return loader, list(loader)


@settings(max_examples=25)
@given(
    counts=st.one_of(
        st.tuples(st.integers(0, 300), st.integers(1, 5)),
        st.tuples(st.one_of(st.integers(65_530, 65_540), st.integers(90_000, 90_010)), st.integers(1000, 20_000)),
    ),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_a_shuffled_epoch_has_each_sample_once(counts, drop_last, epoch):
    count, batch_size = counts
    loader, batches = batches_of(count, batch_size, epoch, drop_last=drop_last)
    indices = [index for batch in batches for index in batch]
    assert len(batches) == len(loader)
    assert len(set(indices)) == len(indices)
    assert set(indices) <= set(range(count))
    assert len(indices) == count or (drop_last and count - len(indices) < batch_size)


def test_a_billion_samples_are_shuffled_in_no_time_and_no_memory():
    tracemalloc.start()
    began_s = time.process_time()
    loader = DataLoader(range(10**9), 1000, shuffle=True, seed=3)
    microbatches = iter(loader)
    found = {index for _ in range(3) for index in next(microbatches).tolist()}
    state = loader.state_dict()["place"][0]
    assert len(loader) == 10**6
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 3000
    assert max(found) > 10**8
    assert peak_bytes < 20 << 20
    assert time.process_time() - began_s < 5
    state["step"] = 999_999
    loader.load_state_dict(state)
    assert len(list(loader)) == 1


def test_another_loader_with_a_shuffles_sampler_gets_another_order_each_time():
    def orders(programs_seed, **options):
        torch.manual_seed(programs_seed)
        parts = DataLoader(range(20), 4, shuffle=True, **options).batch_sampler
        other = TorchDataLoader(range(20), batch_sampler=parts, collate_fn=list)
        return [[number for batch in other for number in batch] for _ in range(3)]

    drawn = orders(1)
    assert all(sorted(order) == list(range(20)) for order in drawn)
    assert len({tuple(order) for order in (*drawn, *orders(2))}) == 6
    assert orders(1) == drawn
    assert orders(1, seed=5) == orders(2, seed=5)
    loader = DataLoader(range(20), None, shuffle=True, seed=5)
    assert orders(1, seed=5) == [list(loader) for _ in range(3)]

"""Near the memory limit: garbage is collected where it may help, and takes no large share of the time."""

import gc

import pytest
import torch
from loader_examples import make

from fkat_data.loader.shortages import GarbageCollection

NUM_MICROBATCHES = 60


def generate(shard):
    for index in range(NUM_MICROBATCHES):
        yield torch.full((100_000,), float(index))


class Collections:
    """Counts the collections of all objects while it is entered."""

    def __enter__(self):
        self.num_full = 0
        gc.callbacks.append(self._count)
        return self

    def __exit__(self, *_):
        gc.callbacks.remove(self._count)

    def _count(self, phase, info):
        self.num_full += phase == "stop" and info["generation"] == 2


@pytest.mark.usefixtures("processes")
def test_a_loop_near_the_limit_collects_all_objects_at_long_intervals():
    with (
        make(["a"], generate, multiprocessing=True, memory_limit_bytes=1 << 20) as loader,
        Collections() as collections,
    ):
        assert [int(microbatch[0]) for microbatch in loader] == list(range(NUM_MICROBATCHES))
    assert collections.num_full < NUM_MICROBATCHES / 4


@pytest.mark.usefixtures("processes")
def test_old_microbatches_in_reference_cycles_make_room_for_the_next_ones(caplog, monkeypatch):
    monkeypatch.setattr("fkat_data.loader.shortages._MUCH_S", 0.001)
    with make(["a"], generate, multiprocessing=True, memory_limit_bytes=1 << 20) as loader:
        seen = []
        for microbatch in loader:
            seen.append(int(microbatch[0]))
            cycle = {"microbatch": microbatch}
            cycle["self"] = cycle
            gc.collect(1)  # what survives is old
            del cycle, microbatch
    assert seen == list(range(NUM_MICROBATCHES))
    assert sum("break the cycles" in record.message for record in caplog.records) == 1


def test_young_objects_that_are_enough_end_the_collection():
    cycle = []
    cycle.append(cycle)
    with Collections() as collections:
        GarbageCollection().collect(lambda: True, is_last_resort=True)
    assert collections.num_full == 0


@pytest.mark.parametrize(("is_last_resort", "num_full"), [(True, 3), (False, 1)])
def test_all_objects_are_collected_again_at_once_where_only_an_error_remains(is_last_resort, num_full):
    collection = GarbageCollection()
    with Collections() as collections:
        for _ in range(3):
            collection.collect(lambda: False, is_last_resort=is_last_resort)
    assert collections.num_full == num_full

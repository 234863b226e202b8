"""An epoch that begins while another thread still reads the one before has its own order."""

import threading

import pytest
from torch.utils.data import Dataset

from fkat_data.datasets import BufferSortedDataset, DistributedShardedDataset


class Gate:
    """Holds up whom it is closed for."""

    def __init__(self):
        self.opened, self.reached = threading.Event(), threading.Event()
        self.opened.set()

    def pass_through(self):
        if threading.current_thread() is not threading.main_thread():
            self.reached.set()
            self.opened.wait(30)


GATE = Gate()


class Held(Dataset):
    """Numbers whose length a thread waits for."""

    def __init__(self, first=0, count=12):
        self.first, self.count = first, count
        if count < 12:
            GATE.pass_through()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.first + index

    def sort_key(self, index):
        GATE.pass_through()
        return index % 3


def in_shards():
    params = {f"shard {number}": [[3 * number, 3], {}] for number in range(4)}
    return DistributedShardedDataset(Held, params, rank=0, world_size=1, shuffle=True, seed=2)


KINDS = {"sorted": lambda: BufferSortedDataset(Held(), 12, 4, init_seed=1), "in shards": in_shards}


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_that_begins_while_a_thread_reads_the_one_before_has_its_own_order(kind):
    expected = KINDS[kind]()
    expected.set_epoch(1)
    order = list(expected)
    dataset = KINDS[kind]()
    for gate in (GATE.opened, GATE.reached):
        gate.clear()
    late = threading.Thread(target=lambda: dataset[0])
    late.start()
    assert GATE.reached.wait(30)
    going = threading.Thread(target=dataset.set_epoch, args=(1,))
    going.start()
    going.join(0.1)
    GATE.opened.set()
    for thread in (late, going):
        thread.join()
    assert list(dataset) == order

"""What workers and their program share of a dataset: pages, mapped files, shared memory, and the key of managers."""

import multiprocessing
import os
import time

import numpy as np
import psutil
import pytest
import torch
from walks import begun, wait_until

from fkat_data import DataLoader
from fkat_data.worker.process import forkserver

pytestmark = pytest.mark.usefixtures("processes")

ARRAY_BYTES = 64 << 20


class Holding:
    """Tells of the worker that reads it."""

    def __init__(self, **held):
        self.held = held

    def __len__(self):
        return 4

    def __getitem__(self, index):
        memory = psutil.Process().memory_full_info()
        held = {name: value[index] for name, value in self.held.items()}
        return {"private_bytes": memory.uss, "pid": os.getpid(), **held}


def private_bytes_with(**held):
    """Return the memory of two workers that is theirs alone, each at its largest."""
    with DataLoader(Holding(**held), None, num_workers=2, timeout=600) as loader:
        samples = list(loader)
    for name, value in held.items():
        assert [sample[name] for sample in samples] == [value[index] for index in range(4)]
    return max(sample["private_bytes"] for sample in samples)


def test_an_array_a_tensor_and_a_mapped_file_are_there_once_for_all_workers(tmp_path):
    path = tmp_path / "numbers"
    numbers = np.arange(ARRAY_BYTES // 8)
    numbers.tofile(path)
    without = private_bytes_with()
    held = {"array": numbers, "tensor": torch.from_numpy(numbers.copy()), "mapped": np.memmap(path, np.int64, "r")}
    assert private_bytes_with(**held) < without + ARRAY_BYTES // 2


class Counting:
    """Counts in shared memory, in a manager's list, and in an array of its own."""

    def __init__(self, counts, words):
        self.counts = counts
        self.words = words
        self.own = np.zeros(100_000)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.counts[index] += 1
        self.words.append(index)
        self.own[0] += 1
        return index


def test_shared_memory_is_shared_with_workers_and_an_array_is_their_own():
    counts = torch.zeros(6).share_memory_()
    with multiprocessing.get_context("spawn").Manager() as manager:
        dataset = Counting(counts, manager.list())
        with DataLoader(dataset, None, num_workers=2, timeout=600) as loader:
            assert list(loader) == list(range(6))
        assert counts.tolist() == [1] * 6
        assert sorted(dataset.words) == list(range(6))
        assert not dataset.own.any()


class Labelled:
    """A ``collate_fn`` bound to a model, as LightningModules have them."""

    def __init__(self):
        self.model = torch.nn.Linear(64, 64)

    def collate(self, samples):
        return os.getpid(), samples


def test_workers_stay_while_a_model_that_the_collate_fn_knows_is_trained():
    labelled, pids = Labelled(), []
    with DataLoader(
        range(4), batch_size=4, num_workers=1, start_method="template", timeout=600, collate_fn=labelled.collate
    ) as loader:
        for _ in range(3):
            ((pid, _),) = loader
            pids.append(pid)
            with torch.no_grad():
                labelled.model.weight += 1
    assert len(set(pids)) == 1


class Slow:
    """Takes long to compare."""

    def __init__(self):
        self.small, self.images = [1, 2], bytes(3_000_000)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.small[index]

    def __getstate__(self):
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.25:
            pass
        return vars(self)


def test_a_dataset_that_takes_long_to_compare_is_named_once_with_what_spares_it(caplog):
    with DataLoader(Slow(), None, num_workers=1, timeout=600, start_method="template") as loader:
        for _ in range(3):
            assert list(loader) == [1, 2]
    (said,) = [message for message in caplog.messages if "persistent_workers" in message]
    assert "dataset.images alone has 3.0 MB" in said


def test_a_constructor_starts_the_process_that_workers_are_forked_from(own_template):
    loader = DataLoader(range(4), num_workers=1, timeout=600, start_method="template")
    template = forkserver.find_template()
    assert template is not None
    assert template.is_serving()
    with loader:
        begun(loader, 1)
        assert forkserver.find_template() is template
    wait_until(lambda: template.has_started_one)

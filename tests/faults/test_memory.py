"""Memory, files and descriptors: little of each is needed, nothing grows, and what a caller keeps never changes."""

import contextlib
import os
import random
import re
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from fkat_data import ShardedDataLoader

#: Four workers, microbatches of many sizes, some of them kept; prints what was received.
NARROW = """
import resource, sys
import torch
from torch.utils.data import DataLoader, Dataset
from fkat_data import ShardedDataLoader

class Numbers(Dataset):
    def __init__(self, shard):
        self.shard = int(shard)
    def __len__(self):
        return 30
    def __getitem__(self, index):
        size = 1 + 3000 * (index % 7)
        return {f"part {part}": torch.full((size,), 100 * self.shard + index) for part in range(9)}

def load(shard):
    return DataLoader(Numbers(shard), batch_size=None)

loader = ShardedDataLoader(0, [str(shard) for shard in range(8)], load, num_shard_prefetches=4)
got, kept = [], []
for microbatch in loader:
    got.append(int(microbatch["part 8"][-1]))
    kept = [*kept[-3:], microbatch]
assert got == [100 * shard + index for shard in range(8) for index in range(30)], got
assert all(int(part.unique()) == int(microbatch["part 0"][0]) for microbatch in kept for part in microbatch.values())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
loader.close()
"""


@pytest.mark.parametrize("limit", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_four_workers_run_with_few_open_files(start, limit):
    program = start(NARROW, limits=f"ulimit -n {limit}")
    program.expect(str(limit))
    program.check_silent_end()


#: Counts what the trainer and its worker hold after a tenth of the way, and at the end.
SLOPE = """
import gc, os, sys
from pathlib import Path
import torch
from own_workers import worker_pids
from fkat_data import ShardedDataLoader

count = int(sys.argv[1])

def load(shard):
    size = int(shard)
    return (torch.full((size,), index) for index in range(count // 2))

def held(pid):
    process = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    kib = {name: int(status[name].split()[0]) for name in ("RssAnon", "RssShmem")}
    maps = len((process / "maps").read_text().splitlines())
    return {**kib, "files": len(os.listdir(process / "fd")), "maps": maps}

# In the message itself, and in segments.
loader = ShardedDataLoader(0, ["3", "600"], load, memory_limit_bytes=4 << 20, num_shard_prefetches=2)
pids = [os.getpid()]
before = None
for number, microbatch in enumerate(loader):
    pids[1:] = pids[1:] or worker_pids()  # now that both are there
    # Each kind of microbatch is counted from a tenth of its own way on, in the trainer and the worker that makes it.
    counted = pids[0], pids[1 + 2 * number // count]
    if number in (count // 20, count // 2 + count // 20):
        gc.collect()
        before = [held(pid) for pid in counted]
    if number in (count // 2 - 2, count - 1):
        gc.collect()
        after = [held(pid) for pid in counted]
        for was, now in zip(before, after):
            assert now["RssAnon"] - was["RssAnon"] < 3000, (number, was, now)
            assert now["RssShmem"] - was["RssShmem"] < 5000, (number, was, now)
            assert now["files"] <= was["files"] + 1, (number, was, now)
            assert now["maps"] <= was["maps"] + 70, (number, was, now)
files = [now["files"] for now in after]
print(number + 1, len(files), flush=True)
loader.close()
"""


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_nothing_grows_over_many_microbatches(start, count):
    program = start(SLOPE, count)
    program.expect(f"{count} 2", timeout_s=60 + count / 200)
    program.check_silent_end()


# --- what is kept ------------------------------------------------------------------------------------------------

SEED = 20260
NUM_MICROBATCHES = 30
LARGEST_BYTES = 60_000


def changing_sizes(shard):
    """Random bytes, sizes and shapes, and beside them the checksum that the worker has seen."""
    draws = np.random.default_rng(int(shard))
    for _ in range(NUM_MICROBATCHES):
        array = draws.integers(0, 256, size=int(draws.integers(2, LARGEST_BYTES)), dtype=np.uint8)
        tensor = torch.from_numpy(array)
        forms = [
            array,
            tensor,
            [tensor[: len(array) // 2], array[len(array) // 2 :]],
            {"first": tensor[:1], "rest": tensor[1:]},
        ]
        yield forms[draws.integers(4)], zlib.crc32(array.tobytes())


def parts_of(microbatch):
    match microbatch:
        case dict():
            return list(microbatch.values())
        case list():
            return microbatch
        case _:
            return [microbatch]


def checksum(microbatch):
    found = 0
    for part in parts_of(microbatch):
        found = zlib.crc32(np.ascontiguousarray(part).tobytes(), found)
    return found


def view_of(microbatch, draws):
    """One view that holds the memory by itself, as autograd's saved tensors or a user's slice do."""
    match microbatch:
        case dict() | list():
            return draws.choice(parts_of(microbatch))
        case torch.Tensor():
            return draws.choice([microbatch.numpy(), microbatch[len(microbatch) // 2 :], microbatch.unsqueeze(0)])
        case _:
            return draws.choice([microbatch[::2], memoryview(microbatch), torch.from_numpy(microbatch)])


def keep_at_random(loader, draws, num_trials):
    """Keep microbatches and views for a while, at most four at once: the pool has room for little more."""
    kept = []
    released_by = []

    def release(place):
        item, expected = kept.pop(place)
        assert checksum(item) == expected
        if draws.random() < 0.2:  # the last view dies in another thread
            thread = threading.Thread(target=list.clear, args=([item],))
            released_by.append(thread)
            del item
            thread.start()

    for _ in range(num_trials):
        for microbatch, expected in loader:
            assert checksum(microbatch) == expected, "it arrived as it was made"
            if draws.random() < 0.5:
                item = view_of(microbatch, draws) if draws.random() < 0.5 else microbatch
                kept.append((item, checksum(item)))
            microbatch = item = None  # noqa: PLW2901 - what is not kept must be free to go
            while len(kept) > 4 or (kept and draws.random() < 0.3):
                release(draws.randrange(len(kept)))
        # Some live on into the next epoch.
        for item, expected in kept:
            assert checksum(item) == expected
    for thread in released_by:
        thread.join()
    loader.close()
    for item, expected in kept:
        assert checksum(item) == expected, "it outlives its loader"


class AnotherShardEachEpoch:
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield str(self.epoch + SEED)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("num_trials", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_what_is_kept_never_changes_though_the_pool_is_at_its_smallest(processes, num_trials):
    with ShardedDataLoader(0, AnotherShardEachEpoch(), changing_sizes, memory_limit_bytes=1 << 20) as loader:
        keep_at_random(loader, random.Random(SEED), num_trials)
        assert loader.statistics().delivered == num_trials * NUM_MICROBATCHES


#: A worker that may run far ahead of its caller, in a control group that has no memory for that.
CROWDED = """
import os, sys, time
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
import torch
from fkat_data import MemoryLimitError, ShardedDataLoader

size_bytes, count = int(sys.argv[2]), int(sys.argv[3])

def load(shard):
    return (torch.full((size_bytes // 8,), index) for index in range(count))

def wait_until_full():
    used_bytes, num_alike = 0, 0
    while num_alike < 60:  # looks, not seconds: the machine may stop
        num_alike += 1
        with open(sys.argv[1] + "/memory.usage_in_bytes") as file:
            now_bytes = int(file.read())
        if now_bytes > used_bytes + (1 << 20):
            used_bytes, num_alike = now_bytes, 0
        time.sleep(0.05)

loader = ShardedDataLoader(0, ["0"], load, num_microbatch_prefetches=count, memory_limit_bytes=4 << 30)
try:
    for index, microbatch in enumerate(loader):
        if index == 0:
            wait_until_full()  # the worker makes all that it has room for
        assert bool((microbatch == index).all())
    assert index == count - 1
    print("received", loader.statistics().segment_bytes, flush=True)
except MemoryLimitError as error:
    print("refused", error, flush=True)
loader.close()
"""


@pytest.fixture
def group():
    """A control group with 1200 MiB for all that runs in it: its directory."""
    own = re.search(r"^\d+:memory:(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    folder = Path("/sys/fs/cgroup/memory" + (own[1] if own else "/none"), f"fkat-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(1200 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield folder
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):  # while its last process ends
            folder.rmdir()
            return
        time.sleep(0.05)
    folder.rmdir()


def test_a_control_group_without_memory_slows_a_worker_and_kills_nobody(start, group):
    program = start(CROWDED, group, 8 << 20, 200)
    received, segment_bytes = program.line(150).split()
    assert received == "received", program.stderr
    assert int(segment_bytes) < 900 << 20
    assert program.wait() == 0
    assert "the control group of this process leaves" in program.stderr
    program.check_all_gone()
    # A tenth is kept for others, but for what the trainer itself takes meanwhile.
    assert int((group / "memory.max_usage_in_bytes").read_text()) < 1180 << 20


def test_a_microbatch_that_a_control_group_has_no_memory_for_is_an_error_that_says_so(start, group):
    program = start(CROWDED, group, 400 << 20, 2)
    assert re.search(r"refused .*the control group of the process leaves [\d,]+ bytes", program.line(150))
    assert program.wait() == 0
    program.check_all_gone()

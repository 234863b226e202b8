import gc
import os
import re
import threading
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from fkat_data.errors import MemoryLimitError
from fkat_data.transport.memory_limit import MemoryLimit, WorkerMemory
from fkat_data.transport.segment import SegmentLeases, SegmentPool, rounded_size

LIMIT = 1 << 20
MEMORY = WorkerMemory(LIMIT, LIMIT, 1)


class Pair:
    """A worker's pool and a trainer's leases, with the pipe between them taken out."""

    def __init__(self, limit=LIMIT):
        self.credits = []
        self.leases = SegmentLeases(lambda index, size_bytes: self.credits.append(index))
        self.pool = SegmentPool(
            WorkerMemory(limit, limit, 1),
            lambda segment, descriptor: self.leases.add(segment.index, os.dup(descriptor), segment.size_bytes),
            self.leases.remove,
        )

    def give_back_credits(self):
        self.leases.collect()
        while self.credits:
            self.pool.give_back(self.credits.pop(0))


def array_of(view):
    return view.numpy() if isinstance(view, torch.Tensor) else np.asarray(view)


class Segments(RuleBasedStateMachine):
    """Against a model: which segments are leased, and which are free, oldest first."""

    leased = Bundle("leased")

    def __init__(self):
        super().__init__()
        self.pair = Pair()
        self.live = {}  # number of a lease -> (segment index, views and what each shows)
        self.free = OrderedDict()  # segment index -> size, oldest credit first
        self.sizes = {}
        self.count = 0

    @rule(target=leased, size=st.one_of(st.integers(1, 3000), st.integers(60_000, 400_000), st.just(LIMIT)))
    def take(self, size):
        needed = max(size, min(rounded_size(size), LIMIT))
        # The newest that fits and is not far too large; else room is made by dropping the oldest.
        fitting = [index for index, held in reversed(self.free.items()) if needed <= held <= 2 * needed]
        segment = self.pair.pool.take(size)
        if fitting:
            assert segment.index == fitting[0]
            del self.free[segment.index]
        else:
            while self.free and sum(self.sizes.values()) + needed > LIMIT:
                index, _ = self.free.popitem(last=False)
                del self.sizes[index]
            if sum(self.sizes.values()) + needed > LIMIT:
                assert segment is None
                return None
            assert segment.index not in self.sizes
            self.sizes[segment.index] = segment.size_bytes
        assert segment.size_bytes >= size
        assert segment.index not in [index for index, _ in self.live.values()]
        self.count += 1
        content = np.random.default_rng(self.count).integers(0, 256, size, dtype=np.uint8)
        segment.array[:size] = content
        view = self.pair.leases.lease(segment.index)[:size]
        self.live[self.count] = (segment.index, [(view, content)])
        return self.count

    @rule(lease=leased, how=st.sampled_from(["slice", "torch", "numpy of torch", "memoryview", "reshaped"]))
    def look(self, lease, how):
        if lease not in self.live:
            return
        _, views = self.live[lease]
        view = array_of(views[0][0]).reshape(-1)
        looked = {
            "slice": lambda: view[: len(view) // 2 or 1],
            "torch": lambda: torch.frombuffer(view, dtype=torch.uint8),
            "numpy of torch": lambda: np.asarray(torch.frombuffer(view, dtype=torch.uint8)[len(view) // 2 :]),
            "memoryview": lambda: memoryview(view),
            "reshaped": lambda: view.reshape(-1, 1),
        }[how]()
        views.append((looked, array_of(looked).copy()))

    @rule(lease=leased)
    def drop_all_but_the_last_view(self, lease):
        if lease in self.live:
            del self.live[lease][1][:-1]

    @rule(lease=leased, how=st.sampled_from(["here", "thread", "cycle"]))
    def drop(self, lease, how):
        if lease not in self.live:
            return
        index, views = self.live.pop(lease)
        if how == "cycle":
            cycle = {"views": views}
            cycle["self"] = cycle
            del cycle, views
            gc.collect()
        elif how == "thread":
            box = [views]
            del views
            thread = threading.Thread(target=box.clear)
            thread.start()
            thread.join()
        else:
            del views
        self.pair.leases.collect()
        assert self.pair.credits == [index]
        self.pair.give_back_credits()
        self.free[index] = self.sizes[index]

    @invariant()
    def what_is_looked_at_is_unchanged(self):
        for _, views in self.live.values():
            for view, content in views:
                assert np.array_equal(array_of(view), content)

    @invariant()
    def the_limit_holds_and_both_sides_agree(self):
        assert sum(self.sizes.values()) <= LIMIT
        assert self.pair.pool.held_bytes == self.pair.leases.leased_bytes
        assert self.pair.pool.held_bytes == sum(self.sizes[index] for index, _ in self.live.values())
        assert self.pair.leases.mapped_bytes == sum(self.sizes.values())

    def teardown(self):
        self.live.clear()


TestSegments = Segments.TestCase
TestSegments.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def grouped_pool(memory_bytes):
    """A pool in a control group with so much memory, which its segments take."""
    sizes = {}

    def announce(segment, descriptor):
        sizes[segment.index] = segment.size_bytes

    pool = SegmentPool(MEMORY, announce, sizes.pop, lambda: max(0, memory_bytes[0] - sum(sizes.values())))
    return pool, sizes


def test_a_pool_grows_no_further_than_its_control_group_has_room_for():
    pool, sizes = grouped_pool([300_000])
    taken = [pool.take(65_536) for _ in range(4)]
    assert pool.take(65_536) is None  # until one comes back
    assert pool.left_bytes == 300_000 - 4 * 65_536
    pool.give_back(taken[0].index)
    assert pool.take(60_000) is taken[0]
    for segment in taken[:3]:
        pool.give_back(segment.index)
    assert pool.take(150_000) is None  # what was free is let go of at first
    assert sizes == {taken[3].index: 65_536}
    assert pool.take(150_000) is not None
    assert pool.left_bytes is None


def test_the_limit_is_the_limit_whatever_the_control_group_has():
    pool, _ = grouped_pool([1 << 40])
    assert pool.take(LIMIT) is not None
    assert pool.take(100_000) is None
    assert pool.left_bytes is None
    with pytest.raises(MemoryLimitError, match=r"1,048,577.*1,048,576.*raise memory_limit_bytes"):
        pool.take(LIMIT + 1)


def pool_of(memory):
    return SegmentPool(memory, lambda segment, descriptor: None, lambda index: None, lambda: None)


@pytest.mark.parametrize("num_workers", [1, 2, 8, 64])
@pytest.mark.parametrize("size", [100_000, 5 << 20, 40 << 20])
def test_a_worker_has_room_for_four_microbatches_whatever_its_share_for_prefetching(size, num_workers):
    memory = MemoryLimit(num_workers << 30, 64 << 20).of_worker(num_workers)
    pool = pool_of(memory)
    assert all(pool.take(size) is not None for _ in range(4))
    while pool.take(size) is not None:
        pass
    assert pool.held_bytes <= max(memory.prefetch_bytes, 4 * rounded_size(size))
    pool.allow(pool.held_bytes + rounded_size(size))
    assert pool.take(size) is not None
    assert pool.take(size) is None


@pytest.mark.parametrize("limit", [100_000, 300_000, 399_999])
def test_what_a_worker_takes_for_large_microbatches_stays_within_its_limit(limit):
    pool = pool_of(WorkerMemory(limit, 1, 8))
    assert pool.take(100_000) is not None
    while pool.take(100_000) is not None:
        pass
    pool.allow(1 << 40)
    assert pool.take(100_000) is None
    assert pool.held_bytes <= limit


@pytest.mark.parametrize("num_workers", [1, 2, 8, 64])
@pytest.mark.parametrize("size", [100_000, LIMIT + 1, 77 << 20])
def test_the_limit_that_the_error_names_is_enough_for_two_microbatches(size, num_workers):
    with pytest.raises(MemoryLimitError, match="make smaller microbatches") as caught:
        pool_of(WorkerMemory(size - 1, size - 1, num_workers)).take(size)
    named = int(re.search(r"memory_limit_bytes=(\d+)", str(caught.value))[1])
    pool = pool_of(MemoryLimit(named, named).of_worker(num_workers))
    assert pool.take(size) is not None
    assert pool.take(size) is not None


def test_a_lease_that_ends_after_clear_tells_nobody():
    pair = Pair()
    view = pair.leases.lease(pair.pool.take(1000).index)
    pair.leases.clear()
    del view
    assert pair.credits == []


@pytest.mark.parametrize("size", [0, 1, 2048, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 123_456_789])
def test_a_rounded_size_wastes_at_most_a_quarter_above_the_smallest(size):
    rounded = rounded_size(size)
    assert rounded >= size
    assert rounded % 4096 == 0
    assert rounded <= max(65_536, size * 1.25 + 4096)
    assert rounded_size(rounded) == rounded


def test_a_segment_cannot_be_shrunk_under_the_readers_feet():
    descriptors = []
    pool = SegmentPool(MEMORY, lambda segment, descriptor: descriptors.append(os.dup(descriptor)), lambda index: None)
    pool.take(100_000)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptors[0], 0)
    os.close(descriptors[0])


@pytest.mark.parametrize("error", [OSError(24, "injected"), MemoryLimitError(1, 1, 0, "injected")])
def test_a_segment_that_cannot_be_announced_takes_no_room_and_leaves_no_descriptor(error, nothing_left_behind):
    failing = [error, error]

    def announce(segment, descriptor):
        if failing:
            raise failing.pop()

    pool = SegmentPool(MEMORY, announce, lambda index: None)
    for _ in range(2):
        with pytest.raises(type(error), match="injected"):
            pool.take(LIMIT)
        assert (pool.num_segments, pool.held_bytes) == (0, 0)
    assert pool.take(LIMIT).size_bytes == LIMIT


def test_what_a_fork_may_look_at_is_discarded_and_not_released():
    released, discarded = [], []
    made = []
    pool = SegmentPool(MEMORY, lambda segment, descriptor: made.append((segment, os.dup(descriptor))), made.append)
    leases = SegmentLeases(lambda *given: released.append(given), lambda *given: discarded.append(given))
    for _ in range(2):
        pool.take(1000)
    for segment, descriptor in made:
        leases.add(segment.index, descriptor, segment.size_bytes)
    before = leases.lease(0)
    leases.share()
    after = leases.lease(1)
    del before, after
    assert not discarded
    assert not released, "nothing happens in a finaliser"
    leases.collect()
    assert [index for index, _ in discarded] == [0]
    assert [index for index, _ in released] == [1]
    pool.discard(0)
    assert made[-1] == 0, "the trainer is told to forget it"
    assert pool.held_bytes == released[0][1], "and it counts no more"

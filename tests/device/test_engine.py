"""On a simulated device, in a process of its own (see test_simulation.py), whose streams are late wherever they may be: is every byte right, and does the host not wait?

The safeguards are taken out one by one: without any of them bytes are wrong.
"""

import collections.abc
import ctypes
import gc
import itertools
import random
import time
import types
import weakref

import pytest
import simulated_device
import torch
from device_examples import deliver_by
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_examples import make
from missing_safeguards import movers
from simulated_device import Runtime, device, launch, sleep
from torch.nn.utils.rnn import pack_sequence
from walks import begun

from fkat_data.device import AcceleratorMover, StreamCopier
from fkat_data.device.page_lock import PageLocks
from fkat_data.tools import read_run

# They run in a process of their own, so there is no test among them for the fast lane.
pytestmark = pytest.mark.usefixtures("processes")

NUM_MICROBATCHES = 200
LENGTHS = (1_000, 20_000, 30_000, 1_000, 5_000)


@pytest.fixture(autouse=True)
def _installed():
    simulated_device.install()
    device.reset()


def factory(shard):
    for index in range(NUM_MICROBATCHES):
        yield {"x": torch.full((LENGTHS[index % len(LENGTHS)],), index, dtype=torch.int32), "index": index}


class LateEngine(StreamCopier):
    """Holds up the side stream before some of the copies."""

    def __init__(self, locks=None):
        target = torch.device("simulated", 0)
        super().__init__(target, torch.simulated, locks or PageLocks(target, Runtime()))

    def issuing(self):
        context = super().issuing()
        with torch.simulated.stream(self._stream):
            sleep_sometimes()
        return context


def sleep_sometimes():
    if device.schedule.random() < 0.5:
        sleep(device.schedule.randrange(30))


class Caller:
    """A training loop whose kernels compare what they read with what was to be delivered."""

    def __init__(self):
        self.num_wrong = 0

    def read(self, tensor, expected):
        def kernel(values):
            self.num_wrong += bool((values != expected).any())

        launch(kernel, tensor)

    def write(self, tensor, value):
        launch(lambda values: values.fill(value), tensor)


def num_wrong(mover, eagerness):
    """Take microbatches from a real worker; return how many were not what they should be when they were read."""
    device.reset(random.Random(1), eagerness)
    caller = Caller()
    with make(["a"], factory, multiprocessing=True, memory_limit_bytes=1 << 20) as loader:
        deliver_by(loader, mover)
        for microbatch in loader:
            sleep_sometimes()
            caller.read(microbatch["x"], microbatch["index"])
            del microbatch  # its memory may be given to another from here on, while this stream has yet to read it
        assert loader.statistics().delivered == NUM_MICROBATCHES
        device.synchronize()
        loader.set_device(None)
    return caller.num_wrong + device.num_faults


@pytest.mark.parametrize("eagerness", [0.0, 0.3, 0.7])
def test_every_byte_is_right_whatever_is_late(eagerness):
    assert num_wrong(AcceleratorMover(LateEngine()), eagerness) == 0
    assert device.num_reused > 50


@pytest.mark.parametrize("missing", movers(LateEngine))
def test_without_a_safeguard_bytes_are_wrong(missing):
    assert num_wrong(movers(LateEngine)[missing](), 0.3) > 0


class Pool:
    """Page-locked memory for microbatches: what nobody looks at any more is written over, as a worker may do at once."""

    SIZE_BYTES = 4096

    def __init__(self, num_segments):
        self.memory = bytearray(num_segments * self.SIZE_BYTES)
        self.free = list(range(num_segments))
        Runtime().cudaHostRegister(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)), len(self.memory), 1)

    def make(self, length, value):
        number = self.free.pop(0)
        lease = (ctypes.c_char * self.SIZE_BYTES).from_buffer(self.memory, number * self.SIZE_BYTES)
        weakref.finalize(lease, self._scribble, number).atexit = False
        tensor = torch.frombuffer(lease, dtype=torch.int32)[:length]
        return tensor.fill_(value)

    def _scribble(self, number):
        start = number * self.SIZE_BYTES
        self.memory[start : start + self.SIZE_BYTES] = b"\xee" * self.SIZE_BYTES
        self.free.append(number)


class Loop:
    """A training loop that does what it may do with microbatches, in any order."""

    def __init__(self, mover, choices):
        self.mover = mover
        self.choices = choices
        self.pool = Pool(8)
        self.caller = Caller()
        self.num_begun = 0
        self.ahead = []
        self.kept = []

    def begin_ahead(self):
        if len(self.ahead) < 2:
            source = self.pool.make(self.choices.choice([100, 200, 1000]), self.num_begun)
            self.ahead.append((self.num_begun, self.mover.begin({"x": source})))
            self.num_begun += 1

    def deliver(self):
        if not self.ahead:
            self.begin_ahead()
        value, moving = self.ahead.pop(0)
        tensor = self.mover.finish(moving)["x"]
        self.caller.read(tensor, value)
        self.kept.append((tensor, value))

    def drop(self):
        if self.kept:
            self.kept.pop(self.choices.randrange(len(self.kept)))

    def read_again(self):
        if self.kept:
            self.caller.read(*self.choices.choice(self.kept))

    def change(self):
        if self.kept:
            tensor, _ = self.kept.pop(0)
            self.caller.write(tensor, -1)
            self.kept.append((tensor, -1))

    def sleep(self):
        sleep(self.choices.randrange(20))

    def wait(self):
        self.mover.wait()


ACTIONS = [Loop.deliver, Loop.deliver, Loop.deliver, Loop.drop, Loop.read_again, Loop.change, Loop.sleep]
ACTIONS += [Loop.begin_ahead, Loop.wait]


def play(make_mover, seed, eagerness, actions):
    """Return how many microbatches were not what they should be when they were read."""
    choices = random.Random(seed)
    device.reset(choices, eagerness)
    loop = Loop(make_mover(), choices)
    for action in actions:
        action(loop)
    device.synchronize()
    loop.mover.wait()
    assert len(loop.pool.free) == 8  # nothing is kept longer than it is read
    return loop.caller.num_wrong + device.num_faults


class LockedBefore:
    """Of memory that is page-locked already."""

    def hold(self, tensor):
        return True


@given(
    seed=st.integers(0, 1 << 32),
    eagerness=st.sampled_from([0.0, 0.2, 0.6, 0.9]),
    actions=st.lists(st.sampled_from(ACTIONS), max_size=40),
)
@settings(max_examples=200, deadline=None)
def test_whatever_a_caller_does_it_reads_what_was_delivered(seed, eagerness, actions):
    assert play(lambda: AcceleratorMover(LateEngine(LockedBefore())), seed, eagerness, actions) == 0


@pytest.mark.parametrize("missing", movers(LateEngine))
def test_such_a_search_finds_a_missing_safeguard(missing):
    make_mover = movers(LateEngine, LockedBefore())[missing]
    choices = random.Random(0)
    plays = (play(make_mover, seed, 0.6, choices.choices(ACTIONS, k=40)) for seed in range(300))
    assert any(plays)


@pytest.mark.parametrize("multiprocessing", [False, True], ids=["in process", "worker process"])
def test_the_host_waits_for_nothing(multiprocessing):
    def small(shard):
        yield from (torch.full((1000,), index, dtype=torch.int32) for index in range(100))

    device.reset(eagerness=1.0)
    device.held = [device.current]  # the caller's stream is asleep
    with make(["a"], small, multiprocessing=multiprocessing) as loader:
        deliver_by(loader, AcceleratorMover(LateEngine()))
        caller = Caller()
        for index, microbatch in enumerate(loader):
            caller.read(microbatch, index)
        assert device.num_host_waits == 0
        device.synchronize()
        assert caller.num_wrong == 0


def test_segments_are_page_locked_once_and_unlocked_at_the_end():
    device.reset(eagerness=0.9)
    with make(["a"], factory, multiprocessing=True, memory_limit_bytes=4 << 20) as loader:
        deliver_by(loader, AcceleratorMover(LateEngine()))
        begun(loader, 100)
        assert 0 < len(device.locked) <= loader.statistics().num_segments
        loader.set_device(None)
    device.synchronize()
    gc.collect()
    assert device.locked == {}
    assert device.num_faults == 0


def test_what_the_caller_keeps_and_changes_stays_its_own():
    device.reset(random.Random(2), eagerness=0.3)
    caller = Caller()
    with make(["a"], factory, multiprocessing=True, memory_limit_bytes=1 << 20) as loader:
        deliver_by(loader, AcceleratorMover(LateEngine()))
        kept = []
        for index, microbatch in enumerate(loader):
            if index % 2:
                caller.write(microbatch["x"], -index)
            kept.append(microbatch["x"])
        for index, tensor in enumerate(kept):
            caller.read(tensor, -index if index % 2 else index)
        assert loader.statistics().held_bytes <= 1 << 20
        device.synchronize()
        assert loader.statistics().copied_s > 0
        loader.set_device(None)
    assert caller.num_wrong == 0


@pytest.mark.parametrize("multiprocessing", [False, True], ids=["in process", "worker process"])
def test_a_loader_delivers_to_any_accelerator_that_torch_knows(multiprocessing):
    """One without page locks: the host waits for large copies, and nothing is wrong."""

    def objects(shard):
        tensor = torch.arange(30_000, dtype=torch.int32)
        yield {
            "nested": [{"x": tensor}, (tensor[:3], "text")],
            "packed": pack_sequence([torch.ones(4_000), torch.ones(2)]),
            "empty": torch.empty(0, 3),
        }

    device.reset(eagerness=0.3)
    with make(["a"], objects, multiprocessing=multiprocessing, device="simulated") as loader:
        (microbatch,) = list(loader)
    where = torch.device("simulated", 0)
    assert microbatch["nested"][0]["x"].device == where
    assert microbatch["nested"][1][1] == "text"
    assert torch.equal(microbatch["nested"][0]["x"].cpu(), torch.arange(30_000, dtype=torch.int32))
    assert microbatch["packed"].data.device == where
    assert torch.equal(microbatch["packed"].data.cpu(), torch.ones(4_002))
    assert microbatch["packed"].batch_sizes.device.type == "cpu"
    assert microbatch["empty"].shape == (0, 3)


def test_the_device_may_change_between_microbatches():
    device.reset(eagerness=0.3)
    with make(["a"], factory, multiprocessing=True, device="simulated") as loader:
        kinds = []
        for index, microbatch in enumerate(loader):
            assert int(microbatch["x"].cpu().unique()) == index
            kinds.append(microbatch["x"].device.type)
            if index in (20, 60):
                loader.set_device(None if index == 20 else "simulated")
            if index == 99:
                break
    assert kinds[:20] == ["simulated"] * 20
    assert kinds[25:60] == ["cpu"] * 35
    assert kinds[65:] == ["simulated"] * 35


class Renewed:
    """It moves itself: what it consists of is replaced in its own dict, and the original is let go of."""

    def __init__(self, tensors):
        self.tensors = {"deep": tensors}

    def to(self, device, non_blocking=False):
        self.tensors["deep"] = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.tensors["deep"].items()
        }
        return self


class Slotted(Renewed):
    """Its tensors are in slots."""

    __slots__ = ("empty", "tensor")

    def __init__(self, tensors):
        self.tensor = tensors["x"]

    def to(self, device, non_blocking=False):
        return Slotted({"x": self.tensor.to(device, non_blocking=non_blocking)})

    @property
    def tensors(self):
        return {"deep": {"x": self.tensor}}


class MadeOnTheFly(collections.abc.Mapping):
    """A mapping that makes its tensors when it is asked for them: one may get the id of another that is gone."""

    def __init__(self, values):
        self.values_by_name = values

    def __getitem__(self, name):
        tensor = self.values_by_name[name]
        return tensor.clone() if tensor.device.type == "cpu" else tensor

    def __iter__(self):
        return iter(self.values_by_name)

    def __len__(self):
        return len(self.values_by_name)


class Deep(Renewed):
    """Its tensors are in a plain object, in a list, in itself."""

    def __init__(self, tensors):
        self.inside = [types.SimpleNamespace(held={"set": tensors["x"]})]

    def to(self, device, non_blocking=False):
        holder = self.inside[0]
        holder.held["set"] = holder.held["set"].to(device, non_blocking=non_blocking)
        return self

    @property
    def tensors(self):
        return {"deep": {"x": self.inside[0].held["set"]}}


@pytest.mark.parametrize("kind", [Renewed, Slotted, Deep])
def test_an_object_that_moves_itself_is_read_before_its_segment_is_written_again(kind):
    def objects(shard):
        for index in range(NUM_MICROBATCHES):
            yield {"object": kind({"x": torch.full((LENGTHS[index % 5],), index, dtype=torch.int32)}), "index": index}

    device.reset(random.Random(3), eagerness=0.3)
    caller = Caller()
    with make(["a"], objects, multiprocessing=True, memory_limit_bytes=1 << 20) as loader:
        deliver_by(loader, AcceleratorMover(LateEngine()))
        for microbatch in loader:
            sleep_sometimes()
            caller.read(microbatch["object"].tensors["deep"]["x"], microbatch["index"])
            del microbatch
        device.synchronize()
        loader.set_device(None)
    assert caller.num_wrong == device.num_faults == 0


def test_tensors_that_are_made_on_the_fly_are_not_taken_for_one_another():
    mover = AcceleratorMover(LateEngine())
    moved = mover.finish(mover.begin(MadeOnTheFly({str(value): torch.full((5,), value) for value in range(20)})))
    assert [int(moved[name].cpu()[0]) for name in moved] == list(range(20))


def test_memory_of_the_device_is_free_as_soon_as_the_caller_lets_go():
    device.reset(eagerness=1.0)
    mover = AcceleratorMover(LateEngine())
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            mover.finish(mover.begin({"x": torch.ones(100), "record": Renewed({"y": torch.ones(300)})}))
            device.synchronize()
    finally:
        gc.enable()
    assert device.num_reused == 18


def test_a_second_stream_of_the_caller_reads_what_was_delivered():
    device.reset(random.Random(4), eagerness=0.3)
    caller, other = Caller(), simulated_device.Stream()
    with make(["a"], factory, multiprocessing=True, memory_limit_bytes=1 << 20) as loader:
        deliver_by(loader, AcceleratorMover(LateEngine()))
        microbatches = iter(loader)
        for number in range(NUM_MICROBATCHES):
            with torch.simulated.stream(other if number % 2 else device.current):
                microbatch = next(microbatches)
                sleep_sometimes()
                caller.read(microbatch["x"], microbatch["index"])
                del microbatch
        device.synchronize()
        loader.set_device(None)
    assert caller.num_wrong == 0


def test_no_event_is_asked_while_a_graph_is_captured():
    mover = AcceleratorMover(LateEngine())
    mover.finish(mover.begin({"x": torch.ones(100)}))
    device.is_capturing = True
    assert mover.copied_s == 0
    device.is_capturing = False
    device.synchronize()
    assert mover.copied_s > 0


def test_where_copies_are_the_slowest_the_verdict_says_so():
    device.reset(eagerness=0.0)
    device.copy_s = 0.01
    with make(["a"], lambda shard: (torch.ones(1000) for _ in range(40)), device="simulated") as loader:
        for _ in loader:
            pass
        statistics = loader.statistics()
    assert statistics.copied_s > 0.3
    assert statistics.waited_s > 0.3
    assert statistics.verdict.limit == "copy", statistics.verdict


def test_load_batch_brings_the_next_microbatch_on_its_way():
    device.reset(eagerness=0.0)
    with make(["a"], factory, multiprocessing=True, device="simulated") as loader:
        deadline_s = time.monotonic() + 60
        while not device.reads:  # it does not wait: the worker has to come so far
            loader.load_batch()
            assert time.monotonic() < deadline_s
        loader.load_batch()
        assert len(device.reads) == 1  # the second call had nothing to add
        assert loader.statistics().delivered == 0
        assert loader.load_batch_sync()["index"] == 0


def test_copies_are_drawn_on_a_track_of_their_own(tmp_path):
    device.reset(eagerness=0.0)
    device.copy_s = 0.002
    path = tmp_path / "run.json"
    with make(["a"], factory, device="simulated", trace=path) as loader:
        begun(loader, 30)
        device.synchronize()
        assert loader.statistics().copied_s > 0.05
    run = read_run(path)
    (track,) = [track for track in run.tracks if "copies" in track.name]
    assert {span.name for span in track.spans} == {"copy"}
    assert 30 <= len(track.spans) <= 32
    assert all(span.duration_s > 0.0019 for span in track.spans)
    assert all(before.ended_s <= span.began_s + 1e-6 for before, span in itertools.pairwise(track.spans))
    assert sum(span.duration_s for span in track.spans) == pytest.approx(run.statistics.copied_s, rel=0.01)

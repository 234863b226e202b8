"""On a CUDA device: is every byte right, whatever is late, and does the host wait for nothing?

Streams are held up by kernels that sleep. The tests that take a safeguard out must find wrong bytes: they show that
the others could.
"""

import gc
import logging
import random

import pytest
import torch
from device_examples import deliver_by
from loader_examples import make
from missing_safeguards import movers
from walks import begun

from fkat_data.device import AcceleratorMover, StreamCopier, page_lock
from fkat_data.device.page_lock import PageLocks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch warns of features in beta, once, wherever it likes.
    pytest.mark.filterwarnings("default"),
]

# About a millisecond, on a device that runs at 2 GHz.
MS_CYCLES = 2_000_000
NUM_MICROBATCHES = 4000
LENGTHS = (16_384, 50_000, 200_000, 16_384, 700_000)
#: Segments are written again as soon as they are free, and none is dropped for another size.
OPTIONS = {"num_microbatch_prefetches": 4, "memory_limit_bytes": 64 << 20}


def cuda():
    return torch.device("cuda", torch.cuda.current_device())


def sleep(duration_ms):
    torch.cuda._sleep(int(duration_ms * MS_CYCLES))


def content(index, device="cpu"):
    """What microbatch ``index`` holds: no two places of it are alike, nor the same place of two."""
    return torch.arange(LENGTHS[index % len(LENGTHS)], dtype=torch.int32, device=device) + 7919 * index


def factory(shard):
    for index in range(NUM_MICROBATCHES):
        yield {"x": content(index), "index": index}


class LateEngine(StreamCopier):
    """Holds up the side stream before some of the copies; before every hundredth for long."""

    def __init__(self, runtime=None):
        super().__init__(cuda(), torch.cuda, PageLocks(cuda(), runtime))
        self._random = random.Random(0)
        self._num_issued = 0

    @property
    def side_stream(self):
        return self._stream

    def issuing(self):
        context = super().issuing()
        self._num_issued += 1
        with torch.cuda.stream(self._stream):
            if self._num_issued % 100 == 0:
                sleep(20)
            elif self._random.random() < 0.5:
                sleep(self._random.random())
        return context


def num_wrong(mover, stream=None):
    """Take microbatches while both streams are held up; return how many were not what they should be."""
    delays = random.Random(1)
    wrong = torch.zeros((), dtype=torch.int64, device=cuda())
    torch.cuda.synchronize()
    with (
        make(["a"], factory, multiprocessing=True, **OPTIONS) as loader,
        torch.cuda.stream(stream or torch.cuda.current_stream()),
    ):
        deliver_by(loader, mover)
        for microbatch in loader:
            index = microbatch["index"]
            if index % 100 == 50:
                sleep(20)
            elif delays.random() < 0.5:
                sleep(delays.random())
            wrong += (microbatch["x"] != content(index, cuda())).any()
            del microbatch  # its memory may be given to another from here on, while this stream has yet to read it
        assert loader.statistics().delivered == NUM_MICROBATCHES
        found = int(wrong)
        loader.set_device(None)
    return found


def test_every_byte_is_right_whatever_is_late():
    assert num_wrong(AcceleratorMover(LateEngine())) == 0


@pytest.mark.parametrize("missing", movers(LateEngine))
def test_without_a_safeguard_bytes_are_wrong(missing):
    assert num_wrong(movers(LateEngine)[missing]()) > 0


def test_every_byte_is_right_on_another_stream_of_the_caller():
    assert num_wrong(AcceleratorMover(LateEngine()), torch.cuda.Stream()) == 0


def test_the_host_waits_for_nothing():
    def small(shard):
        yield from (torch.full((16_384,), index) for index in range(1000))

    engine = LateEngine()
    with make(["a"], small, multiprocessing=True, **OPTIONS) as loader:
        deliver_by(loader, AcceleratorMover(engine))
        microbatches = begun(loader, 50)  # memory of the device and of page locks is got
        torch.cuda.synchronize()
        streams = [torch.cuda.current_stream(), engine.side_stream]
        markers = []
        for stream in streams:
            with torch.cuda.stream(stream):
                sleep(500)
                markers.append(torch.cuda.Event())
                markers[-1].record()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(2):  # of four that may be on their way
                assert next(microbatches).is_cuda
            assert not any(marker.query() for marker in markers)  # both are still asleep: nobody waited for them
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        loader.set_device(None)


class Counting:
    """CUDA's runtime, and how often it was asked."""

    def __init__(self):
        self.num_locked = 0
        self.num_unlocked = 0

    def cudaHostRegister(self, *arguments):  # noqa: N802
        self.num_locked += 1
        return torch.cuda.cudart().cudaHostRegister(*arguments)

    def cudaHostUnregister(self, address):  # noqa: N802
        self.num_unlocked += 1
        return torch.cuda.cudart().cudaHostUnregister(address)


def test_segments_are_page_locked_once_and_unlocked_at_the_end():
    gc.collect()
    runtime = Counting()
    with make(["a"], factory, multiprocessing=True, **OPTIONS) as loader:
        deliver_by(loader, AcceleratorMover(LateEngine(runtime)))
        begun(loader, 500)
        assert 0 < runtime.num_locked <= 30
        loader.set_device(None)
    torch.cuda.synchronize()
    gc.collect()
    assert runtime.num_unlocked == runtime.num_locked


def test_where_locking_is_refused_microbatches_are_staged(caplog, monkeypatch):
    class Refusing:
        def cudaHostRegister(self, address, size_bytes, flags):  # noqa: N802
            return 2

    monkeypatch.setattr(page_lock, "_warned", [])
    with caplog.at_level(logging.WARNING):
        assert num_wrong(AcceleratorMover(LateEngine(Refusing()))) == 0
    assert len([record for record in caplog.records if "page-lock" in record.getMessage()]) == 1


def test_what_the_caller_keeps_and_changes_stays_its_own():
    with make(["a"], factory, multiprocessing=True, device="cuda", memory_limit_bytes=16 << 20) as loader:
        kept = []
        for index, microbatch in enumerate(loader):
            if index % 2:
                microbatch["x"].neg_()
            kept.append(microbatch)
            if index == 299:
                break
        for index, microbatch in enumerate(kept):
            assert torch.equal(microbatch["x"], content(index, cuda()) * (-1 if index % 2 else 1))
        assert loader.statistics().held_bytes <= 16 << 20
        assert loader.statistics().copied_s > 0


def test_a_graph_in_the_trainer_reads_what_was_delivered():
    """Captured while microbatches are under way, and replayed without the host waiting; numbers may be asked."""
    static = torch.zeros(LENGTHS[0], dtype=torch.int32, device="cuda")
    sums = []
    with make(["a"], factory, multiprocessing=True, **OPTIONS) as loader:
        deliver_by(loader, AcceleratorMover(LateEngine()))
        microbatches = begun(loader, 2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = static * 2
            assert loader.statistics().delivered == 2
        for index in range(2, 200):
            microbatch = next(microbatches)
            if microbatch["x"].numel() == LENGTHS[0]:
                static.copy_(microbatch["x"])
                graph.replay()
                sums.append((index, doubled.clone()))
        for index, result in sums:
            assert torch.equal(result, 2 * content(index, cuda()))
        loader.set_device(None)

"""On a CUDA device: is every byte right, whatever is late, and does the host wait for nothing?

Streams are held up by kernels that sleep. The tests that take a safeguard out must find wrong bytes: they show that
the others could.
"""

import gc
import importlib.util
import logging
import random

import pytest
import torch
from loader_examples import make
from torch.nn.utils.rnn import pack_sequence

from fkat_data.device import page_lock
from fkat_data.device.accelerator import AcceleratorMover
from fkat_data.device.engine import StreamEngine
from fkat_data.device.page_lock import PageLocks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch warns of features in beta, once, wherever it likes.
    pytest.mark.filterwarnings("default"),
]

# About a millisecond each, on a device that runs at 2 GHz.
SLEEP_CYCLES = 2_000_000
NUM_MICROBATCHES = 1500
LENGTHS = (16_384, 50_000, 200_000, 16_384, 700_000)


def cuda():
    return torch.device("cuda", torch.cuda.current_device())


def factory(shard):
    for index in range(NUM_MICROBATCHES):
        yield {"x": torch.full((LENGTHS[index % len(LENGTHS)],), index, dtype=torch.int32), "index": index}


class LateEngine(StreamEngine):
    """Holds up the side stream before some of the copies."""

    def __init__(self):
        super().__init__(cuda(), torch.cuda, PageLocks(cuda()))
        self._random = random.Random(0)

    def issuing(self):
        context = super().issuing()
        if self._random.random() < 0.5:
            with torch.cuda.stream(self._stream):
                torch.cuda._sleep(self._random.randrange(SLEEP_CYCLES))
        return context


class WithoutEvent(LateEngine):
    """The caller's stream does not wait for the copy."""

    def hand_over(self, ticket, tensors):
        for tensor in tensors:
            tensor.record_stream(torch.cuda.current_stream(self.device))


class WithoutRecord(LateEngine):
    """The allocator does not learn of the caller's stream."""

    def hand_over(self, ticket, tensors):
        super().hand_over(ticket, [])


class WithoutKeeping(AcceleratorMover):
    """Lets go of what the copies read at once."""

    def begin(self, microbatch):
        moving = super().begin(microbatch)
        self._sources.clear()
        return moving


def num_wrong(mover):
    """Take microbatches while both streams are held up at random; return how many were not what they should be."""
    delays = random.Random(1)
    wrong = torch.zeros((), dtype=torch.int64, device=cuda())
    with make(["a"], factory, multiprocessing=True, memory_limit_bytes=16 << 20) as loader:
        loader._delivery.load_to(mover)
        for microbatch in loader:
            if delays.random() < 0.5:
                torch.cuda._sleep(delays.randrange(SLEEP_CYCLES))
            wrong += (microbatch["x"] != microbatch["index"]).any()
            del microbatch  # its memory may be given to another from here on, while this stream has yet to read it
        assert loader.statistics().delivered == NUM_MICROBATCHES
        found = int(wrong)
        loader.set_device(None)
    return found


def test_every_byte_is_right_whatever_is_late():
    assert num_wrong(AcceleratorMover(LateEngine())) == 0


@pytest.mark.parametrize(
    "make_mover",
    [
        lambda: AcceleratorMover(WithoutEvent()),
        lambda: AcceleratorMover(WithoutRecord()),
        lambda: WithoutKeeping(LateEngine()),
    ],
    ids=["event", "record_stream", "sources"],
)
def test_without_a_safeguard_bytes_are_wrong(make_mover):
    assert num_wrong(make_mover()) > 0


@pytest.mark.parametrize("multiprocessing", [False, True], ids=["in process", "worker process"])
def test_the_host_waits_for_nothing(multiprocessing):
    with make(["a"], factory, multiprocessing=multiprocessing, device="cuda") as loader:
        microbatches = iter(loader)
        next(microbatches)
        torch.cuda._sleep(1000 * SLEEP_CYCLES)
        marker = torch.cuda.Event()
        marker.record()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                assert next(microbatches)["x"].is_cuda
            assert not marker.query()  # the caller's stream is still asleep: nobody has waited for it
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_segments_are_page_locked_once_and_unlocked_at_the_end():
    with make(["a"], factory, multiprocessing=True, device="cuda") as loader:
        for _ in zip(range(200), loader, strict=False):
            pass
        assert set(page_lock._locked.values()) == {True}
        assert len(page_lock._locked) <= loader.statistics().num_segments
        loader.set_device(None)
    torch.cuda.synchronize()
    gc.collect()
    assert page_lock._locked == {}


def test_where_locking_is_refused_microbatches_are_staged(caplog, monkeypatch):
    class Refusing:
        def cudaHostRegister(self, address, size_bytes, flags):  # noqa: N802
            return 2

    monkeypatch.setattr(page_lock, "_told", [])
    engine = LateEngine()
    engine._locks = PageLocks(cuda(), Refusing())
    with caplog.at_level(logging.WARNING):
        assert num_wrong(AcceleratorMover(engine)) == 0
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
            assert bool((microbatch["x"] == (-index if index % 2 else index)).all())
        assert loader.statistics().held_bytes <= 16 << 20
        assert loader.statistics().copied_s > 0


def test_a_graph_in_the_trainer_reads_what_was_delivered():
    static = torch.zeros(LENGTHS[0], dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = static * 2
    with make(["a"], factory, multiprocessing=True, device="cuda") as loader:
        for index, microbatch in enumerate(loader):
            if microbatch["x"].numel() == LENGTHS[0]:
                static.copy_(microbatch["x"])
                graph.replay()
                assert bool((doubled == 2 * index).all())
            if index == 100:
                break


@pytest.mark.filterwarnings("ignore")
def test_objects_that_move_themselves_and_containers_move():
    def objects(shard):
        tensor = torch.arange(100_000)
        yield {
            "nested": [{"x": tensor}, (tensor[:3], "text")],
            "packed": pack_sequence([torch.ones(40_000), torch.ones(2)]),
            "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "sparse": torch.eye(3).to_sparse(),
            "empty": torch.empty(0, 3),
            "twice": [tensor, tensor],
        }

    with make(["a"], objects, multiprocessing=True, device="cuda") as loader:
        (microbatch,) = list(loader)
    assert microbatch["nested"][0]["x"].is_cuda
    assert microbatch["nested"][1][1] == "text"
    assert bool((microbatch["nested"][0]["x"] == torch.arange(100_000, device="cuda")).all())
    assert microbatch["packed"].data.is_cuda
    assert bool((microbatch["packed"].data == 1).all())
    assert microbatch["jagged"].is_cuda
    assert bool((microbatch["sparse"].to_dense() == torch.eye(3, device="cuda")).all())
    assert microbatch["empty"].shape == (0, 3)
    assert microbatch["twice"][0] is microbatch["twice"][1]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_a_tokenizers_encoding_moves():
    def encodings(shard):
        from transformers import BatchEncoding

        yield BatchEncoding({"input_ids": torch.arange(50_000), "attention_mask": torch.ones(50_000)})

    with make(["a"], encodings, multiprocessing=True, device="cuda") as loader:
        (microbatch,) = list(loader)
    assert bool((microbatch["input_ids"] == torch.arange(50_000, device="cuda")).all())
    assert microbatch["attention_mask"].is_cuda


def test_the_device_may_change_between_microbatches():
    with make(["a"], factory, multiprocessing=True, device="cuda") as loader:
        kinds = []
        for index, microbatch in enumerate(loader):
            assert bool((microbatch["x"] == index).all())
            kinds.append(microbatch["x"].device.type)
            if index in (20, 60):
                loader.set_device(None if index == 20 else "cuda")
            if index == 99:
                break
    assert kinds[:20] == ["cuda"] * 20
    assert kinds[25:60] == ["cpu"] * 35
    assert kinds[65:] == ["cuda"] * 35


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_each_device_of_a_process_has_its_own_loader():
    loaders = [make(["a"], factory, multiprocessing=True, device=f"cuda:{index}") for index in range(2)]
    try:
        for index, microbatches in zip(range(100), zip(*loaders, strict=True), strict=False):
            for number, microbatch in enumerate(microbatches):
                assert microbatch["x"].device == torch.device("cuda", number)
                assert bool((microbatch["x"] == index).all())
    finally:
        for loader in loaders:
            loader.close()


def test_replay_delivers_from_the_device():
    with make(["a"], factory, multiprocessing=True, device="cuda", replay=True) as loader:
        microbatches = iter(loader)
        first = next(microbatches)["x"]
        assert first.is_cuda
        assert next(microbatches)["x"].data_ptr() == first.data_ptr()

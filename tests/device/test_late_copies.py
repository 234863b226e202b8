"""Real workers write into their segments again while copies of what was in them are late: every byte must be right."""

import pytest
import torch
from device_examples import LateEngine, LateTicket, deliver_by
from loader_examples import make

from fkat_data.device import AcceleratorMover

NUM_MICROBATCHES = 150
LAG = 3


def factory(shard):
    for index in range(NUM_MICROBATCHES):
        yield {"x": torch.full((10_000 + 100 * (index % 7),), index, dtype=torch.int32), "index": index}


class Forgetful(LateEngine):
    """Says of every copy at once that it is done."""

    def issued(self):
        super().issued()
        return DoneTicket(self, len(self.issued_copies) - 2)


class DoneTicket(LateTicket):
    def is_done(self):
        return True

    def duration_s(self):
        return 0.0


def wrong_microbatches(engine):
    """Deliver all of them, have each copied LAG microbatches after it was delivered, and count those that are wrong."""
    wrong = 0
    with make(["a"], factory, multiprocessing=True, memory_limit_bytes=1 << 20) as loader:
        deliver_by(loader, AcceleratorMover(engine))
        delivered = []
        for microbatch in loader:
            delivered.append((engine.handed_over[-1][0].number, microbatch))
            if len(delivered) > LAG:
                wrong += is_wrong(engine, *delivered.pop(0))
        wrong += sum(is_wrong(engine, *one) for one in delivered)
        assert loader.statistics().delivered == NUM_MICROBATCHES
        loader.set_device(None)
    return wrong


def is_wrong(engine, number, microbatch):
    engine.run_until(number)
    return bool((microbatch["x"] != microbatch["index"]).any())


@pytest.mark.usefixtures("processes")
def test_a_segment_is_not_given_back_before_it_was_read():
    assert wrong_microbatches(LateEngine()) == 0


@pytest.mark.usefixtures("processes")
def test_this_test_can_fail():
    assert wrong_microbatches(Forgetful()) > 0


@pytest.mark.usefixtures("processes")
def test_copies_that_are_late_are_waited_for_before_memory_runs_out():
    """They hold as much as the limit allows, and nobody else lets them go."""

    def large(shard):
        for index in range(20):
            yield torch.full((400_000,), index, dtype=torch.uint8)

    engine = LateEngine()
    with make(["a"], large, multiprocessing=True, memory_limit_bytes=1 << 20) as loader:
        deliver_by(loader, AcceleratorMover(engine))
        kept = list(loader)
        engine.run_until(len(engine.issued_copies) - 2)
        assert [int(microbatch.unique()) for microbatch in kept] == list(range(20))
        loader.set_device(None)


def test_the_host_waits_when_more_copies_would_not_be_faster():
    engine = LateEngine()
    mover = AcceleratorMover(engine)
    for index in range(10):
        mover.finish(mover.begin(torch.tensor([index])))
        assert engine.num_done >= index - 3
    assert engine.num_done == 6
    mover.wait()
    assert engine.num_done == 10

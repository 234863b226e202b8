"""How many copies may be late, and what waits for them; test_engine.py looks at every byte."""

import torch
from device_examples import LateEngine, deliver_by

from fkat_data.device import AcceleratorMover


def test_copies_that_are_late_are_waited_for_before_memory_runs_out(remote):
    """They hold as much as the limit allows, and nobody else lets them go."""

    def large(shard):
        for index in range(20):
            yield torch.full((400_000,), index, dtype=torch.uint8)

    engine = LateEngine()
    with remote(["a"], large, memory_limit_bytes=1 << 20) as loader:
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

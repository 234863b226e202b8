"""A device without a device: copies that are issued now and done later, as a stream does them."""

import ctypes
from contextlib import nullcontext

import torch

from fkat_data import DataLoader


class LateCopyEvents:
    def __init__(self, engine, number):
        self.engine = engine
        self.number = number
        self.num_waits = 0

    def is_done(self):
        return self.engine.num_done > self.number

    def wait(self):
        self.num_waits += 1
        self.engine.run_until(self.number)

    def duration_s(self):
        assert self.is_done()
        return 0.25


class LateEngine:
    """Copies CPU tensors when it is told to; until then it knows their addresses alone, as a copy engine does."""

    device = torch.device("cpu")

    def __init__(self):
        self.issued_copies = [[]]
        self.num_done = 0
        self.handed_over = []

    def prepare(self, tensors):
        pass

    def issuing(self):
        return nullcontext()

    def copy(self, value):
        if not isinstance(value, torch.Tensor):
            return value.to("cpu")
        dense = value.contiguous()
        target = torch.full_like(dense, 99)
        # The source is the mover's to keep; what was made here is not.
        self.issued_copies[-1].append((target, dense.data_ptr(), dense.nbytes, None if dense is value else dense))
        return target

    def issued(self):
        self.issued_copies.append([])
        return LateCopyEvents(self, len(self.issued_copies) - 2)

    def hand_over(self, events, tensors):
        self.handed_over.append((events, tensors))

    def run_until(self, number):
        while self.num_done <= number:
            for target, address, num_bytes, _ in self.issued_copies[self.num_done]:
                ctypes.memmove(target.data_ptr(), address, num_bytes)
            self.num_done += 1


def deliver_by(loader, mover):
    """Let a loader deliver by this mover from the next microbatch on: the one place that reaches below its face.

    What ``register_mover`` knows stays for the process, and goes to every worker.
    """
    engine = loader._session.running.engine if isinstance(loader, DataLoader) else loader._engine
    engine._delivery.load_to(mover)

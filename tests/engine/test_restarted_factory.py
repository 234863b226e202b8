"""A worker that is replaced starts with what its predecessor started with, whatever the trainer did meanwhile."""

import pytest

PROGRAM = """
import os, pathlib, signal, sys, threading
import torch
from own_workers import worker_pids
from fkat_data import ShardedDataLoader

torch.set_default_dtype(torch.float64)

class Factory:
    def __init__(self):
        self.scale = 10
        self.path = "numbers.txt"
    def __call__(self, shard):
        for line in pathlib.Path(self.path).read_text().split():
            yield torch.tensor(float(line)) * self.scale * SCALE

SCALE = 1
pathlib.Path("numbers.txt").write_text(" ".join(map(str, range(20))))
factory = Factory()
loader = ShardedDataLoader(0, ["a"], factory, 0, 1, max_worker_restarts=3, start_method=METHOD)
iterator = iter(loader)
got = [next(iterator).item()]

changes = [
    lambda: setattr(factory, "scale", 20),
    lambda: setattr(factory, "lock", threading.Lock()),
    lambda: (os.makedirs("elsewhere"), os.chdir("elsewhere")),
]
SCALE = 2
torch.set_default_dtype(torch.float32)
for change in changes:
    change()
    os.kill(worker_pids()[0], signal.SIGKILL)
    got += [next(iterator).item() for _ in range(3)]
got += [microbatch.item() for microbatch in iterator]
print(got == [10.0 * number for number in range(20)], loader.statistics().worker_restarts)
loader.close()
"""


@pytest.mark.parametrize(("by", "method"), [("file", "template"), ("stdin", "spawn")])
def test_a_replaced_worker_has_what_the_first_one_had(run_script, by, method):
    done = run_script(PROGRAM.replace("METHOD", repr(method)), by=by)
    assert done.stdout == "True 3\n"

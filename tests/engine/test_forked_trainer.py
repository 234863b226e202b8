"""A fork of the trainer: what it reads never changes by what comes later, and its copies are its own."""

import pytest

SCRIPT = """
import os
import torch
from fkat_data import ShardedDataLoader

torch.set_num_threads(1)  # a fork does not have the threads of OpenMP, and waits for them

def factory(shard):
    for number in range(40):
        yield torch.full((100_000,), float(number))

with ShardedDataLoader(0, ["a"], factory, zero_copy={zero_copy}, memory_limit_bytes=4 << 20) as loader:
    iterator = iter(loader)
    microbatch = next(iterator)
    own = microbatch if not {zero_copy} else microbatch.clone()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        own.add_(100)
        os.read(reading, 1)  # until the trainer has gone on
        os._exit(not bool((own == 100).all() and ({zero_copy} == bool((microbatch == 0).all()))))
    print(own[0].item(), end=" ")
    del own, microbatch
    print(sum(int(each[0]) for each in iterator), end=" ")
    os.write(writing, b".")
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("zero_copy", [True, False])
def test_a_fork_reads_what_was_there_and_writes_copies_of_its_own(prepared, run_script, zero_copy):
    assert run_script(SCRIPT.format(zero_copy=zero_copy), by="fork").stdout == "0.0 780 0\n"

"""What torch registers for tensors without data is missing by an error until something imports it, and then is there."""

PROGRAM = """
import sys
import torch

def distances():
    numbers = torch.zeros(2, 3, device="meta")
    return torch.cdist(numbers, numbers).shape

torch.Generator()
is_late = "torch._meta_registrations" not in sys.modules
try:
    distances()
    print(is_late, "known")
except NotImplementedError:
    print(is_late, "missing")
from torch._decomp.decompositions import pw_cast_for_opmath
print(list(distances()), torch.vmap(torch.sum)(torch.ones(2, 3)).tolist())
"""


def test_a_program_misses_nothing_in_silence_and_has_all_that_it_uses(run_script):
    missing, there = run_script(PROGRAM).stdout.splitlines()
    assert missing in ("True missing", "False known")
    assert there == "[2, 2] [3.0, 3.0]"

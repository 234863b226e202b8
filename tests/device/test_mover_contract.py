"""Our own movers keep the contract, on the host and on a device whose copies are late."""

import pytest
import torch
from device_examples import LateEngine

from fkat_data.device import AcceleratorMover, HostMover, mover_for
from fkat_data.testing.contracts import MoverContract


class TestHost(MoverContract):
    def make(self):
        return HostMover()


class TestLate(MoverContract):
    def make(self):
        self.engine = LateEngine()
        return AcceleratorMover(self.engine)

    def settle(self, mover):
        self.engine.run_until(len(self.engine.issued_copies) - 2)


@pytest.mark.gpu
class TestCuda(MoverContract):
    device = torch.device("cuda")

    @pytest.fixture(autouse=True)
    def _device(self):
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")

    def make(self):
        return mover_for("cuda")


REGISTERED = """
import torch
from fkat_data import ConfigurationError
from fkat_data.device import HostMover, mover_for
from fkat_data.extensions import register_mover

class Elsewhere(HostMover):
    def __init__(self, device):
        self.device = device

register_mover("hpu", Elsewhere)
print(mover_for("hpu:1").device)
for name in ("nowhere", "cuda"):
    try:
        register_mover(name, Elsewhere)
    except ConfigurationError as error:
        print("torch knows" in str(error), "this package" in str(error))
"""


def test_a_registered_mover_serves_its_type_of_device(run_script):
    assert run_script(REGISTERED).stdout == "hpu:1\nTrue False\nFalse True\n"

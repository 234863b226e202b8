"""Our own movers keep the contract, on the host and on a device whose copies are late."""

import pytest
import torch
from device_examples import LateEngine

from fkat_data.device.accelerator import AcceleratorMover
from fkat_data.device.choice import mover_for
from fkat_data.device.host import HostMover
from fkat_data.errors import ConfigurationError
from fkat_data.extensions import register_mover
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


class Elsewhere(HostMover):
    def __init__(self, device):
        self.device = device


def test_a_registered_mover_serves_its_type_of_device(monkeypatch):
    from fkat_data import registry

    monkeypatch.setitem(registry._entries, "mover", registry._entries["mover"])
    try:
        register_mover("hpu", Elsewhere)
        assert mover_for("hpu:1").device == torch.device("hpu:1")
    finally:
        registry._entries["mover"].clear()


@pytest.mark.parametrize(("name", "expected"), [("nowhere", "torch knows"), ("cuda", "this package")])
def test_a_type_that_is_none_or_ours_is_refused(name, expected):
    with pytest.raises(ConfigurationError, match=expected):
        register_mover(name, Elsewhere)

import pytest
import torch

from fkat_data.device.accelerator import AcceleratorMover
from fkat_data.device.host import HostMover

MICROBATCH = {"tensor": torch.arange(3), "text": "a", "nested": [(torch.ones(2),)]}


def test_the_hosts_mover_leaves_a_microbatch_as_it_is():
    mover = HostMover()
    assert mover.finish(mover.begin(MICROBATCH)) is MICROBATCH


def test_a_device_without_streams_gets_its_tensors_at_once():
    mover = AcceleratorMover(torch.device("meta"))
    moved = mover.finish(mover.begin(MICROBATCH))
    assert moved["tensor"].is_meta
    assert moved["nested"][0][0].is_meta
    assert moved["text"] == "a"
    assert not MICROBATCH["tensor"].is_meta


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_to_cuda_are_ordered_before_what_the_caller_does_next():
    mover = AcceleratorMover(torch.device("cuda"))
    moving = [mover.begin({"tensor": torch.full((1 << 20,), index)}) for index in range(20)]
    for index, one in enumerate(moving):
        assert int(mover.finish(one)["tensor"].sum()) == index << 20

import os

import pytest
import torch

# A device that torch is taught stays for the rest of the process, and all of torch would try to use it.
collect_ignore = [] if "FKAT_DATA_SIMULATED" in os.environ else ["test_engine.py"]


@pytest.fixture(scope="session", autouse=True)
def _device_is_awake():
    """What CUDA opens once and keeps for ever is open before any test counts what it leaves behind."""
    if not torch.cuda.is_available():
        return
    for size_bytes in (1 << 10, 1 << 20):
        for source in (torch.ones(size_bytes), torch.ones(size_bytes).pin_memory()):
            with torch.cuda.stream(torch.cuda.Stream()):
                source.to("cuda", non_blocking=True).sum().item()
    torch.cuda._sleep(1000)
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    torch.cuda.synchronize()

import gc
import logging

import pytest
import torch

from fkat_data.device import page_lock
from fkat_data.device.page_lock import PageLocks


class Runtime:
    """CUDA's runtime, as far as it locks pages."""

    def __init__(self, code=0):
        self.code = code
        self.calls = []

    def cudaHostRegister(self, address, size_bytes, flags):  # noqa: N802
        self.calls.append(("lock", address, size_bytes))
        return self.code

    def cudaHostUnregister(self, address):  # noqa: N802
        self.calls.append(("unlock", address))
        return 0


@pytest.fixture(autouse=True)
def _untold(monkeypatch):
    monkeypatch.setattr(page_lock, "_warned", [])
    monkeypatch.setattr(page_lock, "_locked", {})


def factory(shard):
    for index in range(100):
        yield torch.full((20_000,), index), torch.full((50_000,), index)


def test_a_refusal_is_logged_once_and_remembered(remote, caplog):
    runtime = Runtime(code=2)
    locks = PageLocks(torch.device("cpu"), runtime)
    with remote(["a"], factory) as loader, caplog.at_level(logging.WARNING):
        for microbatch in loader:
            assert not any(locks.hold(tensor) for tensor in microbatch)
        num_segments = loader.statistics().num_segments
    del microbatch
    gc.collect()
    assert 1 <= len(runtime.calls) <= num_segments
    assert {call[0] for call in runtime.calls} == {"lock"}
    assert len([record for record in caplog.records if "page-lock" in record.getMessage()]) == 1

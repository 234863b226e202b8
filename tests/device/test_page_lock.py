import gc
import logging

import pytest
import torch

from fkat_data.device import page_lock
from fkat_data.device.page_lock import PageLocks
from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.segment import Segment, mapping_at


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


def test_a_mapping_is_found_by_any_address_in_it():
    def mapped(size_bytes):
        descriptor = anonymous_file()
        with open(descriptor, "r+b") as file:  # noqa: PTH123
            file.truncate(size_bytes)
            return Segment(0, file.fileno(), size_bytes, is_written=False)

    segments = [mapped(1 << 16) for _ in range(5)]
    for segment in segments:
        for offset in (0, 1, (1 << 16) - 1):
            assert mapping_at(segment.address + offset).address == segment.address
    address = segments[2].address
    told = []
    mapping_at(address).before_unmap(lambda: told.append(mapping_at(address)))
    del segments[2], segment
    gc.collect()
    assert told == [], "nothing happens in a finaliser"
    assert mapping_at(1) is None
    assert told == [None]
    assert mapping_at(address) is None or mapping_at(address).address != address
    assert mapping_at(1) is None

import fcntl
import os
import struct
import sys

import pytest

from fkat_data.transport import record_locks


@pytest.fixture
def descriptors(tmp_path):
    """Two open files of one file."""
    found = [os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    yield found
    for descriptor in found:
        os.close(descriptor)


def test_each_system_gets_the_fields_in_its_own_order(descriptors, monkeypatch):
    given = []

    def record(_, command, packed):
        given.append((command, packed))
        return packed

    monkeypatch.setattr(fcntl, "fcntl", record)
    for system, layout, fields in (
        ("linux", "@hhqqi0q", (fcntl.F_WRLCK, 0, 1 << 40, 1, 0)),
        ("darwin", "@qqihh", (1 << 40, 1, 0, fcntl.F_WRLCK, 0)),
    ):
        monkeypatch.setattr(sys, "platform", system)
        record_locks.lock_byte(descriptors[0], fcntl.F_WRLCK, 1 << 40)
        assert given.pop() == (fcntl.F_OFD_SETLK, struct.pack(layout, *fields))
        assert record_locks.holder_pid(descriptors[0]) is None  # process 0 holds nothing

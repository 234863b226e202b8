import errno
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


def test_a_lock_belongs_to_the_open_file_and_covers_one_byte(descriptors):
    first, second = descriptors
    record_locks.lock_byte(first, fcntl.F_RDLCK, 7)
    record_locks.lock_byte(second, fcntl.F_RDLCK, 7)
    record_locks.lock_byte(second, fcntl.F_WRLCK, 8)
    with pytest.raises(OSError, match=r".") as caught:
        record_locks.lock_byte(first, fcntl.F_WRLCK, 7)
    assert caught.value.errno in (errno.EAGAIN, errno.EACCES)
    record_locks.lock_byte(second, fcntl.F_UNLCK, 7)
    record_locks.lock_byte(first, fcntl.F_WRLCK, 7)


def test_a_system_without_such_locks_says_so(descriptors, monkeypatch):
    monkeypatch.delattr(fcntl, "F_OFD_SETLK")
    with pytest.raises(OSError, match=r".") as caught:
        record_locks.lock_byte(descriptors[0], fcntl.F_RDLCK, 7)
    assert caught.value.errno == errno.ENOSYS


def test_the_process_that_holds_a_lock_is_named(descriptors, processes):
    assert record_locks.holder_pid(descriptors[0]) is None
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        fcntl.lockf(descriptors[1], fcntl.LOCK_EX)
        os.write(writing, b"1")
        os.read(os.pipe()[0], 1)
    os.read(reading, 1)
    try:
        assert record_locks.holder_pid(descriptors[0]) == pid
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    assert record_locks.holder_pid(descriptors[0]) is None


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

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fkat_data.errors import MemoryLimitError
from fkat_data.transport.anonymous import anonymous_file, anonymous_memory
from fkat_data.transport.segment import Segment


@pytest.fixture(params=["as it is", "without memfd"])
def _either_way(request, monkeypatch):
    if request.param == "without memfd":
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.delattr(os, "posix_fallocate", raising=False)


pytestmark = pytest.mark.usefixtures("_either_way")


def names():
    return {path.name for folder in ("/dev/shm", tempfile.gettempdir()) for path in Path(folder).glob("fkat_data-*")}


def test_memory_is_shared_has_no_name_and_is_inherited_by_no_program():
    before = names()
    descriptor = anonymous_memory(100_000)
    try:
        assert names() == before
        assert not os.get_inheritable(descriptor)
        one, other = (Segment(0, descriptor, 100_000, is_written=True) for _ in range(2))
    finally:
        os.close(descriptor)
    one.array[:] = np.arange(100_000, dtype=np.uint8)
    assert (other.array == one.array).all()


def test_a_file_is_written_and_read_and_has_no_name():
    before = names()
    descriptor = anonymous_file()
    try:
        assert os.fstat(descriptor).st_nlink == 0 or names() == before
        assert not os.get_inheritable(descriptor)
        assert os.write(descriptor, b"text") == 4
        assert os.pread(descriptor, 10, 0) == b"text"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_memory_that_cannot_be_had_is_an_error_and_leaves_no_descriptor(monkeypatch, nothing_left_behind, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    for name in ("posix_fallocate", "ftruncate"):
        monkeypatch.setattr(os, name, refuse, raising=False)
    with pytest.raises(OSError if number == errno.EIO else MemoryLimitError):
        anonymous_memory(100_000)

"""Directories that a process cannot write to, in the ways that a machine permits; also to a user who may do all."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from forks import in_child

_C = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _BIND, _READ_ONLY, _REMOUNT, _PRIVATE = 0x20000, 0x1000, 0x1, 0x20, (1 << 18) | 0x4000
_NOBODY = 65534


def _call(function, *arguments):
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _mount(directory):
    """Mount a directory over itself, to be read only, for this process alone."""
    path = os.fsencode(directory)
    _call(_C.unshare, _NEW_MOUNTS)
    _call(_C.mount, b"none", b"/", None, _PRIVATE, None)
    _call(_C.mount, path, path, None, _BIND, None)
    _call(_C.mount, b"none", path, None, _BIND | _REMOUNT | _READ_ONLY, None)


@contextlib.contextmanager
def mounted(cache):
    def tried():
        _mount(cache)
        return not os.access(cache, os.W_OK)

    if in_child(tried) != 0:
        pytest.skip("needs leave to mount")
    yield lambda: _mount(cache)


@contextlib.contextmanager
def immutable(cache):
    paths = [cache, *cache.rglob("*")]
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", *paths], check=False, capture_output=True).returncode:  # fmt: skip
        subprocess.run(["chattr", "-i", *paths], check=False, capture_output=True)
        pytest.skip("needs leave to make files immutable, and a file system that can")
    try:
        yield lambda: None
    finally:
        subprocess.run(["chattr", "-i", *paths], check=True)


@contextlib.contextmanager
def of_another_user(cache):
    """A directory of root that everybody may read, and a process of nobody."""
    if os.geteuid() != 0:
        pytest.skip("needs to be root")
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield lambda: os.setuid(_NOBODY)


@contextlib.contextmanager
def with_bookkeeping_of_another_user(cache):
    """A directory whose bookkeeping only root may read, and a process of nobody."""
    if os.geteuid() != 0:
        pytest.skip("needs to be root")
    os.chown(cache, _NOBODY, _NOBODY)
    own = cache / ".fkat_data"
    own.mkdir(exist_ok=True)
    own.chmod(0o700)
    yield lambda: os.setuid(_NOBODY)


@contextlib.contextmanager
def with_a_file_for_bookkeeping(cache):
    shutil.rmtree(cache / ".fkat_data", ignore_errors=True)
    Path(cache / ".fkat_data").write_text("")
    yield lambda: None


WAYS_TO_WRITE_NOTHING = {
    "mounted": mounted,
    "immutable": immutable,
    "of_another_user": of_another_user,
    "with_bookkeeping_of_another_user": with_bookkeeping_of_another_user,
    "with_a_file_for_bookkeeping": with_a_file_for_bookkeeping,
}

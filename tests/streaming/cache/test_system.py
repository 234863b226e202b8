import errno
import os
import sys
import types

import psutil
import pytest

from fkat_data.streaming.cache.system import allocate, file_system_of, is_node_local


@pytest.mark.parametrize(
    ("name", "number", "is_local"),
    [
        ("ext4", 0xEF53, True),
        ("xfs", 0x58465342, True),
        ("btrfs", 0x9123683E, True),
        ("tmpfs", 0x01021994, True),
        ("overlayfs", 0x794C7630, True),
        ("zfs", 0x2FC12FC1, True),
        ("nfs", 0x6969, False),
        ("lustre", 0x0BD00BD0, False),
        ("gpfs", 0x47504653, False),
        ("ceph", 0x00C36400, False),
        ("beegfs", 0x19830326, False),
        ("smb2", 0xFE534D42, False),
        ("cifs", 0xFF534D42, False),
        ("fuse", 0x65735546, False),
        ("9p", 0x01021997, False),
        ("afs", 0x5346414F, False),
        ("unknown", 0x12345678, False),
    ],
)
def test_only_file_systems_that_one_machine_mounts_count_as_its_own(name, number, is_local):
    assert is_node_local(number) == is_local


def test_the_file_system_of_a_path_is_told(tmp_path):
    assert file_system_of(tmp_path) == file_system_of(tmp_path.parent) > 0
    assert file_system_of(tmp_path.__class__("/proc")) == 0x9FA0
    with pytest.raises(FileNotFoundError) as caught:
        file_system_of(tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none")


@pytest.mark.parametrize(("name", "is_local"), [("apfs", True), ("hfs", True), ("smbfs", False), ("nfs", False)])
def test_a_system_without_numbers_names_its_file_systems(tmp_path, monkeypatch, name, is_local):
    mounts = [("/", "other"), (str(tmp_path), name), (str(tmp_path / "deeper"), "other")]
    found = [types.SimpleNamespace(mountpoint=mount, fstype=kind) for mount, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: found)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert is_node_local(file_system_of(tmp_path)) == is_local
    with pytest.raises(FileNotFoundError):
        file_system_of(tmp_path / "none")


def test_room_is_reserved_without_a_change_of_size(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        allocate(descriptor, 0)
        allocate(descriptor, 1 << 20)
        found = os.fstat(descriptor)
        assert found.st_size == 0
        assert found.st_blocks * 512 in (0, *range(1 << 20, 2 << 20))
        with pytest.raises(OSError, match=r".") as caught:
            allocate(descriptor, 1 << 60)
        assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    finally:
        os.close(descriptor)


def test_what_is_no_file_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    descriptor = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(OSError, match="Illegal seek"):
            allocate(descriptor, 1)
    finally:
        os.close(descriptor)

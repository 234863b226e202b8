import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.errors import ShardCorruptError
from fkat_data.streaming.cache.paths import (
    BOOKKEEPING,
    files_below,
    files_in_the_making,
    opened_folder,
    parts_of,
    reserved_bytes,
)


@given(st.text(st.sampled_from("a./\0_-.é"), max_size=8))
def test_a_name_that_is_accepted_stays_below(name):
    try:
        parts = parts_of(name)
    except ShardCorruptError:
        return
    assert "/".join(parts) == name
    assert os.path.normpath(f"/root/{name}") == f"/root/{name}"
    assert "\0" not in name


@pytest.mark.parametrize("name", ["shard.00000.mds", "a/b/c.zstd", "-", "é/ü.mds", ".hidden/x", "with space", "a..b"])
def test_names_that_datasets_have_are_accepted(name):
    assert "/".join(parts_of(name)) == name


def test_a_folder_is_opened_below_a_directory_that_may_be_a_link_itself(tmp_path):
    (tmp_path / "real" / "x").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with opened_folder(tmp_path / "link", ["x"]) as folder:
        assert os.fstat(folder).st_ino == (tmp_path / "real" / "x").stat().st_ino
    with opened_folder(tmp_path / "link", ["x", "y", "z"], is_made=True):
        assert (tmp_path / "real" / "x" / "y" / "z").is_dir()
    with pytest.raises(FileNotFoundError), opened_folder(tmp_path / "link", ["none"]):
        pass


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_way_that_is_no_folder_is_refused(tmp_path, kind):
    (tmp_path / "outside").mkdir()
    if kind == "link":
        (tmp_path / "x").symlink_to(tmp_path / "outside")
    else:
        (tmp_path / "x").write_text("")
    for is_made in (False, True):
        with (
            pytest.raises(ShardCorruptError, match="symbolic link"),
            opened_folder(tmp_path, ["x", "y"], is_made=is_made),
        ):
            pass
    assert list((tmp_path / "outside").iterdir()) == []


def test_files_are_listed_without_links_and_without_those_of_another_cache(tmp_path):
    own = tmp_path / BOOKKEEPING
    for folder in (own / "making", own / "claims", tmp_path / "x" / "y", tmp_path / "apart"):
        folder.mkdir(parents=True)
    (own / "making" / "00ff.100").write_bytes(b"123")
    (own / "making" / "00fe.2").write_bytes(b"123")
    (own / "claims" / "a").write_bytes(b"1")
    (own / "recency").write_bytes(b"1" * 1000)
    (tmp_path / "x" / "y" / "a.mds").write_bytes(b"1234")
    (tmp_path / "apart" / "b.mds").write_bytes(b"12345")
    (tmp_path / "c.mds").symlink_to(tmp_path / "x" / "y" / "a.mds")
    (tmp_path / "d").symlink_to(tmp_path / "x")
    os.mkfifo(tmp_path / "pipe")
    found = {file.name: file.size_bytes for file in files_below(str(tmp_path))}
    assert found == {"x/y/a.mds": 4, "apart/b.mds": 5}
    making = {file.name: file.size_bytes for file in files_in_the_making(str(tmp_path))}
    assert making == {".fkat_data/making/00ff.100": 100, ".fkat_data/making/00fe.2": 3}
    (tmp_path / "apart" / BOOKKEEPING).mkdir()
    assert [file.name for file in files_below(str(tmp_path))] == ["x/y/a.mds"]
    assert list(files_below(str(tmp_path / "none"))) == []


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [("0f.12", 12), ("0f.0", 0), ("0f", 0), ("0f.x", 0), ("0f." + "9" * 30, 0), ("index.json", 0)],
)
def test_the_size_of_a_temporary_file_is_read_from_its_name(name, size_bytes):
    assert reserved_bytes(name) == size_bytes

import pytest
from cache_examples import leftovers_in, shards_in

from fkat_data.errors import ShardCorruptError
from fkat_data.streaming.cache.cache_directory import CacheDirectory
from fkat_data.streaming.cache.temporary import Temporary


@pytest.fixture
def directory(tmp_path):
    return CacheDirectory(tmp_path)


def write(file):
    file.write(b"12345")


def test_a_file_gets_its_name_when_it_is_whole(directory, tmp_path):
    with Temporary(directory, 5) as temporary:
        assert temporary.path.name.endswith(".5")
        temporary.fill("x/a.mds", write)
        assert shards_in(tmp_path) == []
        temporary.move_to("x/a.mds", is_synced=True)
    assert (tmp_path / "x" / "a.mds").read_bytes() == b"12345"
    assert leftovers_in(tmp_path) == []


@pytest.mark.parametrize("size_bytes", [4, 6])
def test_a_file_that_is_not_whole_is_removed(directory, tmp_path, size_bytes):
    with pytest.raises(ShardCorruptError, match="size in bytes"), Temporary(directory, size_bytes) as temporary:
        temporary.fill("a.mds", write)
    assert shards_in(tmp_path) == leftovers_in(tmp_path) == []


def test_whoever_cleans_up_leaves_it_to_its_living_maker(directory, tmp_path):
    with Temporary(directory, 5) as temporary:
        directory.sweep("making")
        assert len(leftovers_in(tmp_path)) == 1
        temporary.fill("a.mds", write)


def test_its_permissions_are_those_of_any_new_file(directory, tmp_path):
    (tmp_path / "other").write_bytes(b"")
    with Temporary(directory, 5) as temporary:
        temporary.fill("a.mds", write)
        temporary.move_to("a.mds", is_synced=False)
    assert (tmp_path / "a.mds").stat().st_mode == (tmp_path / "other").stat().st_mode

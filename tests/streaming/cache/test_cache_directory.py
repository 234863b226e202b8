import errno
import os
import pickle
import stat
import time

import pytest
from cache_examples import cache_in, content, get

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.cache import cache_directory as module
from fkat_data.streaming.cache.cache_directory import CacheDirectory, danger_of, directory_on_node

LUSTRE, EXT4 = 0x0BD00BD0, 0xEF53


@pytest.mark.parametrize(
    ("owner", "mode", "user", "danger"),
    [
        (1000, 0o700, 1000, None),
        (1000, 0o755, 1000, None),
        (1000, 0o775, 1000, None),
        (0, 0o755, 1000, None),
        (1000, 0o700, 0, None),  # root in a container, over the directory of who started it
        (0, 0o1777, 1000, None),
        (1000, 0o1777, 1000, None),
        (1001, 0o755, 1000, "user 1001"),
        (1001, 0o1777, 1000, "user 1001"),
        (1000, 0o777, 1000, "sticky"),
        (0, 0o777, 1000, "sticky"),
        (1000, 0o702, 0, "sticky"),
    ],
)
def test_a_directory_in_which_others_may_replace_files_is_dangerous(owner, mode, user, danger):
    found = danger_of(owner, stat.S_IFDIR | mode, user)
    assert found is None if danger is None else danger in found


def test_what_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="a directory"):
        CacheDirectory(tmp_path / "file")
    assert "not a directory" in danger_of(0, stat.S_IFLNK | 0o777, 0)


def test_a_link_to_a_directory_is_that_directory(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    path = get(cache_in(tmp_path / "cache"), "a.mds", 10)
    assert path == tmp_path / "cache" / "a.mds"
    assert (tmp_path / "disk" / "a.mds").exists()


def test_a_link_in_the_place_of_the_caches_own_files_is_refused(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".fkat_data").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigurationError, match=r"\.fkat_data.*not a directory"):
        CacheDirectory(tmp_path / "cache")


@pytest.mark.parametrize(
    ("directory", "file_system", "host", "expected"),
    [
        ("/data/cache", EXT4, "gpu-1", "/data/cache"),
        ("/data/cache", LUSTRE, "gpu-1", "/data/cache/.node-gpu-1"),
        ("/data/cache/.node-gpu-1", LUSTRE, "gpu-1", "/data/cache/.node-gpu-1"),
        ("/data/cache/.node-gpu-2", LUSTRE, "gpu-1", "/data/cache/.node-gpu-2/.node-gpu-1"),
        ("/data/cache", 0x12345678, "../a b", "/data/cache/.node-.._a_b"),
        ("/data/cache", 0x12345678, "", "/data/cache/.node-unnamed"),
    ],
)
def test_where_other_nodes_see_the_directory_each_has_a_folder_of_its_own(directory, file_system, host, expected):
    from pathlib import Path

    assert directory_on_node(Path(directory), file_system, host) == Path(expected)


def test_on_a_file_system_of_many_nodes_files_are_in_the_nodes_folder(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "file_system_of", lambda path: LUSTRE)
    monkeypatch.setattr(module.platform, "node", lambda: "gpu-1")
    cache = cache_in(tmp_path / "cache", 1000)
    assert cache.directory == tmp_path / "cache" / ".node-gpu-1"
    assert get(cache, "a.mds", 10) == tmp_path / "cache" / ".node-gpu-1" / "a.mds"
    assert get(pickle.loads(pickle.dumps(cache)), "a.mds", 10).exists()
    assert "not on a disk of this machine" in caplog.text


def test_a_read_only_directory_of_many_nodes_is_used_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "a.mds").write_bytes(content("a.mds", 10))
    monkeypatch.setattr(module, "file_system_of", lambda path: LUSTRE)

    def read_only(path, *arguments, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patched:
        patched.setattr("os.mkdir", read_only)
        cache = cache_in(tmp_path / "cache")
    assert get(cache, "a.mds", 10) == tmp_path / "cache" / "a.mds"


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def unsupported(descriptor, kind):
        raise OSError(95, "Operation not supported")

    for flock in (unsupported, lambda descriptor, kind: None):
        monkeypatch.setattr("fcntl.flock", flock)
        with pytest.raises(ConfigurationError, match="flock"):
            CacheDirectory(tmp_path / "cache")


def test_looking_costs_little(tmp_path):
    cache = cache_in(tmp_path / "cache")
    get(cache, "a.mds", 10)
    best_s = 1.0
    for _ in range(5):
        started_s = time.perf_counter()
        for _ in range(200):
            cache.has("a.mds", 10)
            cache.touch("a.mds")
        best_s = min(best_s, (time.perf_counter() - started_s) / 200)
    assert best_s < 1e-3  # measured: 12e-6


def test_files_of_others_do_not_count_where_everybody_may_write(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)
    (tmp_path / "cache" / "a.mds").write_bytes(b"1")
    assert CacheDirectory(tmp_path / "cache").has("a.mds", 1)
    os.chown(tmp_path / "cache" / "a.mds", 12345, 12345)
    assert not CacheDirectory(tmp_path / "cache").has("a.mds", 1)
    (tmp_path / "cache").chmod(0o755)
    assert CacheDirectory(tmp_path / "cache").has("a.mds", 1)

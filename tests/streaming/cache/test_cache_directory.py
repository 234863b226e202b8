import errno
import os
import pickle

import pytest
from cache_examples import cache_in, content, get

from fkat_data.errors import ConfigurationError

LUSTRE = 0x0BD00BD0
#: What a machine of the tests cannot have.
FILE_SYSTEM_OF = "fkat_data.streaming.cache.cache_directory.file_system_of"


def test_what_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="a directory"):
        cache_in(tmp_path / "file")


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
        cache_in(tmp_path / "cache")


def test_on_a_file_system_of_many_nodes_files_are_in_the_nodes_folder(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(FILE_SYSTEM_OF, lambda path: LUSTRE)
    monkeypatch.setattr("platform.node", lambda: "gpu-1")
    cache = cache_in(tmp_path / "cache", 1000)
    assert cache.directory == tmp_path / "cache" / ".node-gpu-1"
    assert cache_in(cache.directory).directory == cache.directory
    assert get(cache, "a.mds", 10) == tmp_path / "cache" / ".node-gpu-1" / "a.mds"
    assert get(pickle.loads(pickle.dumps(cache)), "a.mds", 10).exists()
    assert "not on a disk of this machine" in caplog.text


def test_a_read_only_directory_of_many_nodes_is_used_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "a.mds").write_bytes(content("a.mds", 10))
    monkeypatch.setattr(FILE_SYSTEM_OF, lambda path: LUSTRE)

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
            cache_in(tmp_path / "cache")


def test_files_of_others_do_not_count_where_everybody_may_write(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)
    (tmp_path / "cache" / "a.mds").write_bytes(b"1")
    assert cache_in(tmp_path / "cache").has("a.mds", 1)
    os.chown(tmp_path / "cache" / "a.mds", 12345, 12345)
    assert not cache_in(tmp_path / "cache").has("a.mds", 1)
    (tmp_path / "cache").chmod(0o755)
    assert cache_in(tmp_path / "cache").has("a.mds", 1)

"""The index of files that have none: kept whole, or made again, whatever happens to its maker."""

import os
import signal
import threading

import pytest
from parquet_examples import write_parquet

from fkat_data.errors import ShardCorruptError
from fkat_data.streaming import LocalDataset

DESCRIBE = "fkat_data.files.parquet.describe"


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for number in range(5):
        write_parquet(tmp_path / "data" / f"{number}.parquet", range(10), [5, 5], ("number",))
    return tmp_path / "data"


@pytest.fixture
def kept(tmp_path):
    return tmp_path / "xdg" / "fkat_data" / "indices"


def is_right(data):
    return [sample["number"] for sample in LocalDataset(data)] == [*range(10)] * 5


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: b"", lambda text: text.replace(b"5", b"6", 9)])
def test_a_kept_index_that_is_damaged_is_made_again(data, kept, monkeypatch, damage):
    assert is_right(data)
    (path,) = kept.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert is_right(data)
    assert path.read_bytes() == whole
    monkeypatch.setattr(DESCRIBE, None)  # nothing is described again
    assert is_right(data)


@pytest.mark.parametrize("at", [DESCRIBE, "os.fsync"])
def test_a_maker_that_is_killed_leaves_nothing_that_misleads(data, kept, monkeypatch, processes, at):
    pid = os.fork()
    if not pid:

        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()

        monkeypatch.setattr(at, die)
        LocalDataset(data)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert is_right(data)
    left = list(kept.glob("*.tmp"))
    assert len(left) == (at == "os.fsync")
    for path in left:
        os.utime(path, (1, 1))
    os.utime(data / "0.parquet", ns=(1, 1))
    assert is_right(data)
    assert not list(kept.glob("*.tmp"))


def test_the_first_damaged_file_is_named_and_nothing_is_kept(data, kept):
    for number in (1, 3):
        (data / f"{number}.parquet").write_bytes(b"PAR1, torn")
    with pytest.raises(ShardCorruptError, match=r"/data/[13]\.parquet"):
        LocalDataset(data)
    assert not list(kept.glob("*"))

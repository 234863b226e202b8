import os

import pytest
import torch.distributed as dist

from fkat_data.runtime.distributed import RankValue, first_value, job_store, known_value

STORES = {
    "file": lambda folder: dist.FileStore(str(folder / "store"), 1),
    "tcp": lambda _: dist.TCPStore("127.0.0.1", 0, 1, is_master=True),
}


@pytest.fixture(params=STORES)
def group(request, tmp_path, processes):
    dist.init_process_group("gloo", store=STORES[request.param](tmp_path), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_without_a_process_group_nothing_is_shared():
    assert job_store() is None
    assert first_value("key", "value") is None
    assert known_value("key") is None


def test_the_first_value_of_a_key_stays(group):
    assert known_value("a key") is None
    assert first_value("a key", "a value\nwith lines") == RankValue(0, "a value\nwith lines")
    assert first_value("a key", "another") == known_value("a key") == RankValue(0, "a value\nwith lines")
    assert first_value("another key", "another") == RankValue(0, "another")


def test_a_fork_of_a_rank_leaves_its_connection_alone(group):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if job_store() is None and first_value("key", "value") is None else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert known_value("key") is None
    assert job_store() is not None

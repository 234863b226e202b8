import pytest
from proxy import FaultServer, fault

from fkat_data.streaming.store import open_store

NAME = "shard.00000.mds"


@pytest.mark.parametrize("name", ["b", "b/c", "b c?#%.bin"])
@pytest.mark.parametrize("query", ["", "?sig=1%2F2&x=y"])
def test_a_name_is_put_below_the_directory_and_the_query_goes_along(processes, tmp_path, name, query):
    path = tmp_path / "a" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"content")
    with FaultServer(tmp_path) as server:
        for directory in ("/a", "/a/"):
            store = open_store(server.url + directory + query, storage_options=None, num_retries=0, timeout_s=5.0)
            assert store.read(name, 10)[0] == b"content"
            store.close()


@pytest.mark.parametrize("status", [405, 501])
def test_a_server_without_head_is_asked_by_get(through, status):
    store, faulty = through("web-nginx", {f"HEAD {NAME}": [fault("status", status=status)]}, timeout_s=20.0)
    assert store.version(NAME) == store.read(NAME, 1 << 20)[1] != ""
    assert faulty.ranges[NAME] == ["bytes=0-0", None]

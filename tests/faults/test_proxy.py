"""What the tests of stores rest on: faults come when and where they were asked for."""

import urllib.error
import urllib.request

import pytest
from proxy import FaultServer, RandomPlan, fault


def get(server, name, **headers):
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/{name}", headers=headers), timeout=10) as answer:
        return answer.read()


@pytest.mark.usefixtures("processes")
def test_a_script_is_followed_and_counted(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "b").write_bytes(b"other")
    plan = {"a": [fault("status", status=503, retry_after=7), fault("flip", after=0.0), fault("other", name="b"), None]}
    with FaultServer(tmp_path, plan) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(server, "a")
        with caught.value as error:
            assert (error.code, error.headers["Retry-After"]) == (503, "7")
        assert get(server, "a") == b"\xcf123456789"
        assert get(server, "a") == b"other"
        assert get(server, "a", Range="bytes=3-5") == b"345"
        assert get(server, "b") == b"other"
        assert (server.count("a"), server.count("b"), server.count("a", "HEAD")) == (4, 1, 0)
        assert server.ranges["a"] == [None, None, None, "bytes=3-5"]


@pytest.mark.usefixtures("processes")
def test_a_server_that_is_down_resets_connections(tmp_path):
    (tmp_path / "a").write_bytes(b"here")
    with FaultServer(tmp_path) as server:
        server.down()
        with pytest.raises(OSError, match="reset"):
            get(server, "a")
        server.down(False)
        assert get(server, "a") == b"here"


def test_chance_is_the_same_for_the_same_seed():
    def drawn(seed):
        plan = RandomPlan(seed, 0.3)
        return [plan.get(f"{name}", attempt) for name in range(100) for attempt in range(5)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 100 < sum(found is not None for found in drawn(1)) < 200

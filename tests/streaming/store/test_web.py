import pytest
from proxy import fault
from stored_files import CONTENTS

from fkat_data.streaming.store.web import _joined

NAME = "shard.00000.mds"


@pytest.mark.parametrize(
    ("url", "name", "joined"),
    [
        ("http://h/a", "b", "http://h/a/b"),
        ("http://h/a/", "b/c", "http://h/a/b/c"),
        ("http://h", "b", "http://h/b"),
        ("http://h/a?sig=1%2F2&x=y", "b", "http://h/a/b?sig=1%2F2&x=y"),
        ("http://h/a", "b c?#%.bin", "http://h/a/b%20c%3F%23%25.bin"),
    ],
)
def test_a_name_is_put_below_the_directory(url, name, joined):
    assert _joined(url, name) == joined


@pytest.mark.parametrize("status", [405, 501])
def test_a_server_without_head_is_asked_by_get(through, status):
    store, faulty = through("web-nginx", {f"HEAD {NAME}": [fault("status", status=status)]}, timeout_s=20.0)
    assert store.version(NAME) == store.read(NAME, 1 << 20)[1] != ""
    assert faulty.ranges[NAME] == ["bytes=0-0", None]


@pytest.mark.parametrize("way", ["web-directory", "s3-moto"])
def test_a_version_is_asked_for_again_too(through, way):
    plan = {f"HEAD {NAME}": [fault("status"), fault("reset_first")]}
    store, faulty = through(way, plan, timeout_s=20.0)
    assert store.version(NAME)
    assert faulty.count(NAME, "HEAD") == 3
    assert CONTENTS[NAME]

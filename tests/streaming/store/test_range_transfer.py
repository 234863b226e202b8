"""Ranges of files, through every client, from every server, with faults; and names and requests of web servers."""

import io

import pytest
from proxy import FaultServer, fault
from stored_files import CONTENTS, WAYS

from fkat_data.errors import DownloadError
from fkat_data.streaming.store import Origin, open_store

NAME = "shard.00000.mds"
CONTENT = CONTENTS[NAME]
SIZE_BYTES = len(CONTENT)
RANGES = ((0, 10), (100, 100), (1000, 90_000), (149_000, 150_000))
EXPECTED = b"".join(CONTENT[start:stop] for start, stop in RANGES)


def parts(store, version=None, ranges=RANGES, size_bytes=SIZE_BYTES):
    target = io.BytesIO()
    version = store.read_range(NAME, 5, 9, size_bytes=size_bytes, version="")[1] if version is None else version
    store.download_part(Origin(NAME, size_bytes, version, ranges), target)
    return target.getvalue()


@pytest.mark.parametrize("way", WAYS)
def test_ranges_arrive_one_after_another(through, way):
    store, faulty = through(way, timeout_s=20.0)
    assert parts(store) == EXPECTED
    assert faulty.count(NAME) == 4
    asked = [text.removeprefix("bytes=") for text in faulty.ranges[NAME]]
    assert asked == ["5-8", "0-9", "1000-89999", "149000-149999"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["status", "reset", "end", "no_range", "wrong_range", "xml", "longer", "other"])
def test_a_fault_costs_an_attempt_and_no_byte(through, way, kind):
    faults = [fault("call", function=lambda: None)] * 2
    settings = {"name": "shard.00001.mds"} if kind == "other" else {}
    store, _ = through(way, {NAME: [*faults, fault(kind, **settings)]}, timeout_s=20.0)
    assert parts(store) == EXPECTED


@pytest.mark.parametrize("way", ["web-nginx", "s3-moto", "web-directory"])
def test_another_version_is_an_error(through, way):
    store, _ = through(way, timeout_s=20.0, num_retries=1)
    with pytest.raises(DownloadError, match=r"replaced|412|bytes from 0"):
        parts(store, '"00000000000000000000000000000000"', ((5, 9),))
    with pytest.raises(DownloadError, match="replaced"):
        parts(store, "", size_bytes=len(CONTENT) + 1)


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

"""Every fault, through every client, from every server: the bytes are right, after so many requests, or it is said."""

import contextlib
import time

import pytest
from patience import unless_held_up
from proxy import KINDS, fault
from stored_files import CONTENTS, WAYS, fetch, info_of

from fkat_data.errors import DownloadError, ShardNotFoundError

NAME = "shard.00000.mds"
#: How many requests it takes; where nothing is said, 2.
NUM_REQUESTS = {"latency": 1, "bandwidth": 1, "no_range": 1, "gzip": 1, "call": 1}
#: Each client once, and each other server, where the whole table would say nothing more.
FEWER_WAYS = ("web-nginx", "s3-moto", "s3-s3rver")
SLOW = {"stall_first", "stall", "trickle"}
SETTINGS = {
    "bandwidth": {"bytes_per_s": 2_000_000},
    "other": {"name": "shard.00001.mds"},
    "call": {"function": lambda: None},
}


def fault_of(kind, **settings):
    return fault(kind, **SETTINGS.get(kind, {}), **settings)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@unless_held_up
def test_one_fault_costs_one_attempt_at_most(through, tmp_path, kind, way):
    store, faulty = through(way, {NAME: [fault_of(kind)]}, timeout_s=1.0 if kind in SLOW else 20.0)
    assert fetch(store, tmp_path / "out") == CONTENTS[NAME]
    assert faulty.count(NAME) == NUM_REQUESTS.get(kind, 2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["reset", "end", "stall"])
@unless_held_up
def test_what_has_arrived_is_not_fetched_again(through, tmp_path, kind, way):
    plan = {NAME: [fault_of(kind, after=0.9), fault_of(kind)]}
    store, faulty = through(way, plan, timeout_s=1.0 if kind == "stall" else 20.0)
    assert store.has(NAME)  # clients take their time to start
    assert fetch(store, tmp_path / "out") == CONTENTS[NAME]
    first, *others = faulty.ranges[NAME]
    assert first is None
    starts = [int(asked.removeprefix("bytes=").removesuffix("-").partition("-")[0]) for asked in others]
    assert len(starts) == 2
    assert 0 < starts[0] <= starts[1] < len(CONTENTS[NAME])


@pytest.mark.parametrize("way", FEWER_WAYS)
@pytest.mark.parametrize("kind", ["wrong_range", "no_range", "xml", "flip", "other", "longer"])
def test_a_resume_that_gets_something_else_still_ends_right(through, tmp_path, kind, way):
    store, _ = through(way, {NAME: [fault("reset"), fault_of(kind)]}, timeout_s=20.0)
    assert fetch(store, tmp_path / "out") == CONTENTS[NAME]


ENDLESS = {
    "status": "503",
    "reset": "bytes|reset|error|body",
    "xml": "bytes",
    "flip": "sha256",
    "other": "bytes",
    "longer": "bytes",
    "stall_first": "timeout_s",
    "stall": "timeout_s",
    "trickle": "timeout_s",
}


@pytest.mark.parametrize("way", FEWER_WAYS)
@pytest.mark.parametrize("kind", ENDLESS)
@unless_held_up
def test_a_fault_that_stays_is_an_error_that_names_every_attempt(through, tmp_path, kind, way):
    is_slow = kind in SLOW
    faults = [fault_of(kind, after=0.0)] if kind in ("reset", "stall", "trickle") else [fault_of(kind)]
    store, faulty = through(
        way, {NAME: faults}, forever=True, timeout_s=0.4 if is_slow else 20.0, num_retries=1 if is_slow else 2
    )
    for _ in range(20):  # clients take their time to start
        with contextlib.suppress(DownloadError):
            assert store.has("shard.00001.mds")
            break
    with pytest.raises(DownloadError, match=ENDLESS[kind]) as caught:
        fetch(store, tmp_path / "out")
    assert caught.value.num_attempts == (2 if is_slow else 3)
    # Where time is short, a request may not even have been sent.
    assert faulty.count(NAME) <= 2 if is_slow else faulty.count(NAME) == 3
    assert NAME in str(caught.value)
    assert (tmp_path / "out").stat().st_size <= len(CONTENTS[NAME])


@pytest.mark.parametrize("way", WAYS)
def test_what_is_missing_is_found_missing_at_once(through, tmp_path, way):
    store, faulty = through(way)
    with pytest.raises(ShardNotFoundError, match="no\\.mds"):
        fetch(store, tmp_path / "out", "no.mds", info=info_of(NAME))
    assert faulty.count("no.mds") == 1
    assert not store.has("no.mds")
    assert store.has(NAME)


@pytest.mark.parametrize("way", WAYS)
def test_a_small_file_comes_with_its_version_which_changes_with_it(through, way):
    store, faulty = through(way, {NAME: [fault("reset")]})
    content, version = store.read(NAME, 1 << 20)
    assert content == CONTENTS[NAME]
    assert version == store.version(NAME) != ""
    assert store.version("shard.00001.mds") != version
    assert faulty.count(NAME) == 2
    with pytest.raises(DownloadError, match="at most 1,000"):
        store.read(NAME, 1000)


@pytest.mark.parametrize("way", ["web-directory", "s3-moto"])
@unless_held_up
def test_a_server_that_asks_for_time_gets_it(through, tmp_path, way):
    plan = {NAME: [fault("status", status=429, retry_after=1)]}
    store, _ = through(way, plan, timeout_s=5.0)
    started_at = time.monotonic()
    assert fetch(store, tmp_path / "out") == CONTENTS[NAME]
    assert time.monotonic() - started_at >= 1.0

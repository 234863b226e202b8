import json
import os
import signal
import time

import pytest
import torch
from interpreters import run_python
from loader_examples import epoch, make, mixed
from walks import both_modes, wait_until

from fkat_data.errors import ConfigurationError


def named(events, name):
    return [event for event in events if event["name"] == name]


def tracks(events):
    """The spans of each track of each process."""
    found = {}
    for event in events:
        if event["ph"] == "X":
            found.setdefault((event["pid"], event["tid"]), []).append(event)
    return found


@both_modes
def test_trainer_and_workers_are_drawn_on_one_clock(multiprocessing, tmp_path):
    def factory(shard):
        for index in range(5):
            time.sleep(0.005)
            yield torch.full((1000,), index)

    path = tmp_path / "run.json"
    before_us = 1e6 * time.perf_counter()
    options = {"num_shard_prefetches": 2} if multiprocessing else {}
    with make(["a", "b", "c"], factory, multiprocessing=multiprocessing, trace=path, **options) as loader:
        for _ in loader:
            time.sleep(0.002)
        expected_waited_s = loader.statistics().waited_s
    events = json.loads(path.read_text())
    spans = [event for event in events if event["ph"] == "X"]
    assert all(before_us <= span["ts"] <= 1e6 * time.perf_counter() and span["dur"] >= 0 for span in spans)
    assert {event["args"]["shard"] for event in named(events, "build")} == {"'a'", "'b'", "'c'"}
    assert len(named(events, "step")) == 15
    assert len(named(events, "next")) == 16
    produced = named(events, "produce")
    assert len(produced) >= 15
    assert sum(span["dur"] for span in produced) >= 15 * 5e3
    assert sum(span["dur"] for span in named(events, "wait")) == pytest.approx(1e6 * expected_waited_s, rel=0.1)
    assert named(events, "encode")
    processes = {event["pid"]: event["args"]["name"] for event in named(events, "process_name")}
    assert processes.pop(os.getpid()) == "trainer"
    assert sorted(processes.values()) == (["worker 0", "worker 1"] if multiprocessing else [])
    assert named(events, "epoch 0 ends")[0]["args"]["delivered"] == 15
    assert "the trainer waited" in named(events, "epoch 0 ends")[0]["args"]["verdict"]
    assert named(events, "microbatches ready")


@both_modes
def test_spans_of_a_track_follow_or_contain_each_other(multiprocessing, tmp_path):
    path = tmp_path / "run.json"
    with make(multiprocessing=multiprocessing, trace=path) as loader:
        epoch(loader)
        epoch(loader)
    for track in tracks(json.loads(path.read_text())).values():
        open_until = []
        for span in sorted(track, key=lambda span: (span["ts"], -span["dur"])):
            while open_until and open_until[-1] <= span["ts"] + 0.2:  # written to a tenth of a microsecond
                open_until.pop()
            assert not open_until or span["ts"] + span["dur"] <= open_until[-1] + 0.2
            open_until.append(span["ts"] + span["dur"])


def slow_to_close(shard):
    """A shard that takes longer to close than a loader waits for the last events."""
    try:
        yield from (torch.full((1000,), index) for index in range(1000))
    finally:
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("shard", "factory"),
    [("list-a-100000", mixed), ("a", slow_to_close)],
    ids=["many items to free", "slow to close"],
)
def test_what_workers_do_is_drawn_up_to_the_end(remote, shard, factory, tmp_path):
    path = tmp_path / "run.json"
    with remote([shard], factory, trace=path) as loader:
        next(iter(loader))
        # Longer than a worker ever waits for a segment on its way back: it has run out of room, and stays there.
        wait_until(lambda: loader.statistics().blocked_s >= 0.5)
        closed_us = 1e6 * time.perf_counter()
    ends = [span["ts"] + span["dur"] for span in json.loads(path.read_text()) if span["name"] == "blocked"]
    assert max(ends) >= closed_us


SCRIPT = """
import os, signal, sys, time, torch
from fkat_data import ShardedDataLoader
def factory(shard):
    for index in range(1000):
        time.sleep(0.002)
        yield torch.full((1000,), index or os.getpid())
loader = ShardedDataLoader(0, ["a"], factory, max_worker_restarts=1, trace=sys.argv[1])
for index, microbatch in enumerate(loader):
    if index == 0:
        worker = int(microbatch[0])
    if index == 400:
        os.kill(os.getpid() if sys.argv[2] == "trainer" else worker, signal.SIGKILL)
    if index == 900:
        break
"""


@pytest.mark.parametrize("victim", ["trainer", "worker"])
def test_a_killed_process_does_not_spoil_the_file(processes, victim, tmp_path):
    path = tmp_path / "run.json"
    run_python("-c", SCRIPT, path, victim, expected_code=-signal.SIGKILL if victim == "trainer" else 0)
    events = json.loads(path.read_text())
    assert len(named(events, "produce")) >= (100 if victim == "trainer" else 500)
    assert len({event["pid"] for event in named(events, "process_name")}) == (2 if victim == "trainer" else 3)


def test_a_file_that_vanishes_does_not_end_the_run(tmp_path, caplog):
    path = tmp_path / "run.json"
    loader = make(["list-a-5"], trace=path)
    path.unlink()
    assert len(epoch(loader)) == 5
    assert "ends here" in caplog.text
    assert not path.exists()


def test_a_loader_that_was_closed_goes_on_in_its_file(tmp_path):
    path = tmp_path / "run.json"
    loader = make(["list-a-3"], trace=path)
    for _ in range(2):
        epoch(loader)
        loader.close()
    events = json.loads(path.read_text())
    assert [len(named(events, f"epoch {index} ends")) for index in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("trace", ["", 3, "missing/run.json", "."])
def test_a_file_that_cannot_be_written_is_told_at_once(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="trace"):
        make(["list-a-3"], trace=trace)


@pytest.mark.long
def test_microbatches_come_too_fast_to_draw_them_all(tmp_path):
    path = tmp_path / "run.json"
    loader = make(["list-a-20000"], trace=path)
    began_s = time.perf_counter()
    assert len(epoch(loader)) == 20_000
    most = 2000 * (time.perf_counter() - began_s) + 100
    assert 1 < len(named(json.loads(path.read_text()), "produce")) < min(most, 19_000)


def test_a_second_loader_with_one_file_is_noticed(tmp_path, caplog):
    path = tmp_path / "run.json"
    loaders = [make([f"list-{name}-3"], trace=path) for name in "ab"]
    assert [len(epoch(loader)) for loader in loaders] == [3, 3]
    assert len({event["args"]["shard"] for event in named(json.loads(path.read_text()), "build")}) == 1
    assert "another loader or program writes to this file, too" in caplog.text


def test_the_file_may_be_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    make(["list-a-3"], trace="~/run.json").close()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]

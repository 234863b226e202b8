"""Ranks that share workers: random walks beside a loader in process, and ranks that are killed."""

import json
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
import shared_worker_ranks

from fkat_data.plan.position import Position, Task
from fkat_data.worker.messages import END, End
from fkat_data.worker.process.shared_worker import ProducerLink
from fkat_data.worker.process.shared_workers import SharedWorkers

PROGRAM = Path(shared_worker_ranks.__file__)


def run(prepared, number, folder, *arguments):
    done = prepared.run_ranks(number, PROGRAM, folder, *arguments, folder=folder)
    found = [folder / f"rank{rank}.json" for rank in range(number)]
    return done, [json.loads(path.read_text()) if path.exists() else None for path in found]


@pytest.mark.parametrize("seeds", ["1", pytest.param("2 3 4 5", marks=pytest.mark.slow)])
def test_ranks_that_share_workers_get_what_a_loader_in_process_gives_whatever_befalls_them(prepared, tmp_path, seeds):
    done, found = run(prepared, 2, tmp_path, *seeds.split())
    assert [rank.returncode for rank in done] == [0, 0], done[0].stderr + done[1].stderr
    assert found == [{"walked": len(shared_worker_ranks.KINDS) * len(seeds.split())}] * 2


def test_the_workers_of_the_first_rank_make_each_sample_once_for_all(prepared, tmp_path):
    done, found = run(prepared, 3, tmp_path, "none")
    assert all(rank.returncode == 0 for rank in done), done[0].stderr
    assert all(rank["equal"] and rank["delivered"] == 50 for rank in found), found
    # Each rank has made all of them in process, too.
    assert [(tmp_path / f"made-{rank}").stat().st_size for rank in range(3)] == [400, 200, 200]


def test_a_neighbour_that_is_killed_costs_the_others_nothing(prepared, tmp_path):
    _, found = run(prepared, 3, tmp_path, "last")
    assert found[2] is None
    assert all(rank["equal"] and rank["delivered"] == 50 and "error" not in rank for rank in found[:2]), found


def test_a_rank_that_is_late_is_named_and_waited_for_where_memory_is_short(prepared, tmp_path):
    done, found = run(prepared, 3, tmp_path, "late")
    assert all(rank["equal"] and rank["delivered"] == 50 and "error" not in rank for rank in found), found
    assert found[0]["took_s"] > 2.5
    assert "rank 2 is" in done[0].stderr
    assert "microbatches behind this rank" in done[0].stderr


def test_a_rank_that_waits_too_long_for_the_first_one_says_so(prepared, tmp_path):
    _, found = run(prepared, 3, tmp_path, "asleep")
    assert found[0]["equal"]
    assert found[0]["delivered"] == 50
    for rank in found[1:]:
        assert rank["equal"]
        assert rank["delivered"] < 50
        assert "WorkerStalledError" in rank["error"]
        assert "rank 0, process" in rank["error"]


def test_where_the_first_rank_is_killed_the_others_say_so_again_and_again(prepared, tmp_path):
    _, found = run(prepared, 3, tmp_path, "first")
    assert found[0] is None
    for rank in found[1:]:
        assert rank["equal"]
        assert 5 <= rank["delivered"] < 50
        assert "rank 0 (process" in rank["error"]
        assert "has ended" in rank["error"]
        assert rank["again"] == rank["error"]


@contextmanager
def connected():
    ours, theirs = socket.socketpair()
    shared, link = SharedWorkers({1: ours}), ProducerLink(0, 1, theirs)
    yield shared, link
    shared.close()
    link.close()


def task_of(index, task_id=7):
    return Task(task_id, 0, index, None, 0)


@pytest.mark.with_processes
def test_what_the_first_rank_is_past_is_left_at_once(caplog):
    with connected() as (shared, link):
        position = Position(0, 0, 0, 0)
        for _ in range(2):
            shared.begin(position)
        link.begin(position)
        assert link.take(task_of(0), 0, 5.0) is None
        assert "past what comes next" in link.why_left
        assert "makes its own microbatches from here on, without rank 0" in caplog.text


@pytest.mark.with_processes
def test_another_position_is_left_at_once():
    with connected() as (shared, link):
        shared.begin(Position(0, 0, 3, 3))
        link.begin(Position(0, 0, 2, 2))
        assert link.take(task_of(0), 2, 5.0) is None
        assert "has begun at (0, 0, 3, 3), this one at (0, 0, 2, 2)" in link.why_left


@pytest.mark.with_processes
def test_an_end_comes_behind_the_last_number():
    with connected() as (shared, link):
        shared.begin(Position(0, 0, 0, 0))
        link.begin(Position(0, 0, 0, 0))
        link.begin_task(task_of(0))
        shared.forward(task_of(0), End(7, 0), None, 4)
        _, _, body = link.take(task_of(0), 0, 5.0)
        assert END.unpack(body)[1] == 0
        assert link.take(task_of(0), 1, 0.0) is None
        assert link.is_open

"""What the loader does about workers that die or fall silent, and about shards that fail: with real processes."""

import logging
import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from loader_examples import MIXED, epoch, make, mixed, plain, same_state, sample
from own_workers import own_template_pids, worker_pids
from patience import unless_held_up
from torch.utils.data import DataLoader
from walks import at_state, begun, wait_until

from fkat_data import ReplayMismatchError, WorkerDiedError, WorkerStalledError

RESTARTS = {"max_worker_restarts": 50}


def kill(index, number=signal.SIGKILL, pids_of=worker_pids):
    if pids := list(pids_of()):
        pid = pids[index % len(pids)]
        os.kill(pid, number)
        wait_until(lambda: pid not in pids_of())


@pytest.mark.parametrize(
    ("kills", "num_shards_ahead", "num_microbatches_ahead"),
    [
        ([(0, 0), (9, 0)], 0, 0),
        ([(3, 0), (3, 1)], 1, -1),
        ([(5, 1), (6, 2)], 2, 1),
    ],
    ids=["the first and the last microbatch", "all workers at once", "one after the other"],
)
def test_an_epoch_with_deaths_has_the_bits_of_one_without(remote, kills, num_shards_ahead, num_microbatches_ahead):
    expected = epoch(make())
    found, states = [], []
    options = {"num_shard_prefetches": num_shards_ahead, "num_microbatch_prefetches": num_microbatches_ahead}
    with remote(**RESTARTS, **options) as loader, make() as undisturbed:
        for step, (microbatch, _) in enumerate(zip(loader, undisturbed, strict=True)):
            found.append(plain(microbatch))
            states.append(same_state(loader.state_dict(), undisturbed.state_dict()))
            for at, worker in kills:
                if at == step:
                    kill(worker)
        assert found == expected
        assert all(states)
        assert loader.statistics().delivered == len(expected)


def test_a_worker_killed_while_it_starts_is_replaced_too(own_template, remote):
    with remote(**RESTARTS) as loader:
        for _ in range(3):
            loader.load_batch()  # begins the epoch, and waits for nothing
            kill(0, pids_of=lambda: worker_pids() or own_template_pids())
        assert epoch(loader) == epoch(make())
        # Where a worker has handed over the end of the empty first shard, no call looks for its death before the epoch.
        assert 1 <= loader.statistics().worker_restarts <= 3


def test_kept_microbatches_of_a_dead_worker_stay_as_they_are(remote):
    def factory(shard):
        return [torch.full((5000,), index) for index in range(6)]

    with remote(["a"], factory, **RESTARTS) as loader:
        kept = []
        for index, microbatch in enumerate(loader):
            kept.append(microbatch)
            if index == 2:
                kill(0)
        assert [microbatch.unique().tolist() for microbatch in kept] == [[index] for index in range(6)]


def crashing(shard):
    for index in range(4):
        if shard == "b" and index == 2:
            sys.stderr.write("reading row 17\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
        yield torch.tensor(index)


def test_a_shard_that_kills_its_worker_twice_is_named_with_its_last_words(remote):
    with remote(["a", "b", "c"], crashing, **RESTARTS) as loader:
        found = []
        with pytest.raises(WorkerDiedError, match="after 1 restart in this epoch") as caught:
            found.extend(int(microbatch) for microbatch in loader)  # extend keeps nothing of what came before
        error = caught.value
        assert (error.shard, error.microbatch_index, error.exit_code) == ("b", 2, -signal.SIGSEGV)
        assert "reading row 17" in error.last_words
        assert "in crashing" in error.last_words  # the stack at the crash
        assert error.host
        assert loader.step == 6


def test_a_shard_that_kills_its_worker_is_skipped_where_that_is_asked_for(remote, caplog):
    with remote(["a", "b", "c"], crashing, on_shard_error="skip", **RESTARTS) as loader:
        with caplog.at_level(logging.WARNING):
            assert epoch(loader) == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]
        assert loader.statistics().skipped_shards == 1
        assert loader.statistics().worker_restarts == 2
        assert "skipping the rest of shard 'b'" in caplog.text


def test_no_more_workers_are_replaced_than_was_allowed_in_an_epoch(remote):
    with remote(["list-a-9"], max_worker_restarts=2, num_microbatch_prefetches=0) as loader:
        iterator = begun(loader, 1)
        for _ in range(2):
            kill(0)
            next(iterator)
            next(iterator)
        kill(0)
        with pytest.raises(WorkerDiedError, match="after 2 restarts in this epoch"):
            list(iterator)


GENERATOR = random.Random()


class Unrepeatable:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((3,), GENERATOR.random())


def test_a_restart_that_is_not_provably_equal_is_an_error(remote):
    options = {**RESTARTS, "num_microbatch_prefetches": 1, "on_shard_error": "skip"}
    with remote(["a"], lambda shard: DataLoader(Unrepeatable()), **options) as loader:
        iterator = begun(loader, 2)
        kill(0)
        with pytest.raises(ReplayMismatchError, match="differs from the one delivered before"):
            list(iterator)


def test_what_a_worker_writes_to_stderr_appears_on_the_trainers_and_much_does_not_hold_it_up(run_script):
    done = run_script("""
import sys, time
from fkat_data import ShardedDataLoader
def factory(shard):
    for index in range(50):
        print("x" * 10_000, file=sys.stderr)
        yield index
with ShardedDataLoader(0, ["a"], factory) as loader:
    time.sleep(3)  # the trainer computes
    print(sum(loader))
""")
    assert done.stdout.strip() == "1225"
    assert done.stderr == ("x" * 10_000 + "\n") * 50


def test_a_dead_worker_is_buried_with_its_children_though_the_trainer_computes(remote):
    with remote(["nested-a-40"], num_microbatch_prefetches=1) as loader:
        next(iter(loader))
        pid = worker_pids()[0]
        children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
        assert len(children) >= 2
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{number}").exists() for number in (pid, *children)))


# --- shards that fail --------------------------------------------------------------------------------------------


def failing(shard):
    if shard.startswith("unopened"):
        raise OSError(f"{shard} is not there")
    for index in range(3):
        if shard.startswith("bad") and index == 1:
            raise ValueError("row 1 is bad")
        yield sample(shard, index)


@pytest.mark.parametrize(("multiprocessing", "num_shards_ahead"), [(False, 0), (True, 2)])
def test_failing_shards_are_left_out_and_nothing_else(multiprocessing, num_shards_ahead, caplog):
    shards = ["a", "bad-b", "unopened-c", "d", "bad-e"]
    options = {"multiprocessing": multiprocessing, "num_shard_prefetches": num_shards_ahead}
    with make(shards, failing, on_shard_error="skip", **options) as loader:
        assert [int(microbatch[1]) for microbatch in loader] == [0, 1, 2, 0, 0, 1, 2, 0]
        assert loader.statistics().skipped_shards == 3
        assert (loader.epoch, loader.step) == (1, 0)
        assert [int(microbatch[1]) for microbatch in loader] == [0, 1, 2, 0, 0, 1, 2, 0]
        assert loader.statistics().skipped_shards == 6
    assert caplog.text.count("skipping the rest of shard 'bad-b'") == 2


def test_skipping_has_a_bound_for_each_epoch_that_a_resume_does_not_reset():
    shards = ["bad-a", "bad-b", "good-c", "bad-d", "good-e"]
    options = {"on_shard_error": "skip", "max_skipped_shards": 2}
    loader = make(shards, failing, **options)
    begun(loader, 4)
    state = loader.state_dict()
    assert state["all_rank_skipped"] == ((0, 1),)
    resumed = at_state(make(shards, failing, **options), state)
    with pytest.raises(ValueError, match="row 1 is bad") as caught:
        list(resumed)
    assert any("2 shards of this epoch already were (max_skipped_shards)" in note for note in caught.value.__notes__)


def test_an_epoch_of_failures_alone_is_no_empty_epoch():
    with make(["unopened-a", "unopened-b"], failing, on_shard_error="skip") as loader:
        with pytest.raises(OSError, match="unopened-b is not there"):
            list(loader)
        assert loader.statistics().skipped_shards == 1


# --- workers that fall silent ------------------------------------------------------------------------------------


def holding_the_lock_in_c():
    sum(range(3 * 10**8))


def sleeping():
    time.sleep(60)


def computing():
    while True:
        sorted(range(50), key=abs)


@pytest.mark.parametrize(
    "fall_silent", [holding_the_lock_in_c, sleeping, computing], ids=["hanging", "sleeping", "computing"]
)
@unless_held_up
def test_a_silent_worker_is_reported_with_its_stack_and_at_last_ended(processes, fall_silent, caplog, tmp_path):
    caplog.clear()
    (tmp_path / "begun").unlink(missing_ok=True)

    def begun(shard):
        (tmp_path / "begun").touch()
        yield torch.tensor(0)
        fall_silent()
        yield torch.tensor(1)

    options = {"multiprocessing": True, "stall_warning_s": 0.25, "stall_timeout_s": 1.0}
    with make(["b"], begun, **options) as loader:
        loader.load_batch()
        wait_until((tmp_path / "begun").exists)  # its start is slower than that
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(WorkerStalledError, match=r"sent nothing for 1\.0 s") as caught,
        ):
            list(loader)
        warnings = [record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()]
        assert len(warnings) == 2
        assert "microbatch 1 of shard 'b'" in warnings[0] or "microbatch 0 of shard 'b'" in warnings[0]
        assert "is working on; tasks under way: 1, no microbatch is ready" in warnings[-1]
        for text in (warnings[-1], caught.value.stack):
            assert f"in {fall_silent.__name__}" in text
            assert "write_stacks" not in text


@unless_held_up
def test_a_stopped_worker_is_told_of_as_such_and_replaced_at_the_timeout(remote, caplog):
    options = {"stall_warning_s": 0.5, "stall_timeout_s": 4.0, "num_microbatch_prefetches": 0, **RESTARTS}
    with remote(["list-a-5"], **options) as loader:
        iterator = iter(loader)
        found = [plain(next(iterator))]
        os.kill(worker_pids()[0], signal.SIGSTOP)
        with caplog.at_level(logging.WARNING):
            found += [plain(microbatch) for microbatch in iterator]
        assert found == epoch(make(["list-a-5"]))
        assert "no Python stack: the process does not answer (state T (stopped))" in caplog.text
        assert loader.statistics().worker_restarts == 1


@unless_held_up
def test_a_slow_caller_is_no_stall(remote, caplog):
    with remote(MIXED, mixed, stall_warning_s=0.3, stall_timeout_s=5.0) as loader:
        iterator = begun(loader, 1)
        time.sleep(0.5)
        caplog.clear()
        for _ in range(3):
            time.sleep(0.4)
            next(iterator)
        assert "waiting for" not in caplog.text

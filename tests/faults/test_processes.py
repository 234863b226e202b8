"""Forks, threads, daemons and ways to close: each works, or is refused at once with the reason."""

import contextlib
import gc
import os
import signal
import sys
import threading
import time

import leavings
import psutil
import pytest
import torch
from own_workers import worker_pids
from patience import PATIENCE_S, check_in_time
from programs import still_alive
from torch.utils.data import DataLoader, Dataset
from walks import begun, both_modes, wait_until

from fkat_data import ConfigurationError, ShardedDataLoader, StaleIteratorError

#: A closing may wait a second for workers that hang, however many: five of them, one after the other, would take five.
CLOSED_S = 4.0
LOCK = threading.Lock()


def full(shard, count=40, size=20_000):
    """Microbatches that fill a segment each; the loader's pool has room for a dozen."""
    return (torch.full((size,), index, dtype=torch.float32) for index in range(count))


class Hanging(Dataset):
    """Two samples, and one that never comes."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 2:
            time.sleep(600)
        return torch.full((3000,), index)


def hanging(shard):
    return DataLoader(Hanging(), batch_size=None)


def test_segments_lent_before_forks_come_back_after_them(remote):
    with remote(["a", "b"], full, memory_limit_bytes=1 << 20) as loader:
        children, seen = [], []
        for number, microbatch in enumerate(loader):
            if number % 10 == 5:
                pid = os.fork()
                if pid == 0:
                    signal.pause()  # it holds what it inherited, until it is told to end
                    os._exit(0)
                children.append(pid)
            seen.append(int(microbatch[-1]))
        assert seen == [*range(40), *range(40)]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


FORKS = """
import gc, multiprocessing, os, signal, sys, time, threading
import torch
from torch.utils.data import DataLoader
from own_workers import worker_pids
from fkat_data import ShardedDataLoader

def load(shard):
    return (torch.full((3000,), index) for index in range(20))

loader = ShardedDataLoader(0, ["a", "b"], load, num_shard_prefetches=1)
"""


def test_a_child_of_multiprocessing_and_a_forking_data_loader_beside_the_loader_end_nothing_of_it(start):
    program = start(
        FORKS
        + """
def child(microbatch):
    global loader
    assert int(microbatch[0]) == 3
    del loader
    gc.collect()
    sys.exit(0)  # by the usual way, with finalisers and exit hooks

seen = []
for number, microbatch in enumerate(loader):
    seen.append(int(microbatch[0]))
    if number == 0:
        workers = worker_pids()  # now that one has come: a process that is not born after 5 s has its template's number
    if number == 3:
        process = multiprocessing.get_context("fork").Process(target=child, args=(microbatch,))
        process.start()
        process.join()
        assert process.exitcode == 0
        # As a validation within an epoch: workers forked from this process, ended before the epoch goes on.
        assert sorted(int(item) for item in DataLoader(range(8), batch_size=None, num_workers=2)) == list(range(8))
assert seen == [*range(20), *range(20)], seen
assert worker_pids() == workers
print("through", flush=True)
loader.close()
"""
    )
    program.expect("through")
    program.check_silent_end()


def test_a_forked_child_that_lives_on_keeps_no_worker_alive(start):
    program = start(
        FORKS
        + """
iterator = iter(loader)
next(iterator)
workers = worker_pids()
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), *workers, flush=True)
    signal.pause()
signal.pause()
"""
    )
    child, *workers = map(int, program.line().split())
    watched = [psutil.Process(pid) for pid in workers]
    program.below()
    program.kill()
    assert not still_alive(watched, 5.0)
    assert psutil.pid_exists(child), "it is the child that was to live on"
    os.kill(child, signal.SIGKILL)


def test_a_fork_of_a_loader_refuses_to_go_on_and_says_why(start):
    program = start(
        FORKS
        + """
iterator = iter(loader)
next(iterator)
pid = os.fork()
if pid == 0:
    for go_on in (lambda: next(iterator), lambda: next(iter(loader))):
        try:
            go_on()
        except Exception as error:
            print(type(error).__name__, "forked" in str(error) or "fork" in str(error), flush=True)
    loader.close()
    os._exit(0)
os.waitpid(pid, 0)
assert len(list(iterator)) == 39
print("through", flush=True)
loader.close()
"""
    )
    program.expect("RuntimeError True")
    program.expect("RuntimeError True")
    program.expect("through")
    program.check_silent_end()


def test_a_loader_runs_inside_a_daemonic_process(start):
    program = start(
        FORKS.replace('["a", "b"], load', '["a"], load')
        + """
def child():
    with ShardedDataLoader(0, ["a"], load) as own:
        assert multiprocessing.current_process().daemon
        assert len(list(own)) == 20
    # The second is left to the daemon's end.
    iterator = iter(ShardedDataLoader(0, ["a"], load))
    next(iterator)
    print("through", flush=True)

process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
process.start()
process.join()
print(process.exitcode, flush=True)
loader.close()
"""
    )
    program.expect("through")
    program.expect("0")
    program.check_silent_end()


# --- threads -----------------------------------------------------------------------------------------------------


def numbered(shard):
    return (torch.full((3000,), int(shard) + index) for index in range(10))


def test_loaders_in_several_threads_and_several_in_one_are_each_right(processes):
    received = {}

    def run(thread):
        loaders = [ShardedDataLoader(0, [str(1000 * thread + 100 * number)], numbered) for number in range(2)]
        pairs = zip(*loaders, strict=True)
        received[thread] = [(int(first[-1]), int(second[-1])) for first, second in pairs]
        for loader in loaders:
            loader.close()

    threads = [threading.Thread(target=run, args=(thread,)) for thread in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in (1, 2):
        assert received[thread] == [(1000 * thread + index, 1000 * thread + 100 + index) for index in range(10)]


def waiting(loader, take, caught):
    """A thread that waits for what never comes, and tells how that ended."""

    def run():
        try:
            take()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.native_id is None:
        time.sleep(0.001)
    asleep = 0
    task = psutil.Process(thread.native_id)
    while asleep < 5:  # in its wait, and nowhere else
        asleep = asleep + 1 if task.status() == psutil.STATUS_SLEEPING else 0
        time.sleep(0.01)
    return thread


@pytest.mark.parametrize("close", ["close", "teardown", "on_exception"])
@pytest.mark.parametrize("by", ["next", "load_batch_sync"])
def test_closing_from_another_thread_ends_a_wait_with_a_clear_error(remote, close, by):
    loader = remote(["a"], hanging)
    iterator = iter(loader)
    assert int(next(iterator)[0]) == 0
    take = iterator.__next__ if by == "next" else loader.load_batch_sync
    caught = []
    assert int(take()[0]) == 1
    thread = waiting(loader, take, caught)
    getattr(loader, close)(*([ValueError()] if close == "on_exception" else []))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [type(error) for error in caught] == [StaleIteratorError]
    assert "closed" in str(caught[0])
    with pytest.raises(StaleIteratorError):
        next(iterator)
    assert loader.state_dict()["all_rank_steps"] == [2]


@both_modes
def test_a_signals_handler_may_close_the_loader_that_waits_below_it(multiprocessing):
    is_closed = threading.Event()

    def load(shard):
        yield from (0, 1)
        is_closed.wait(PATIENCE_S)
        yield 2

    def close(*_):
        loader.close()
        is_closed.set()

    loader = ShardedDataLoader(0, ["a"], hanging if multiprocessing else load, multiprocessing=multiprocessing)
    before = signal.signal(signal.SIGUSR1, close)
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    try:
        iterator = iter(loader)
        next(iterator)
        timer.start()
        with pytest.raises(StaleIteratorError):
            list(iterator)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
        loader.close()


# --- closing -----------------------------------------------------------------------------------------------------


def test_closing_workers_that_all_hang_takes_no_longer_than_one(remote):
    def attempt():
        loader = remote(list("abcde"), hanging, num_shard_prefetches=5)
        iterator = iter(loader)
        next(iterator)
        workers = [psutil.Process(pid) for pid in worker_pids()]
        next(iterator)
        # Each has made its second microbatch and hangs.
        for worker in workers:
            wait_until(lambda: worker.status() == psutil.STATUS_SLEEPING)  # noqa: B023
        began_s = time.monotonic()
        loader.close()
        took_s = time.monotonic() - began_s
        assert not any(worker.is_running() for worker in workers)
        return took_s

    check_in_time(CLOSED_S, attempt)


def test_closing_again_and_again_in_every_state_is_no_error(remote):
    loader = remote(["0", "100"], numbered)
    for num_taken in (0, 1, 9, 10, 20):
        loader.close()
        loader.teardown("fit")
        begun(loader, num_taken)
        closers = [threading.Thread(target=loader.close) for _ in range(3)]
        for closer in closers:
            closer.start()
        loader.close()
        for closer in closers:
            closer.join(PATIENCE_S)
            assert not closer.is_alive()
        loader.on_exception(ValueError())


@pytest.mark.parametrize(
    "options",
    [
        {"device": "nowhere"},
        {"dp_rank": -1},
        {"memory_limit_bytes": 1},
        {"dataloader_factory": lambda shard: LOCK},
        {"shard_sampler": []},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_constructor_that_fails_leaves_nothing_and_says_nothing_else(options, capfd):
    options = {"seed": 0, "shard_sampler": ["0"], "dataloader_factory": numbered, **options}
    with pytest.raises(ConfigurationError):
        ShardedDataLoader(**options)
    gc.collect()
    assert capfd.readouterr().err == ""
    assert not leavings.processes()


def test_a_constructor_that_cannot_start_a_worker_leaves_none(remote, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(FileNotFoundError):
        remote(["0"], numbered, num_shard_prefetches=3)
    half_made = object.__new__(ShardedDataLoader)
    with contextlib.suppress(AttributeError):
        half_made.close()


def test_an_interpreter_ends_quickly_and_in_silence_with_the_iterator_alive_in_a_traceback(start):
    program = start(
        FORKS
        + """
def train():
    iterator = iter(loader)
    for microbatch in iterator:
        if int(microbatch[0]) == 5:
            1 // 0

try:
    train()
except ZeroDivisionError:
    kept = sys.exc_info()
print("end", flush=True)
"""
    )
    program.expect("end")
    program.below()
    program.check_silent_end(timeout_s=20.0)  # 2 s are promised, with torch's own end and other load it is more

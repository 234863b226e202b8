"""Failures: each arrives as itself, in its place in the order, and none of them ends in a hang."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest
import torch
from loader_examples import bounded, epoch, make
from own_workers import worker_pids
from patience import check_in_time
from torch.utils.data import DataLoader
from walks import at_state, begun, both_modes

from fkat_data import ConfigurationError, MemoryLimitError, WorkerDiedError


def told(error):
    return "\n".join([repr(type(error)), repr(error.args), *getattr(error, "__notes__", [])])


def test_a_product_that_is_not_iterable_is_refused_by_name():
    with (
        make(["a"], lambda shard: 5) as loader,
        pytest.raises(ConfigurationError, match="dataloader_factory = 5: expected something that returns an iterable"),
    ):
        next(iter(loader))


def test_a_loop_after_a_failure_before_anything_was_delivered_begins_the_epoch_again():
    def factory(shard):
        if shard == "bad":
            raise ValueError("closed today")
        return []

    loader = make(["empty", "bad"], factory)
    for _ in range(3):
        with pytest.raises(ValueError, match="closed today"):
            list(loader)
        assert loader.epoch == 0


def test_an_unpicklable_microbatch_is_an_error_of_its_place(remote):
    def factory(shard):
        return iter([torch.tensor(0), {"lock": threading.Lock()}, torch.tensor(2)])

    with remote(["a"], factory) as loader:
        iterator = begun(loader, 1)
        with pytest.raises(TypeError, match="pickle") as caught:
            next(iterator)
        assert "microbatch 1 of shard 'a'" in told(caught.value)


# --- MemoryError -------------------------------------------------------------------------------------------------


def test_a_microbatch_larger_than_the_limit_is_refused_with_numbers(remote):
    def factory(shard):
        return [torch.zeros(2 << 20, dtype=torch.uint8)]

    with (
        remote(["a"], factory, memory_limit_bytes=1 << 20) as loader,
        pytest.raises(
            MemoryLimitError,
            match="one microbatch needs 2,097,152 bytes of shared memory, more than the limit of 1,048,576: raise memory",
        ) as caught,
    ):
        next(iter(loader))
    assert "microbatch 0 of shard 'a'" in told(caught.value)


def hoard(loader):
    """Keep every microbatch; return those that were got before the limit was reached."""
    kept = []
    iterator = iter(loader)
    with pytest.raises(MemoryLimitError, match="the caller keeps"):
        kept.extend(iterator)
    return iterator, kept


NUM_HOARDED = 40


def hoarded(product, size=100_000):
    def factory(shard):
        def sample(index):
            return torch.full((size,), index, dtype=torch.uint8)

        if product == "map":
            return DataLoader([sample(index) for index in range(NUM_HOARDED)], batch_size=None)
        return (sample(index) for index in range(NUM_HOARDED))

    return factory


@pytest.mark.parametrize(("product", "num_microbatches_ahead"), [("map", 1), ("stream", -1)])
def test_a_caller_who_keeps_microbatches_meets_the_limit_and_goes_on_after_letting_go(
    remote, product, num_microbatches_ahead
):
    with remote(
        ["a"], hoarded(product), memory_limit_bytes=1 << 20, num_microbatch_prefetches=num_microbatches_ahead
    ) as loader:
        iterator, kept = bounded(lambda: hoard(loader), loader)
        count = len(kept)
        assert 5 <= count <= 10
        assert [int(microbatch[99_999]) for microbatch in kept] == list(range(count))
        with pytest.raises(MemoryLimitError):
            next(iterator)
        assert loader.state_dict()["all_rank_steps"] == [count]
        first = kept[0].clone()
        kept.clear()
        assert int(first[0]) == 0
        assert [int(microbatch[0]) for microbatch in iterator] == list(range(count, NUM_HOARDED))


@pytest.mark.parametrize("product", ["map", "stream"])
def test_a_limit_of_two_and_a_half_microbatches_is_enough_for_a_caller_who_keeps_one(remote, product):
    with remote(["a"], hoarded(product, 400_000), memory_limit_bytes=1 << 20) as loader:
        seen = []
        for microbatch in loader:
            seen.append(int(microbatch[0]))  # noqa: PERF401 - the loop's variable is what keeps one
        assert seen == list(range(NUM_HOARDED))


def test_microbatches_in_reference_cycles_are_let_go_before_the_limit_is_an_error(remote):
    with remote(["a"], hoarded("map"), memory_limit_bytes=1 << 20) as loader:
        for microbatch in loader:
            cycle = {"microbatch": microbatch}
            cycle["self"] = cycle
        assert loader.statistics().delivered == NUM_HOARDED


# --- workers that die --------------------------------------------------------------------------------------------


def dying(how):
    def factory(shard):
        for index in range(4):
            if shard == "bad" and index == 2:
                how()
            yield torch.tensor(index)

    return factory


DEATHS = {
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL, "killed by signal 9"),
    "segmentation fault": (lambda: os.kill(os.getpid(), signal.SIGSEGV), -signal.SIGSEGV, "killed by signal 11"),
    "exit 0": (lambda: os._exit(0), 0, "exit code 0"),
    "exit 3": (lambda: os._exit(3), 3, "exit code 3"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_worker_that_dies_is_reported_within_a_second_after_what_it_had_made(remote, death, tmp_path):
    check_in_time(1.0, lambda: die(remote, *DEATHS[death], tmp_path / "pid"))


def die(remote, how, exit_code, text, noted):
    """Return how long the report of a death took; what was made before it comes first, and a resume goes on there."""
    with remote(["good", "bad"], dying(lambda: (noted.write_text(str(os.getpid())), how()))) as loader:
        iterator = iter(loader)
        # The last before the death may be held back, as nobody knows yet whether it is the shard's last.
        assert [int(next(iterator)) for _ in range(5)] == [0, 1, 2, 3, 0]
        assert int(next(iterator)) == 1
        began = time.monotonic()
        with pytest.raises(WorkerDiedError, match=text) as caught:
            next(iterator)
        took_s = time.monotonic() - began
        error, pid = caught.value, int(noted.read_text())
        assert (error.pid, error.exit_code) == (pid, exit_code)
        assert (error.shard, error.epoch, error.microbatch_index) == ("bad", 0, 2)
        assert f"worker {pid} " in str(error)
        assert "shard 'bad'" in str(error)
        with pytest.raises(WorkerDiedError):
            next(iterator)
        assert loader.state_dict()["all_rank_microbatches"] == [2]
        state = loader.state_dict()
    assert epoch(at_state(make(["good", "bad"], dying(lambda: None)), state)) == [2, 3]
    return took_s


def test_a_worker_killed_while_the_caller_waits_is_reported_within_a_second(remote):
    def factory(shard):
        yield torch.tensor(0)
        yield torch.tensor(1)
        time.sleep(60)

    def attempt():
        with remote(["a", "b", "c"], factory, num_shard_prefetches=2) as loader:
            iterator = begun(loader, 1)
            killed_at = []

            def kill():
                killed_at.append(time.monotonic())
                os.kill(worker_pids()[0], signal.SIGKILL)

            timer = threading.Timer(0.3, kill)
            timer.start()
            assert int(next(iterator)) == 1
            with pytest.raises(WorkerDiedError, match=r"microbatch 2 of shard 'a' in epoch 0"):
                next(iterator)
            timer.join()
            return time.monotonic() - killed_at[0]

    check_in_time(1.0, attempt)


def test_a_dead_worker_is_noticed_though_a_child_of_its_own_holds_the_pipe_open(remote):
    def factory(shard):
        # Every descriptor of the worker, its end of the pipe among them, goes to its child.
        for link in list(Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(link.name), True)
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False, start_new_session=True
        )
        yield torch.tensor(os.getpid())
        yield torch.tensor(0)
        time.sleep(60)

    with remote(["a"], factory) as loader:
        iterator = iter(loader)
        pid = int(next(iterator))
        children = psutil.Process(pid).children(recursive=True)
        assert len(children) == 1
        os.kill(pid, signal.SIGKILL)
        assert int(next(iterator)) == 0
        with pytest.raises(WorkerDiedError, match="killed by signal 9"):
            next(iterator)
        assert children[0].is_running(), "its child ends after a minute"
        children[0].kill()


# --- what cannot be sent -----------------------------------------------------------------------------------------


class Holder:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __call__(self, shard):
        return []


class Slotted:
    """Its attributes are in slots."""

    __slots__ = ("lock", "nothing")

    def __init__(self, lock):
        self.lock = lock


def test_a_factory_that_cannot_be_sent_is_named_by_its_path():
    lock = threading.Lock()

    def closure(shard):
        return [lock]

    table = [
        (closure, r"dataloader_factory, closure variable 'lock' of function 'closure' = <unlocked _thread\.lock"),
        (functools.partial(Holder(), lock=lock), r"dataloader_factory\.keywords\['lock'\]"),
        (functools.partial(Holder(), lock), r"dataloader_factory\.args\[0\]"),
        (Holder(dataset=Holder(lock=lock)), r"dataloader_factory\.dataset\.lock"),
        (Holder(files=[1, {"key": lock}]), r"dataloader_factory\.files\[1\]\['key'\]"),
        (
            Holder(function=lambda: lock),
            r"dataloader_factory\.function, closure variable 'lock' of function '<lambda>'",
        ),
        (Holder(method=Holder(lock=lock).__call__), r"dataloader_factory\.method\.__self__\.lock"),
        (Holder(dataset=Slotted(lock)), r"dataloader_factory\.dataset\.lock"),
        (Holder(stream=open("/dev/null", "w")), r"dataloader_factory\.stream"),  # noqa: PTH123, SIM115
    ]
    for factory, path in table:
        with pytest.raises(ConfigurationError, match=path + r".*multiprocessing=False"):
            make(["a"], factory, multiprocessing=True)
        make(["a"], factory)  # in process it need not be sent
    table[-1][0].stream.close()


def test_a_profiler_that_cannot_be_sent_is_named():
    class Profiler(Holder):
        def start(self, name): ...

        def stop(self, name): ...

    with pytest.raises(ConfigurationError, match="profiler"):
        make(["a"], multiprocessing=True, profiler=Profiler(lock=threading.Lock()))


def test_a_class_that_the_worker_cannot_import_is_told_by_its_shard(remote, monkeypatch):
    module = types.ModuleType("here_but_not_there")
    exec("class Factory:\n    def __call__(self, shard):\n        return []", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ConfigurationError, match="a name in here_but_not_there, which a worker cannot import"):
        remote(["a"], module.Factory())
    module.__spec__ = ModuleSpec(module.__name__, None)  # as of a module that was imported
    with (
        remote(["a"], module.Factory()) as loader,
        pytest.raises(ModuleNotFoundError, match="here_but_not_there") as caught,
    ):
        next(iter(loader))
    assert "while opening shard 'a'" in told(caught.value)


# --- failures of samplers and movers -----------------------------------------------------------------------------


@pytest.mark.parametrize(("multiprocessing", "num_shards_ahead"), [(False, 0), (True, 3)])
def test_a_samplers_own_failure_comes_after_the_shards_before_it_and_is_no_end(multiprocessing, num_shards_ahead):
    class FailingOnce:
        has_failed = False

        def __iter__(self):
            yield from ("list-a-2", "list-b-2")
            if not self.has_failed:
                self.has_failed = True
                raise OSError("the listing broke off")
            yield "list-c-1"

    with make(FailingOnce(), multiprocessing=multiprocessing, num_shard_prefetches=num_shards_ahead) as loader:
        got = []
        with pytest.raises(OSError, match="broke off"):
            got.extend(loader)
        assert len(got) == 4
        assert len(epoch(loader)) == 5


class Fragile:
    """A microbatch that fails once when it is moved, as on a device that is out of memory."""

    failed = False

    def __init__(self, index):
        self.index = index

    def to(self, device):
        if self.index == 1 and not Fragile.failed:
            Fragile.failed = True
            raise RuntimeError("out of memory")
        return self


@both_modes
def test_a_failed_move_loses_no_microbatch(multiprocessing):
    Fragile.failed = False

    def factory(shard):
        return [Fragile(index) for index in range(4)]

    with make(["a"], factory, device="meta", multiprocessing=multiprocessing) as loader:
        got = []
        while True:
            try:
                got.append(loader.load_batch_sync().index)
            except RuntimeError:
                got.append("failed")
            except StopIteration:
                break
        assert Fragile.failed
        # Where the move was tried ahead of the call that wants it, it is tried again then.
        assert [index for index in got if index != "failed"] == [0, 1, 2, 3]

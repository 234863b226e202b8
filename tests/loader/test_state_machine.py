"""Whatever a caller does with loaders, in any order: what they deliver is what one run delivers that nothing disturbs."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from loader_examples import make, mixed, plain, same_state
from own_workers import worker_pids

from fkat_data import ShuffledShardSampler

# Shrinking a history with processes takes longer than a test may last, and would hide the failure behind the timeout.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
KINDS = ("map", "stream", "list", "generator", "skip")
NUM_EPOCHS = 6


class FailsOnce:
    """Makes what its name says; a shard that is listed fails the first time that it is opened in an epoch of many."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, shard):
        request = Path(self.folder) / shard
        if request.exists():
            request.unlink()
            raise ValueError("failed once")
        return mixed(shard)


class LoaderMachine(RuleBasedStateMachine):
    """A loader and its caller, who knows how many microbatches of which epoch it has got."""

    modes = (False,)

    @initialize(
        kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), min_size=1, max_size=5),
        seed=st.integers(0, 3),
        is_shuffled=st.booleans(),
        mode=st.data(),
    )
    def begin(self, kinds, seed, is_shuffled, mode):
        self.folder = tempfile.mkdtemp()
        self.names = [f"{kind}-{place}-{count}" for place, (kind, count) in enumerate(kinds)]
        # An epoch without a microbatch says nothing.
        self.names.append("list-last-2")
        self.shards = ShuffledShardSampler(self.names, seed) if is_shuffled else self.names
        oracle = make(self.shards, mixed)
        self.due = [[plain(microbatch) for microbatch in oracle] for _ in range(NUM_EPOCHS)]
        self.epoch, self.count = 0, 0
        self.saved = []
        self.iterator = None
        self.loader = None
        self.open(mode.draw(st.sampled_from(self.modes)), 1, -1)
        self.save()

    def open(self, multiprocessing, num_shards_ahead, num_microbatches_ahead):
        if self.loader is not None:
            self.loader.close()
        self.loader = make(
            self.shards,
            FailsOnce(self.folder),
            multiprocessing=multiprocessing,
            num_shard_prefetches=num_shards_ahead,
            num_microbatch_prefetches=num_microbatches_ahead,
            max_worker_restarts=100,
        )
        self.is_multiprocessing = multiprocessing
        self.iterator = None

    def has_epochs_left(self):
        return self.epoch < NUM_EPOCHS - 1

    def iterate(self):
        if self.iterator is None:
            self.iterator = iter(self.loader)

    def take(self):
        """Take one microbatch, or the epoch's end; return whether it was a microbatch."""
        self.iterate()
        for _ in range(10):
            try:
                microbatch = next(self.iterator)
            except StopIteration:
                assert self.count in (0, len(self.due[self.epoch])), "an epoch ended early"
                self.iterator = None
                if self.count:
                    self.epoch, self.count = self.epoch + 1, 0
                return False
            except ValueError as error:
                assert "failed once" in str(error)  # noqa: PT017 - one of several that may come
                self.loader.load_state_dict(self.loader.state_dict())
                self.iterator = iter(self.loader)
            else:
                self.count_as_due(plain(microbatch))
                return True
        raise AssertionError("a shard that fails once failed ten times")

    def count_as_due(self, microbatch):
        if self.count == len(self.due[self.epoch]):  # resumed before empty shards: the next epoch follows at once
            self.epoch, self.count = self.epoch + 1, 0
        assert microbatch == self.due[self.epoch][self.count]
        self.count += 1

    @precondition(has_epochs_left)
    @rule(count=st.integers(1, 6))
    def go_on(self, count):
        for _ in range(count):
            if not self.take():
                break

    @precondition(has_epochs_left)
    @rule()
    def finish_the_epoch(self):
        while self.take():
            pass

    @precondition(lambda self: self.has_epochs_left() and self.iterator is not None and self.count > 0)
    @rule()
    def break_and_iterate_again(self):
        is_at_end = self.count == len(self.due[self.epoch])
        self.iterator = iter(self.loader)
        assert self.loader.epoch >= self.epoch + (not is_at_end)
        self.epoch, self.count = self.epoch + 1, 0

    @rule()
    def save(self):
        state = self.loader.state_dict()
        assert same_state(state, self.loader.state_dict())
        self.saved.append((state, self.epoch, self.count))

    @rule()
    def save_in_a_thread(self):
        states = []
        thread = threading.Thread(target=lambda: states.append(self.loader.state_dict()))
        thread.start()
        thread.join()
        assert same_state(states[0], self.loader.state_dict())

    @rule(data=st.data(), ahead=st.integers(0, 4), depth=st.integers(-1, 3))
    def restore_in_another_loader(self, data, ahead, depth):
        state, self.epoch, self.count = data.draw(st.sampled_from(self.saved))
        self.open(data.draw(st.sampled_from(self.modes)), ahead, depth)
        self.loader.load_state_dict(state)

    @rule(data=st.data())
    def restore_in_the_same_loader(self, data):
        state, self.epoch, self.count = data.draw(st.sampled_from(self.saved))
        self.loader.load_state_dict(state)
        self.iterator = None

    @rule(data=st.data())
    def fail_once(self, data):
        (Path(self.folder) / data.draw(st.sampled_from(self.names))).touch()

    @precondition(lambda self: self.is_multiprocessing)
    @rule(data=st.data())
    def kill_a_worker(self, data):
        index = data.draw(st.integers(0, 3))
        pids = worker_pids()
        with contextlib.suppress(ProcessLookupError):  # killed before, and not missed yet
            if pids:
                os.kill(pids[index % len(pids)], signal.SIGKILL)

    @rule(seconds=st.floats(0, 0.02))
    def wait(self, seconds):
        time.sleep(seconds)

    @invariant()
    def the_step_is_what_was_delivered(self):
        if self.loader.epoch == self.epoch:
            assert self.loader.step == self.count
        else:
            assert (self.loader.epoch, self.loader.step) == (self.epoch + 1, 0)
            assert self.count == len(self.due[self.epoch])

    def teardown(self):
        if getattr(self, "loader", None) is not None:
            self.loader.close()
            shutil.rmtree(self.folder)


class ProcessMachine(LoaderMachine):
    """The same, with workers in processes of their own, most of the time."""

    modes = (True, True, False)


def check(machine, examples, steps, phases=tuple(Phase)):
    how = settings(
        max_examples=examples,
        phases=phases,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=False,
    )
    run_state_machine_as_test(machine, settings=how)


def test_any_history_in_process_delivers_what_is_due(share_of_examples):
    check(LoaderMachine, round(60 * share_of_examples), 25)


@pytest.mark.parametrize(
    ("examples", "steps"), [(5, 12), pytest.param(200, 30, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_any_history_with_workers_delivers_what_is_due(processes, examples, steps):
    check(ProcessMachine, examples, steps, UNSHRUNK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_long_history_in_process_delivers_what_is_due():
    check(LoaderMachine, 3000, 50)

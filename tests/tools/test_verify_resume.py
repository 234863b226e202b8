import itertools
import os
import random
import time

import numpy as np
import pytest
import torch
import verify_examples as examples
from verify_examples import maker

from fkat_data import ConfigurationError, ShardedDataLoader
from fkat_data.tools import verify_resume

#: With it no trial starts more than one worker process.
SHALLOW = 22

NUM_IN_EPOCH = len(examples.SHARDS) * examples.SAMPLES // examples.BATCH_SIZE


def test_exact_data_are_found_exact_in_both_modes_and_crossed(processes):
    report = verify_resume(maker(examples.Exact), num_trials=4, seed=SHALLOW)
    assert report.is_exact, report
    assert (report.num_microbatches, report.num_epochs, report.num_shards) == (NUM_IN_EPOCH + 3, 2, 4)
    pairs = {(trial.saved.multiprocessing, trial.resumed.multiprocessing) for trial in report.trials}
    assert pairs == {(True, True), (True, False), (False, True), (False, False)}
    assert all(trial.num_compared == report.num_microbatches - trial.stop for trial in report.trials)
    assert report.divergence is report.diagnosis is None
    assert str(report) == "exact: 4 stops over 15 microbatches, 4 shards, 2 epochs, each resumed bit for bit"


def in_process(factory, **options):
    return verify_resume(maker(factory), multiprocessing=False, **options)


@pytest.mark.parametrize("dataset", [examples.Exact, examples.SetOrder, examples.ProcessState])
def test_in_process_alone_only_what_differs_in_one_process_is_found(dataset):
    report = in_process(dataset, num_trials=20)
    assert report.is_exact, report
    assert {trial.stop for trial in report.trials} == set(range(1, NUM_IN_EPOCH + 3))


@pytest.mark.parametrize(
    ("dataset", "cause"),
    [
        (examples.OwnGenerator, "OWN_GENERATOR"),
        (examples.OwnRandom, "OWN_GENERATOR"),
        (examples.Clock, "CLOCK"),
        (examples.Entropy, "SYSTEM_ENTROPY"),
        (examples.GlobalCount, "NOT_A_FUNCTION"),
    ],
)
def test_data_that_are_no_function_of_the_position_part_without_a_stop(dataset, cause):
    report = in_process(dataset)
    assert not report.is_exact
    assert report.diagnosis.cause.name == cause
    assert report.trials == ()
    assert report.divergence.expected_position == report.divergence.found_position == (0, 0, 0)
    assert report.divergence.difference.path == "['draw']"
    assert report.divergence.difference.element == (0, 3)
    assert report.diagnosis.cause in str(report)
    assert "microbatch 0 of the run (epoch 0, shard 0, microbatch 0): ['draw'], element [0, 3]" in str(report)


@pytest.mark.parametrize(
    ("factory", "cause"),
    [
        (examples.Counter, "KEPT_STATE"),
        (examples.BufferFactory, "KEPT_STATE"),
        (lambda: examples.Backwards, "ORDER"),
    ],
)
def test_data_that_keep_state_part_after_a_stop_alone(factory, cause):
    report = in_process(factory, num_trials=6)
    assert not report.is_exact
    assert report.divergence is None
    assert report.diagnosis.cause.name == cause
    wrong = [trial for trial in report.trials if not trial.is_exact]
    assert wrong
    # The first microbatch after the stop: the state was lost there.
    assert any(trial.divergence.index == trial.stop for trial in wrong)
    assert f"stopped after {wrong[0].stop} (in process; resumed: in process, " in str(report)


@pytest.mark.parametrize(
    ("dataset", "cause"),
    [
        (examples.GlobalCount, "SURVIVING_GLOBAL"),
        (examples.ProcessState, "PROCESS_STATE"),
    ],
)
def test_what_depends_on_the_process_shows_between_the_modes(processes, monkeypatch, dataset, cause):
    # Earlier tests counted in this process, and not in the workers.
    monkeypatch.setattr(examples, "calls", itertools.count())
    report = verify_resume(maker(dataset), num_microbatches=4, num_trials=1)
    assert not report.is_exact
    assert report.diagnosis.cause.name == cause


def test_what_a_worker_carries_from_shard_to_shard_shows_with_more_workers(processes):
    shards = [str(number) for number in range(5)]
    report = verify_resume(maker(examples.BufferFactory, shards), num_trials=1, multiprocessing=True, seed=1)
    assert {trial.resumed.num_shard_prefetches for trial in report.trials if not trial.is_exact} & {2}
    assert report.diagnosis.cause.name == "SHARED_BETWEEN_SHARDS"
    assert "a buffer" in str(report)


def test_shards_that_change_are_told_by_the_state_that_is_refused():
    orders = iter(range(100))

    def make_loader(**overrides):
        # The recorded runs find one order, as a listing does until a file is added.
        shards = examples.SHARDS if next(orders) < 2 else examples.SHARDS[::-1]
        return ShardedDataLoader(7, shards, examples.Factory(examples.Exact), **overrides)

    report = verify_resume(make_loader, multiprocessing=False, num_trials=2)
    assert report.diagnosis.cause.name == "SHARDS_CHANGE"
    assert "StateMismatchError: state field 'fingerprint.shards'" in str(report)


def test_shards_in_another_order_each_time_are_told_from_data_that_differ():
    draws = random.Random(3)

    def make_loader(**overrides):
        shards = draws.sample(range(100), 100)
        return ShardedDataLoader(7, [str(shard) for shard in shards], examples.Factory(examples.Exact), **overrides)

    report = verify_resume(make_loader, multiprocessing=False)
    assert report.divergence is not None
    assert report.diagnosis.cause.name == "SHARDS_CHANGE"


class Shuffled:
    """Shards whose order is not known before they are iterated, and another each time."""

    def __init__(self, draws):
        self.draws = draws

    def __iter__(self):
        return iter(self.draws.sample(["a", "b", "c", "d", "e", "f"], 6))


def test_the_same_microbatches_in_another_order_are_told_as_such():
    draws = random.Random(3)

    def make_loader(**overrides):
        return ShardedDataLoader(7, Shuffled(draws), lambda shard: [shard], **overrides)

    report = verify_resume(make_loader, num_microbatches=12, multiprocessing=False)
    assert report.divergence is not None
    assert report.diagnosis.cause.name == "ORDER"
    assert "the microbatches of epoch 0, in any order: same" in str(report)


def test_a_resume_that_raises_is_no_failure_of_the_data():
    report = in_process(lambda: examples.FailingSkip, num_trials=6)
    assert report.diagnosis.cause.name == "FAILING_RESUME"
    assert "LookupError: cannot skip" in str(report)


def test_data_that_fail_raise_what_they_raise():
    with pytest.raises(OSError, match="the disk is on fire") as caught:
        in_process(examples.Failing)
    assert any("shard '2'" in note for note in caught.value.__notes__)


@pytest.mark.long
def test_a_time_limit_proves_less_and_says_so():
    ticks, limit_s = [], 4.0  # long beside what a busy machine takes for the recording

    def slow(phase, count):
        ticks.append((phase, count))
        if phase == "stopping and resuming" and count == 3:
            time.sleep(limit_s)

    report = in_process(examples.Exact, num_trials=1000, timeout_s=limit_s, progress=slow)
    assert report.is_exact
    assert report.is_cut
    assert 0 < len(report.trials) < 1000
    assert f"the time ran out after {len(report.trials)} of 1000 stops" in str(report)
    assert {phase for phase, _ in ticks} == {"recording", "stopping and resuming"}


def test_without_time_nothing_is_proven():
    report = in_process(examples.Exact, timeout_s=1e-9)
    assert not report.is_exact
    assert "nothing proven" in str(report)


@pytest.mark.parametrize(
    ("make_loader", "argument"), [(lambda **_: [1, 2], "make_loader"), (maker(lambda: lambda _: []), "loader")]
)
def test_what_makes_no_loader_or_an_empty_one_is_refused(make_loader, argument):
    with pytest.raises(ConfigurationError, match=f"^{argument} = "):
        verify_resume(make_loader, multiprocessing=False)


def test_the_same_seed_makes_the_same_trials():
    reports = [in_process(examples.Exact, seed=seed, num_trials=5) for seed in (3, 3, 4)]
    assert reports[0] == reports[1]
    assert reports[0].trials != reports[2].trials


def test_what_was_pinned_to_find_the_cause_is_free_again():
    before = [vars(module).copy() for module in (np.random, random, time, os)]
    in_process(examples.GlobalCount)
    assert [vars(module) for module in (np.random, random, time, os)] == before


def test_the_callers_generators_are_left_alone():
    torch.manual_seed(3)
    in_process(examples.OwnGenerator)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), drawn)

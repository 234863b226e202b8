import logging
import threading
import time

import torch
from drop_in_examples import Counted
from loader_examples import OF_WORKERS, epoch, make
from patience import unless_held_up
from walks import at_state, begun, both_modes, wait_until

from fkat_data import LoaderStatistics
from fkat_data.mixing import DictDataLoader, RoundRobin
from fkat_data.observe import reading


def slow(shard):
    """Each stage takes so long that it can be told from the others."""
    with reading():
        time.sleep(0.2)
    time.sleep(0.1)
    return generate_slowly()


def generate_slowly():
    for index in range(3):
        time.sleep(0.05)
        with reading():
            time.sleep(0.01)
        yield torch.full((1000,), index)


class SlowAtFirst(Counted, torch.utils.data.Dataset):
    def __getitem__(self, index):
        time.sleep(0.1 if index == 0 else 0)
        return torch.tensor(index)


def test_a_slow_microbatch_in_process_counts_when_it_is_made_and_not_with_the_next():
    with make(["a"], lambda shard: torch.utils.data.DataLoader(SlowAtFirst(4)), multiprocessing=False) as loader:
        next(iter(loader))
        making = loader.statistics().making
    assert making.num == 1
    assert making.p50_s > 0.09


@both_modes
@unless_held_up
def test_each_second_of_a_worker_counts_in_one_stage(multiprocessing):
    with make(["a"], slow, multiprocessing=multiprocessing, **OF_WORKERS) as loader:
        began_s = time.perf_counter()
        epoch(loader)
        statistics = loader.statistics()
        elapsed_s = time.perf_counter() - began_s
    assert statistics.produced == statistics.delivered == 3
    assert 0.23 <= statistics.store_s < 0.4
    assert 0.1 <= statistics.build_s < 0.2
    assert 0.15 <= statistics.produce_s < 0.3
    assert 0.05 <= statistics.produce_s_per_microbatch < 0.1
    assert statistics.waited_first_s <= statistics.waited_s <= statistics.elapsed_s <= elapsed_s
    assert statistics.num_workers == multiprocessing
    stages_s = [getattr(statistics, f"{name}_s") for name in ("store", "build", "produce", "replay", "encode")]
    assert sum(stages_s) <= elapsed_s
    assert statistics.queue_depth == 0
    # What the opening has read is no part of the first one.
    assert statistics.making.num == statistics.waiting.num == 3
    assert 0.055 <= statistics.making.p50_s <= statistics.making.p99_s < 0.15
    assert statistics.waiting.quantiles_s(0, 1) == sorted(statistics.waiting.quantiles_s(0, 1))
    assert 0.25 <= statistics.waiting.p99_s <= elapsed_s


@unless_held_up
def test_what_is_ready_is_not_waited_for_and_one_hiccup_is_seen(remote):
    def factory(shard):
        for index in range(200):
            if index == 150:
                time.sleep(0.3)
            yield torch.full((4,), index)

    with remote(["a"], factory, num_microbatch_prefetches=50) as loader:
        for index, _ in enumerate(loader):
            if index == 2:
                before = loader.statistics()
            time.sleep(0.001 if index < 140 else 0)
        done = loader.statistics().since(before)
    assert done.waiting.num == done.delivered == 197
    assert done.waiting.num_zero > 100
    assert done.waiting.p50_s == 0
    assert 0.2 < done.waiting.quantiles_s(1)[0] < 1
    assert 0.28 < done.making.quantiles_s(1)[0] < 1
    assert done.making.p95_s < 0.1


def test_what_is_made_and_not_delivered_is_the_queue(remote):
    with remote(["list-a-9"], num_microbatch_prefetches=8) as loader:
        microbatches = begun(loader, 1)
        wait_until(lambda: loader.statistics().queue_depth >= 8)
        assert loader.statistics().queue_depth == 8
        next(microbatches)
        assert loader.statistics().queue_depth == 7
        assert loader.statistics().produced == 9


@unless_held_up
def test_a_worker_that_waits_for_leave_is_blocked_and_one_without_a_shard_idle(remote):
    with remote(["list-a-9"], num_microbatch_prefetches=1) as loader:
        microbatches = begun(loader, 1)
        time.sleep(0.2)
        assert loader.statistics().blocked_s > 0.1
        list(microbatches)
        before = loader.statistics()
        time.sleep(0.2)
        done = loader.statistics().since(before)
        assert done.idle_s > 0.1
        assert done.elapsed_s == done.delivered == done.waited_s == 0


@unless_held_up
def test_a_worker_that_finds_the_pipe_full_is_blocked(remote):
    with remote(["list-a-100000"]) as loader:
        next(iter(loader))
        before = loader.statistics()
        time.sleep(0.5)
        done = loader.statistics().since(before)
        assert done.blocked_s > 0.3
        assert done.encode_s < 0.2


def test_the_numbers_of_workers_outlive_them(remote):
    with remote(["list-a-9"]) as loader:
        epoch(loader)
        loader.close()
        before = loader.statistics()
        assert before.produced == 9
        assert before.produce_s > 0
        epoch(loader)
        assert loader.statistics().produced == 18


@unless_held_up
def test_the_time_between_two_iterations_does_not_count():
    loader = make(["list-a-3"])
    for _ in range(3):
        for index, _ in enumerate(loader):
            if index == 1:
                break
        time.sleep(0.1)
    assert loader.statistics().elapsed_s < 0.1


@unless_held_up
def test_what_a_resume_makes_again_is_replayed():
    def factory(shard):
        for index in range(4):
            time.sleep(0.03)
            yield index

    loader = make(["a"], factory)
    begun(loader, 3)
    resumed = at_state(make(["a"], factory), loader.state_dict())
    assert epoch(resumed) == [3]
    assert resumed.statistics().replay_s >= 0.09
    assert resumed.statistics().produce_s < 0.09
    assert resumed.statistics().produced == 1


def test_the_numbers_are_flat_and_the_verdict_is_none_of_them():
    loader = make(["list-a-3"])
    epoch(loader)
    numbers = loader.statistics().as_dict()
    assert all(type(number) in (int, float) for number in numbers.values())
    assert set(LoaderStatistics.__dataclass_fields__) - {"waiting", "making", "made_on", "seen", "opened_alone"} < set(
        numbers
    )
    assert numbers["making_p99_s"] == loader.statistics().making.p99_s > 0
    assert {f"{name}_{quantile}_s" for name in ("waiting", "making") for quantile in ("p50", "p95", "p99")} < set(
        numbers
    )
    assert numbers["waited_share"] == loader.statistics().waited_share
    assert "verdict" not in numbers


def test_several_loaders_have_one_clock():
    one = LoaderStatistics(delivered=3, elapsed_s=2.0, waited_s=1.0, num_workers=1, num_cpus=4)
    other = LoaderStatistics(delivered=4, elapsed_s=3.0, waited_s=0.5, num_workers=2, num_cpus=4)
    assert LoaderStatistics.together([one, other]) == LoaderStatistics(
        delivered=7, elapsed_s=3.0, waited_s=1.5, num_workers=3, num_cpus=4
    )
    mixture = DictDataLoader({"a": make(["list-a-3"]), "b": make(["list-b-3"])}, RoundRobin(["a", "b"]), key=None)
    list(mixture)
    assert mixture.statistics().produced == 6


@both_modes
def test_an_epochs_end_is_one_line_with_the_verdict(multiprocessing, caplog):
    with (
        caplog.at_level(logging.INFO, logger="fkat_data"),
        make(["list-a-3", "list-b-2"], multiprocessing=multiprocessing) as loader,
    ):
        epoch(loader)
        epoch(loader)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 2
    assert lines[0].startswith("epoch 0: 5 microbatches in ")
    assert lines[1].startswith("epoch 1: 5 microbatches in ")
    assert "the trainer waited" in lines[1]


def test_what_threads_of_a_dataset_read_is_not_measured_and_reading_elsewhere_does_nothing():
    def read():
        with reading():
            time.sleep(0.05)

    def factory(shard):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        yield shard

    read()
    loader = make(["a"], factory)
    assert epoch(loader) == ["a"]
    assert loader.statistics().store_s == 0
    assert loader.statistics().produce_s + loader.statistics().build_s >= 0.05

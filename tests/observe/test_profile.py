import cProfile
import pstats
import time
from collections import Counter

import pytest
import torch
from loader_examples import epoch, make
from walks import both_modes


class LightningLike:
    """As Lightning's profilers are: named actions that must alternate, a file, a summary."""

    def __init__(self, filename):
        self.filename = filename
        self.running = {}
        self.recorded = []

    def start(self, action_name):
        if action_name in self.running:
            raise ValueError(f"{action_name} was started twice")
        self.running[action_name] = time.monotonic()

    def stop(self, action_name):
        self.recorded.append((action_name, time.monotonic() - self.running.pop(action_name)))

    def summary(self):
        return "\n".join(f"{name} {duration}" for name, duration in self.recorded)

    def describe(self):
        with open(self.filename, "a") as file:  # noqa: PTH123
            file.write(self.summary() + "\n")


FILES = ["profile-worker0.txt", "profile-worker1.txt", "profile.txt"]


def names(text):
    return Counter(line.split()[0].removeprefix("ShardedDataLoader.") for line in text.splitlines() if line.strip())


def test_a_profiler_is_told_of_both_sides_and_each_worker_writes_its_own_file(remote, tmp_path):
    profiler = LightningLike(str(tmp_path / "profile.txt"))
    with remote(["list-a-3", "map-b-4"], num_shard_prefetches=2, profiler=profiler) as loader:
        epoch(loader)
    profiler.describe()
    trainer = names((tmp_path / "profile.txt").read_text())
    assert trainer["decode"] == trainer["move"] == 5
    assert trainer["wait"] >= 5
    workers = [names((tmp_path / f"profile-worker{index}.txt").read_text()) for index in range(2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert all(worker["build"] == 1 for worker in workers)
    # One more for the end of a shard.
    assert [worker["encode"] for worker in workers] == [3, 2]
    assert all(worker["produce"] >= worker["encode"] for worker in workers)
    assert profiler.running == {}
    assert profiler.filename == str(tmp_path / "profile.txt")


def test_in_process_one_profiler_sees_everything(tmp_path):
    profiler = LightningLike(str(tmp_path / "profile.txt"))
    loader = make(["list-a-3", "map-b-4"], profiler=profiler)
    epoch(loader)
    seen = names(profiler.summary())
    assert seen["build"] == 2
    assert seen["produce"] >= 5
    assert seen["wait"] >= 5
    assert profiler.running == {}


def test_in_process_a_failure_leaves_no_action_running(tmp_path):
    def factory(shard):
        yield 1
        raise ValueError("no more")

    profiler = LightningLike(str(tmp_path / "profile.txt"))
    with pytest.raises(ValueError, match="no more"):
        list(make(["a"], factory, profiler=profiler))
    assert profiler.running == {}


def test_a_profiler_needs_only_start_and_stop(remote):
    class Bare:
        def start(self, action_name): ...

        def stop(self, action_name): ...

    with remote(["list-a-2"], profiler=Bare()) as loader:
        assert len(epoch(loader)) == 2


@both_modes
def test_torchs_profiler_sees_the_named_ranges(multiprocessing):
    with (
        make(["list-a-3"], multiprocessing=multiprocessing) as loader,
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
    ):
        epoch(loader)
    seen = {event.key for event in profile.key_averages()}
    assert {"ShardedDataLoader.wait", "ShardedDataLoader.move"} <= seen
    assert ("ShardedDataLoader.decode" in seen) == multiprocessing


def test_in_process_a_profile_of_the_trainer_shows_the_datasets_functions():
    profile = cProfile.Profile()
    loader = make(["map-a-6"])
    profile.enable()
    epoch(loader)
    profile.disable()
    calls = {
        function: numbers[0]
        for (file, _, function), numbers in pstats.Stats(profile).stats.items()
        if file.endswith("loader_examples.py")
    }
    assert calls["__getitem__"] == 6


def test_lightnings_profilers_are_told_and_each_worker_writes_its_own_file(remote, tmp_path):
    profilers = pytest.importorskip("pytorch_lightning.profilers", exc_type=ImportError)
    profiler = profilers.AdvancedProfiler(dirpath=tmp_path, filename="profile")
    with remote(["list-a-3", "map-b-4"], num_shard_prefetches=2, profiler=profiler) as loader:
        assert len(epoch(loader)) == 5
    profiler.describe()
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert "ShardedDataLoader.decode" in (tmp_path / "profile.txt").read_text()
    for worker in range(2):
        assert "ShardedDataLoader.produce" in (tmp_path / f"profile-worker{worker}.txt").read_text()

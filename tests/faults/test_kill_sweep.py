"""Every named instant of a run may be its last: each point fails at its first, second, ... pass until none is left."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from loader_examples import MapDataset, make, plain, sample
from torch.utils.data import DataLoader

from fkat_data import WorkerDiedError, faults

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from fault_campaign.processes import MARK, wait_until_gone

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

#: Both kinds of ends, small microbatches and such that need segments, more of them than the memory limit allows.
SHARDS = ["map-a-3", "large-b-6", "stream-c-2", "fails-d-2", "map-e-2"]
OPTIONS = {"num_shard_prefetches": 2, "memory_limit_bytes": 2 << 20}
WORKER_POINTS = [point for point in faults.POINTS if point.startswith("worker.")]
TRAINER_POINTS = [point for point in faults.POINTS if point.startswith("trainer.")]
DEATHS = ("kill", "exit0", "segv")
ERRORS = ("raise", "ENOSPC")


def make_factory():
    """A factory that is shipped by value."""

    def factory(shard):
        kind, count = shard.split("-")[0], int(shard.rsplit("-", 1)[1])
        if kind == "map":
            return DataLoader(MapDataset(shard), batch_size=1, shuffle=True)
        if kind == "large":
            return [sample(shard, index).sum() + torch.rand(60_000) for index in range(count)]
        return stream(shard, count)

    def stream(shard, count):
        for index in range(count):
            if shard.startswith("fails") and index == 1:
                raise ValueError("an old failure")
            yield sample(shard, index)

    return factory


def loader_of(*, is_skipping, **options):
    shards = SHARDS if is_skipping else [shard for shard in SHARDS if not shard.startswith("fails")]
    on_shard_error = "skip" if is_skipping else "raise"
    return make(shards, make_factory(), on_shard_error=on_shard_error, **{**OPTIONS, **options})


def deliver(loader, got):
    """Append what the loader delivers: the beginning of an epoch, which is left, and a whole one."""
    if loader.epoch == 0:
        # What is prefetched of it is called off.
        got.extend(map(plain, itertools.islice(loader, 2)))
    iterator = iter(loader)
    for microbatch in iterator:
        got.append(plain(microbatch))
        if len(got) == 6:
            time.sleep(0.15)  # the worker runs out of memory, most of the time


def due(*, is_skipping):
    got = []
    deliver(loader_of(is_skipping=is_skipping), got)
    return got


def arm(monkeypatch, tmp_path, *armed):
    """Arm faults for the workers of loaders that are made from now on; each happens once. Return their claims."""
    claims = [tmp_path / f"{index}-{point}-{occurrence}" for index, (point, occurrence, _) in enumerate(armed)]
    texts = [":".join((*map(str, fault), str(claim))) for fault, claim in zip(armed, claims, strict=True)]
    for claim in claims:
        claim.unlink(missing_ok=True)
    monkeypatch.setenv("FKAT_DATA_FAULT", ",".join(texts))
    return claims


def deliver_through_deaths(*, is_skipping):
    """Deliver all, with dead workers replaced; where one shard has two deaths at one place, go on after the error."""
    got = []
    with loader_of(is_skipping=is_skipping, multiprocessing=True, max_worker_restarts=50) as loader:
        for _ in range(5):
            try:
                deliver(loader, got)
            except WorkerDiedError:
                loader.load_state_dict(loader.state_dict())
            else:
                return got
    raise AssertionError("five errors in a row")


#: Several of a process's instants in one run, as each death costs a start.
GROUPS = [
    ["worker.ready", "worker.built", "worker.reserved", "worker.sent", "worker.ended"],
    ["worker.assigned", "worker.announced", "worker.writing"],
]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0])
def test_a_run_whose_workers_die_at_named_instants_delivers_what_was_due(group, monkeypatch, tmp_path):
    armed = [(point, 1, DEATHS[place % len(DEATHS)]) for place, point in enumerate(group)]
    claims = arm(monkeypatch, tmp_path, *armed)
    assert deliver_through_deaths(is_skipping=False) == due(is_skipping=False)
    assert all(claim.exists() for claim in claims)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a run for each pass of the point, one after the other
@pytest.mark.parametrize("action", [*DEATHS, "sleep"])
@pytest.mark.parametrize("point", WORKER_POINTS)
def test_every_death_of_a_worker_at_every_pass_is_made_up_for(point, action, monkeypatch, tmp_path):
    whole = due(is_skipping=True)
    for occurrence in itertools.count(1):
        (claim,) = arm(monkeypatch, tmp_path, (point, occurrence, action))
        assert deliver_through_deaths(is_skipping=True) == whole
        if not claim.exists():
            break
    assert occurrence > 1, "the point is never passed"


def check_that_an_error_stops_and_a_resume_goes_on(point, occurrence, action, monkeypatch, tmp_path):
    """Return whether the fault happened."""
    (claim,) = arm(monkeypatch, tmp_path, (point, occurrence, action))
    whole = due(is_skipping=False)
    got, error = [], None
    with loader_of(is_skipping=False, multiprocessing=True) as loader:
        try:
            deliver(loader, got)
        except (WorkerDiedError, RuntimeError, OSError) as raised:
            error = raised.with_traceback(None)  # what was delivered is among its frames' variables
        state = loader.state_dict()
    happened = claim.exists()
    if error is not None:
        assert happened
        assert isinstance(error, WorkerDiedError) == (action in DEATHS or point in WITHOUT_A_SHARD), repr(error)
        if not isinstance(error, WorkerDiedError):
            assert f"injected at {point}" in str(error)
        assert got == whole[: len(got)]
        with loader_of(is_skipping=False, multiprocessing=False) as resumed:
            resumed.load_state_dict(state)
            if len(got) < 2:  # of the epoch that is to be left
                got.extend(map(plain, itertools.islice(resumed, 2 - len(got))))
            got.extend(map(plain, resumed))
    assert got == whole
    return happened


#: What fails outside a shard's production ends the worker, whose last words say why.
WITHOUT_A_SHARD = {
    "worker.started",
    "worker.ready",
    "worker.assigned",
    "worker.credited",
    "worker.cancelled",
    "worker.leaving",
}


@pytest.mark.parametrize(
    ("point", "occurrence", "action"),
    [("worker.written", 2, "kill"), ("worker.reserve", 1, "ENOSPC"), ("worker.assigned", 1, "raise")],
)
def test_without_restarts_a_fault_is_an_error_in_its_place_and_a_resume_is_exact(
    point, occurrence, action, monkeypatch, tmp_path
):
    assert check_that_an_error_stops_and_a_resume_goes_on(point, occurrence, action, monkeypatch, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a run for each pass of the point, one after the other
@pytest.mark.parametrize("action", ["kill", "exit0", "raise", "ENOSPC"])
@pytest.mark.parametrize("point", WORKER_POINTS)
def test_without_restarts_every_fault_at_every_pass_is_an_error_or_nothing(point, action, monkeypatch, tmp_path):
    for occurrence in itertools.count(1):
        if not check_that_an_error_stops_and_a_resume_goes_on(point, occurrence, action, monkeypatch, tmp_path):
            break


def live(folder, before_delivering=lambda: None):
    """A trainer's life from its last checkpoint to its end: what all lives received goes to the file ``got``."""
    with loader_of(is_skipping=False, multiprocessing=True, max_worker_restarts=9) as loader:
        got = []
        if (folder / "checkpoint").exists():
            saved = torch.load(folder / "checkpoint", weights_only=True)
            loader.load_state_dict(saved["state"])
            got = json.loads(saved["got"])
        before_delivering()
        while loader.epoch < 1:
            for microbatch in loader:
                got.append(plain(microbatch))
                if len(got) % 3 == 0:
                    torch.save({"state": loader.state_dict(), "got": json.dumps(got)}, folder / "new")
                    (folder / "new").replace(folder / "checkpoint")
    (folder / "got").write_text(json.dumps(got))


PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_kill_sweep import live
live(Path({folder!r}))
"""


def trainer_life(tmp_path, *armed):
    """Let a trainer run from its last checkpoint on; return its exit code."""
    paths = [str(Path(__file__).parent), *(entry for entry in sys.path if entry)]
    program = PROGRAM.format(paths=paths, folder=str(tmp_path))
    environment = {**os.environ, "FKAT_DATA_FAULT": ",".join(armed), MARK: str(tmp_path)}
    code = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=60).returncode
    assert not wait_until_gone(str(tmp_path), 5.0)
    return code


def check_lives(tmp_path, points, occurrence=1):
    """Kill a trainer at every point, one life after the other; return the points at which one died."""
    claims = {point: tmp_path / f"{point}-{occurrence}" for point in points}
    armed = [f"{point}:{occurrence}:kill:{claim}" for point, claim in claims.items()]
    # One worker's death in each life, that there is somebody to replace.
    armed.append(f"worker.sent:3:kill:{tmp_path / 'worker'}")
    for _ in range(len(points) + 1):
        (tmp_path / "worker").unlink(missing_ok=True)
        code = trainer_life(tmp_path, *armed)
        if code == 0:
            break
        assert code == -9
    assert code == 0
    whole = loader_of(is_skipping=False)
    assert json.loads((tmp_path / "got").read_text()) == list(map(plain, whole))
    (tmp_path / "got").unlink()
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    return {point for point, claim in claims.items() if claim.exists()}


def test_a_trainer_that_is_killed_at_named_instants_resumes_exactly_and_leaves_nothing(tmp_path):
    points = ["trainer.mapped", "trainer.deliver", "trainer.replaced"]
    assert check_lives(tmp_path, points) == set(points)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a run for each pass of the point, one after the other
@pytest.mark.parametrize("point", TRAINER_POINTS)
def test_a_trainer_that_is_killed_at_any_instant_resumes_exactly(point, tmp_path):
    for occurrence in itertools.count(1):
        if not check_lives(tmp_path, [point], occurrence):
            break
    assert occurrence > 1, "the point is never passed"

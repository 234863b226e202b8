"""Any line of the package may be a worker's or a trainer's last, or any call fail: what was due is delivered still.

A first run writes down which lines its processes pass; then each of them is where one fails. What lies between two
system calls is covered by that as well, such as a segment that is half written.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from fault_campaign.processes import MARK, wait_until_gone
from loader_examples import MapDataset, make, plain, sample
from passed_lines import DEATHS, Watched, has_happened, passes, place_of
from torch.utils.data import DataLoader

from fkat_data import WorkerDiedError

pytestmark = pytest.mark.usefixtures("processes", "nothing_left_behind")

#: Both kinds of ends, small microbatches and such that need segments, more of them than the memory limit allows.
SHARDS = ["map-a-3", "large-b-6", "stream-c-2", "fails-d-2", "map-e-2"]
OPTIONS = {"num_shard_prefetches": 2, "memory_limit_bytes": 2 << 20}


def make_factory(fatal=None):
    """A factory that is shipped by value.

    Args:
        fatal: A folder; in the life of a file in it, one worker dies.
    """

    def factory(shard):
        kind, count = shard.split("-")[0], int(shard.rsplit("-", 1)[1])
        if kind == "map":
            return DataLoader(MapDataset(shard), batch_size=1, shuffle=True)
        if kind == "large":
            # Two parts: between them a segment is half written.
            return [
                {"a": sample(shard, index).sum() + torch.rand(30_000), "b": torch.rand(30_000)}
                for index in range(count)
            ]
        return stream(shard, count)

    def stream(shard, count):
        for index in range(count):
            if shard.startswith("fails") and index == 1:
                raise ValueError("an old failure")
            yield sample(shard, index)
            if fatal is not None and not (fatal / "worker").exists():
                (fatal / "worker").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return factory


def loader_of(*, is_skipping=False, shards=SHARDS, factory=None, **options):
    shards = [shard for shard in shards if is_skipping or not shard.startswith("fails")]
    on_shard_error = "skip" if is_skipping else "raise"
    return make(shards, factory or make_factory(), on_shard_error=on_shard_error, **{**OPTIONS, **options})


def deliver(loader, got):
    """Append what the loader delivers: the beginning of an epoch, which is left, and a whole one; or what is missing."""
    if len(got) < 2:
        # What is prefetched of it is called off.
        got.extend(map(plain, itertools.islice(loader, 2 - len(got))))
    for microbatch in loader:
        got.append(plain(microbatch))
        if len(got) == 6:
            time.sleep(0.15)  # the worker runs out of memory, most of the time


def due(**options):
    got = []
    deliver(loader_of(**options), got)
    return got


def deliver_through_deaths(folder, armed=(), **options):
    """Deliver all, with dead workers replaced; where one shard has two deaths at one place, go on after the error."""
    folder.mkdir()
    got, factory = [], Watched(make_factory(), folder, armed)
    with loader_of(factory=factory, multiprocessing=True, max_worker_restarts=50, **options) as loader:
        for _ in range(1 + len(armed)):
            try:
                deliver(loader, got)
            except WorkerDiedError:
                loader.load_state_dict(loader.state_dict())
            else:
                return got
    raise AssertionError("an error after each death")


@pytest.fixture(scope="module")
def passed_by_workers(tmp_path_factory):
    """How often a worker passes each place of the package."""
    return recorded(tmp_path_factory.mktemp("passed") / "instants", is_skipping=False)


@pytest.fixture(scope="module")
def passed_with_failures(tmp_path_factory):
    """How often a worker does whose shards fail and are skipped."""
    return recorded(tmp_path_factory.mktemp("passed") / "instants", is_skipping=True)


def recorded(folder, **options):
    assert deliver_through_deaths(folder, **options) == due(**options)
    return passes(folder)


def lines_of(passed, occurrence=1):
    return [place for place, count in passed.items() if not place.endswith("()") and count >= occurrence]


def calls_of(passed, occurrence=1):
    return [place for place, count in passed.items() if place.endswith("()") and count >= occurrence]


def spread(places, count):
    return places[:: max(1, len(places) // count)][:count]


def groups(places, size):
    """Several of a process's instants in one run, as each death costs a start; those of a group lie apart."""
    num_groups = -(-len(places) // size)
    return [places[start::num_groups] for start in range(num_groups)]


def test_a_run_whose_workers_die_at_lines_all_over_delivers_what_was_due(passed_by_workers, tmp_path):
    places = spread(lines_of(passed_by_workers), 6)
    armed = [(place, 1, action) for place, action in zip(places, itertools.cycle(DEATHS), strict=False)]
    assert deliver_through_deaths(tmp_path / "instants", armed) == due()
    assert sum(has_happened(tmp_path / "instants", place, 1) for place in places) >= 5, places


def test_a_worker_that_dies_in_the_middle_of_a_segment_leaves_nothing_of_it_to_be_seen(tmp_path):
    """A part of the first microbatch is in the segment, then one of the third, where the segment holds an older one."""
    copying = place_of("transport/codec.py", "ctypes.memmove(")
    armed = [(copying, 2, "kill"), (copying, 6, "segv")]
    options = {"shards": ["large-b-6"], "num_shard_prefetches": 1}
    assert deliver_through_deaths(tmp_path / "instants", armed, **options) == due(**options)
    assert all(has_happened(tmp_path / "instants", place, number) for place, number, _ in armed)


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a worker's start for each line of the package that it passes
@pytest.mark.parametrize(
    ("action", "occurrence", "every"),
    [("kill", 1, 1), ("kill", 3, 1), *((action, 1, 3) for action in ("exit0", "segv", "sleep"))],
)
def test_every_line_of_a_worker_may_be_its_last(action, occurrence, every, passed_by_workers, tmp_path):
    places, whole = lines_of(passed_by_workers, occurrence)[::every], due()
    missed = []
    for number, group in enumerate(groups(places, 10)):
        folder = tmp_path / str(number)
        assert deliver_through_deaths(folder, [(place, occurrence, action) for place in group]) == whole, group
        missed += [place for place in group if not has_happened(folder, place, occurrence)]
    print(f"{len(places)} lines, of which {len(missed)} were not passed again: {missed}")
    # Some depend on who is faster; a successor counts from its own start, and may not come as far.
    assert len(missed) <= len(places) // (10 if occurrence == 1 else 4)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a run for each line that a failing shard adds
@pytest.mark.parametrize("action", ["kill", "sleep"])
def test_every_line_that_passes_on_a_failure_may_be_a_workers_last(
    action, passed_by_workers, passed_with_failures, tmp_path
):
    whole = due(is_skipping=True)
    places = [place for place in lines_of(passed_with_failures) if place not in passed_by_workers]
    for number, place in enumerate(places):
        folder = tmp_path / str(number)
        assert deliver_through_deaths(folder, [(place, 1, action)], is_skipping=True) == whole, place


def check_that_an_error_stops_and_a_resume_goes_on(place, occurrence, action, folder):
    """Return whether the fault happened."""
    folder.mkdir()
    whole, got, error = due(), [], None
    factory = Watched(make_factory(), folder, [(place, occurrence, action)])
    with loader_of(factory=factory, multiprocessing=True) as loader:
        try:
            deliver(loader, got)
        except Exception as raised:  # noqa: BLE001 - any error must leave a place from which a resume is exact
            error = raised.with_traceback(None)  # what was delivered is among its frames' variables
        state = loader.state_dict()
    if error is not None:
        assert has_happened(folder, place, occurrence), error
        assert isinstance(error, WorkerDiedError) or f"injected at {place}" in text_of(error), text_of(error)
        assert isinstance(error, WorkerDiedError) or action not in DEATHS
        assert got == whole[: len(got)]
        with loader_of() as resumed:
            resumed.load_state_dict(state)
            deliver(resumed, got)
    assert got == whole
    return has_happened(folder, place, occurrence)


def text_of(error):
    return "".join(traceback.format_exception(error))


def test_without_restarts_a_fault_is_an_error_in_its_place_and_a_resume_is_exact(passed_by_workers, tmp_path):
    # Without restarts nothing is digested.
    of_digests = ("transport/digest.py", "worker/messages.py:content_of")
    passed = {place: count for place, count in passed_by_workers.items() if not place.startswith(of_digests)}
    calls = spread(calls_of(passed), 3)
    for number, (place, action) in enumerate(zip(calls, itertools.cycle(["raise", "ENOSPC", "kill"]), strict=False)):
        assert check_that_an_error_stops_and_a_resume_goes_on(place, 1, action, tmp_path / str(number)), place


#: It goes on in the middle of a message, which no error of the kernel's interrupts: those that it may give are waited out.
WITHIN_A_MESSAGE = "._send_rest()"


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a run for each function of the package that a worker calls
@pytest.mark.parametrize(("action", "occurrence"), [("raise", 1), ("raise", 3), ("ENOSPC", 1)])
def test_without_restarts_every_call_that_fails_is_an_error_or_nothing(action, occurrence, passed_by_workers, tmp_path):
    places = [place for place in calls_of(passed_by_workers, occurrence) if not place.endswith(WITHIN_A_MESSAGE)]
    happened = 0
    for number, place in enumerate(places):
        print(place, flush=True)
        happened += check_that_an_error_stops_and_a_resume_goes_on(place, occurrence, action, tmp_path / str(number))
    assert happened >= len(places) * 9 // 10


def live(folder, before_delivering=lambda: None, fatal=None):
    """A trainer's life from its last checkpoint to its end: what all lives received goes to the file ``got``."""
    with loader_of(factory=make_factory(fatal), multiprocessing=True, max_worker_restarts=9) as loader:
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
from passed_lines import watch
from test_kill_sweep import live
folder = Path({folder!r})
watch(folder, {armed!r})
live(folder, fatal=folder)
"""


def trainer_life(folder, *armed):
    """Let a trainer run from its last checkpoint on, and one of its workers die; return its exit code."""
    paths = [str(Path(__file__).parent), *(entry for entry in sys.path if entry)]
    program = PROGRAM.format(paths=paths, folder=str(folder), armed=armed)
    (folder / "worker").unlink(missing_ok=True)
    environment = {**os.environ, MARK: str(folder)}
    code = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=60).returncode
    assert not wait_until_gone(str(folder), 5.0)
    return code


@pytest.fixture(scope="module")
def passed_by_trainer(tmp_path_factory):
    """How often a trainer passes each place of the package."""
    folder = tmp_path_factory.mktemp("trainer")
    assert trainer_life(folder) == 0
    return passes(folder)


def check_lives(folder, places, occurrence=1):
    """Kill a trainer at each place, one life after the other; return at how many of them one died."""
    folder.mkdir()
    armed = [(place, occurrence, "kill") for place in places]
    for _ in range(len(places) + 1):
        code = trainer_life(folder, *armed)
        if code == 0:
            break
        assert code == -9
    assert code == 0
    assert json.loads((folder / "got").read_text()) == list(map(plain, loader_of()))
    return sum(has_happened(folder, place, occurrence) for place in places)


def test_a_trainer_that_is_killed_at_lines_all_over_resumes_exactly_and_leaves_nothing(passed_by_trainer, tmp_path):
    assert check_lives(tmp_path / "lives", spread(lines_of(passed_by_trainer), 2)) >= 1


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a life for each line of the package that a trainer passes
@pytest.mark.parametrize("occurrence", [1, 3])
def test_a_trainer_that_is_killed_at_any_line_resumes_exactly(occurrence, passed_by_trainer, tmp_path):
    places = lines_of(passed_by_trainer, occurrence)
    happened = 0
    for number, group in enumerate(groups(places, 10)):
        print(group, flush=True)
        happened += check_lives(tmp_path / str(number), group, occurrence)
    assert happened >= len(places) * 9 // 10

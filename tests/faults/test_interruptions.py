"""What is raised in the caller's thread reaches the caller, once, and the loop goes on where it was."""

import pytest
import torch
from interruption_sweep import SIZES, WAYS, Interruptions, Preempted, go_through, known, sweep

from fkat_data import ShardedDataLoader
from fkat_data.mixing import DictDataLoader, RoundRobin

CASES = [
    *((way, "known", "KeyboardInterrupt") for way in WAYS),
    ("two workers a shard", "unknown", "Preempted"),
]
OTHER_CASES = [
    *((way, "unknown", "Preempted") for way in list(WAYS)[:3]),
    ("restarts and a timeline", "unknown", "SystemExit"),
    ("in process", "known", "KeyError"),
    ("one worker", "known", "TimeoutError"),
    ("two shards at once", "unknown", "BlockingIOError"),
    ("two workers a shard", "known", "ValueError"),
    ("restarts and a timeline", "known", "EOFError"),
    ("simulated device", "known", "RuntimeError"),
    ("threads", "known", "FileNotFoundError"),
]


def check_sweep(swept, way, factory, error, share):
    """Return False where torch has no place for a simulated device.

    In a process of its own: what is interrupted while it is made may leave a descriptor, and warns of it.
    """
    found = swept("interruption_sweep.main", way, factory, error, share)
    if found is not None:
        assert found["raised"] > (10 if share > 1 else 500)
        assert not found["left"]
    return found is not None


@pytest.mark.parametrize("share", [200, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize(("way", "factory", "error"), CASES)
def test_after_an_interruption_at_any_instruction_the_loop_goes_on_where_it_was(way, factory, error, share, swept):
    if not check_sweep(swept, way, factory, error, share):
        pytest.skip("torch has no place for a simulated device")


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(200, marks=pytest.mark.timeout(900)),  # in the lane whole, all of them
        pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(72_000)]),
    ],
)
def test_so_it_does_after_what_a_handler_raises_that_may_be_an_error_of_its_own(share, swept, some):
    for case in some(OTHER_CASES, 3):
        check_sweep(swept, *case, share)


@pytest.mark.parametrize("share", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_no_template_process_is_forgotten_by_an_interrupted_call(share, swept):
    assert swept("interruption_sweep.sweep_templates", share) > 10


def mixture():
    loaders = {
        "sharded": ShardedDataLoader(0, list(SIZES), known, multiprocessing=False),
        "list": [{"4": torch.full((4,), 1000 + index)} for index in range(5)],
    }
    return DictDataLoader(loaders, RoundRobin(["sharded", "list"]))


@pytest.mark.long
@pytest.mark.parametrize("share", [80, pytest.param(1, marks=pytest.mark.slow)])
def test_a_mixture_goes_on_where_it_was(share):
    interruptions = Interruptions(Preempted, share)
    expected = [int(microbatch["4"][0]) for microbatch in mixture()]

    def check_epoch(loader, interruptions, epoch, resumes_at):
        def check(position):
            found = loader.epoch, loader.step
            assert found == (epoch + position // len(expected), position % len(expected)), interruptions.last_site

        def take(call, iterator, position):
            return int(call(next, iterator)["4"][0])

        go_through(loader, interruptions, expected, resumes_at, check, take)

    sweep(mixture, interruptions, check_epoch, first_stop=4, num_stops=1)
    assert interruptions.num_raised > 5

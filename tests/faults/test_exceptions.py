"""The zoo of exceptions, raised everywhere in a user's code: each arrives in its place and tells its whole story."""

import re
import time
import traceback

import pytest
import torch
from zoo import PLACES, ZOO, load

from fkat_data import ShardedDataLoader, WorkerError

#: In the caller's own thread these are the caller's own: they end what they always end.
OF_THE_CALLER = {"interrupt", "exit", "generator exit", "cancelled", "base group"}


class OneCaseAnEpoch:
    """Each epoch has a shard that raises between two that do not; the loop that was left begins the next epoch."""

    def __init__(self, cases):
        self.cases = cases
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        yield from ["good", self.cases[self.epoch % len(self.cases)], "good"]


def told(error):
    """All that a user can read: notes, causes and tracebacks."""
    return "".join(traceback.format_exception(error))


def check(loader, case):
    """Go to a case's failure, ask again, and look at what is told; return whether each was told within a second."""
    kind, _, place = case.partition("/")
    _, expected, text = ZOO[kind]
    iterator = iter(loader)
    delivered = [next(iterator).tolist()]
    errors, in_time = [], []
    for _ in range(2):
        began_s = time.monotonic()
        with pytest.raises((expected, WorkerError, RuntimeError)) as caught:
            delivered.extend(microbatch.tolist() for microbatch in iterator)
        in_time.append(time.monotonic() - began_s < 1.0)
        errors.append(caught.value)
    error = errors[0]
    assert type(errors[1]) is type(error)
    if kind not in ("stop", "becomes another", "nothing raisable"):
        assert type(error) in (expected, WorkerError), (case, type(error))
    before = delivered[1:]
    assert delivered[0] == [7, 8]
    assert before == [[0, 1], [2, 3], [4, 5]][: len(before)]
    # What would end the process is not put off until what was drawn before it is made.
    assert len(before) == PLACES[place] or (kind in OF_THE_CALLER and place == "batch sampler"), case
    state = loader.state_dict()
    assert state["all_rank_microbatches"] == [len(before)], case
    assert state["all_rank_steps"] == [1 + len(before)]
    if kind == "frozen" and isinstance(error, expected):
        return in_time  # takes no notes
    story = told(error)
    assert text in story, (case, story)
    assert f"shard '{case}'" in story, (case, story)
    assert "while opening" in story or f"microbatch {len(before)} of" in story, (case, story)
    if kind not in ("circle", "many causes", "huge"):
        assert re.search(r'zoo\.py", line \d+, in ', story), (case, story)
    return in_time


def check_all(loader, cases):
    in_time = [is_in_time for case in cases for is_in_time in check(loader, case)]
    assert in_time.count(False) < len(in_time) // 10  # the machine may stop now and then


def test_every_exception_from_every_place_arrives_from_a_worker_and_again_and_leaves_the_loader_usable(remote):
    cases = [f"{kind}/{place}" for kind in ZOO for place in PLACES]
    with remote(OneCaseAnEpoch(cases), load, num_shard_prefetches=1) as loader:
        check_all(loader, cases)
        # The worker has lived through all of it.
        assert loader.epoch == len(cases) - 1
    assert sum(1 for _ in cases) >= 20 * len(PLACES)


@pytest.mark.long
def test_every_exception_from_every_place_arrives_in_process():
    cases = [f"{kind}/{place}" for kind in ZOO if kind not in OF_THE_CALLER for place in PLACES]
    with ShardedDataLoader(0, OneCaseAnEpoch(cases), load, multiprocessing=False) as loader:
        check_all(loader, cases)


@pytest.mark.parametrize("place", PLACES)
def test_after_a_failure_the_loader_closes_at_once_and_its_state_resumes_there(place):
    case = f"two arguments/{place}"
    with ShardedDataLoader(0, ["good", case, "good"], load, multiprocessing=False) as loader:
        with pytest.raises((ZOO["two arguments"][1], WorkerError)):
            list(loader)
        state = loader.state_dict()
        loader.close()
        loader.close()
        assert loader.state_dict()["all_rank_steps"] == state["all_rank_steps"]

    # What has no fault under the same name goes on where the failure was.
    def healed(shard):
        return load(shard) if shard == "good" else [torch.tensor(index) for index in range(3)]

    with ShardedDataLoader(0, ["good", case, "good"], healed, multiprocessing=False) as loader:
        loader.load_state_dict(state)
        rest = [microbatch.tolist() for microbatch in loader]
    assert rest == [*range(PLACES[place], 3), [7, 8]]

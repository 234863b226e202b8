"""States that were saved before the loaders were rebuilt go on loading, with the same microbatches after them."""

from collections.abc import Mapping

import pytest
from state_cases import GOLDEN, closed, following, loaded, read
from state_faces import FACES, path_of

from fkat_data.loaders.loader_state import PLAN_KINDS, LoaderState

ALL = [(face, name) for face, cases in FACES.items() for name in cases]
WITH_PROCESSES = [(face, name) for face, name in ALL if FACES[face][name].has_processes]
IN_PROCESS = [case for case in ALL if case not in WITH_PROCESSES]


def name_of(case):
    return " ".join(case)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder for what loaders read: written once."""
    return tmp_path_factory.mktemp("data")


def check(face, name, data):
    case = FACES[face][name]
    for cut, kept in read(path_of(face, name)).items():
        for rank, expected in enumerate(kept["ranks"]):
            loader = loaded(case, rank, kept["states"], data)
            assert following(loader, case.rest_limit) == expected, (cut, rank)
            closed(loader)


@pytest.mark.parametrize("case", IN_PROCESS, ids=name_of)
def test_a_loader_goes_on_from_a_kept_state_as_the_one_did_that_saved_it(case, data):
    check(*case, data)


@pytest.mark.parametrize("case", WITH_PROCESSES, ids=name_of)
def test_it_does_so_with_worker_processes(case, data, processes):
    check(*case, data)


def test_each_kept_state_is_of_a_case():
    kept = {path.relative_to(GOLDEN) for path in GOLDEN.glob("*/*.json")}
    assert kept == {path_of(face, name).relative_to(GOLDEN) for face, name in ALL}


def loader_states_in(saved):
    """Yield each state of one rank's ``DataLoader``, however deep it lies."""
    if isinstance(saved, Mapping) and {"version", "seed", "step"} <= set(saved) and set(PLAN_KINDS) & set(saved):
        yield saved
    parts = saved.values() if isinstance(saved, Mapping) else saved if isinstance(saved, (list, tuple)) else ()
    for part in parts:
        yield from loader_states_in(part)


def test_what_is_read_of_a_kept_state_of_a_data_loader_says_the_same():
    kept = [read(path_of(face, name)) for face, name in ALL]
    states = [state for cuts in kept for cut in cuts.values() for state in loader_states_in(cut["states"])]
    assert len(states) > 200
    for state in states:
        assert LoaderState.read(state).plain() == state

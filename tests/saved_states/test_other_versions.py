"""A state of another version is refused by its number: it may mean something else by the same fields."""

import copy

import pytest
from state_cases import closed, loaded, read
from state_faces import FACES, path_of

from fkat_data import StateMismatchError
from fkat_data.datasets import TokenBudgetBatchSampler
from fkat_data.mixing import DictBatchSampler, RoundRobin

#: Of each face, a state that is gathered from all ranks, and one that is a rank's own.
KEPT = [
    *(("sharded", name) for name in ("two ranks", "two ranks for three", "two ranks each its own", "files")),
    *(("data_loader", name) for name in ("shuffled", "dealt even", "dealt even gathered", "row with a state")),
    *(("data_loader", name) for name in ("distributed sampler gathered", "random sampler")),
    *(("streaming", name) for name in ("block", "py1e on two ranks", "the reference's", "own iteration")),
    *(("mixture", name) for name in ("shards and samples", "two ranks with a stream", "each its own")),
]


def with_version(state, version):
    return {**copy.deepcopy(state), "version": version}


@pytest.mark.parametrize(("face", "name"), KEPT)
def test_another_versions_state_is_refused_by_its_number_and_nothing_has_changed(face, name, tmp_path):
    case, kept = FACES[face][name], read(path_of(face, name))["middle" if name != "two ranks for three" else "in step"]
    loader = loaded(case, 0, kept["states"], tmp_path)
    place = loader.state_dict()
    for version, hint in ((1, "before the first release"), (99, "another version")):
        states = [with_version(state, version) for state in kept["states"]]
        if face == "streaming" and version == 1:
            continue  # the only one of a stream's states
        with pytest.raises(StateMismatchError, match=hint) as raised:
            loaded(case, 0, states, tmp_path)
        assert (raised.value.field, str(raised.value.saved)) == ("version", f"{version}")
        with pytest.raises(StateMismatchError, match="version"):
            loader.load_state_dict(states[0])
        assert repr(loader.state_dict()) == repr(place)
    closed(loader)


@pytest.mark.parametrize("name", ["dealt uneven split gathered", "distributed sampler gathered"])
def test_so_is_one_ranks_within_a_gathered_state(name, tmp_path):
    case, (state,) = FACES["data_loader"][name], read(path_of("data_loader", name))["middle"]["states"]
    (sealed,) = state["place"]
    sealed["all_rank_states"][1]["version"] = 99
    for rank in (0, 1):
        with pytest.raises(StateMismatchError, match="version"):
            loaded(case, rank, [state], tmp_path)


@pytest.mark.parametrize("source", ["stream", "samples", "shards"])
def test_so_is_one_of_a_mixtures_source(source, tmp_path):
    case, (state,) = FACES["mixture"]["with a stream"], read(path_of("mixture", "with a stream"))["middle"]["states"]
    state["sources"][source]["state"]["version"] = 99
    with pytest.raises(StateMismatchError, match="version"):
        loaded(case, 0, [state], tmp_path)


@pytest.mark.parametrize(
    "sampler",
    [
        DictBatchSampler(RoundRobin(["a"]), {"a": [[0, 1], [2]]}),
        TokenBudgetBatchSampler([1, 2, 3], 4, seed=1),
    ],
    ids=["mixed batches", "token budget"],
)
def test_so_is_one_of_a_batch_sampler(sampler):
    with pytest.raises(StateMismatchError, match="version"):
        sampler.load_state_dict(with_version(sampler.state_dict(), sampler.state_dict()["version"] + 1))

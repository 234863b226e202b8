"""What the program says of the states in a checkpoint."""

import json
from functools import partial
from pathlib import Path

import command_examples
import pytest
import torch
from torch.utils.data import DistributedSampler, Sampler
from walks import begun

from fkat_data import DataLoader, ShardedDataLoader, samplers
from fkat_data.errors import StateMismatchError
from fkat_data.plan.state import unsealed
from fkat_data.tools import positions_in, read_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "states" / "version_2"


said = partial(command_examples.said, "explain")


def dealt(rank, num_ranks, num_delivered):
    """Return the state of a rank that has had so many microbatches."""
    loader = DataLoader(list(range(20)), 2, shuffle=True, seed=1)
    loader.deal_out(num_ranks, rank)
    begun(loader, num_delivered)
    return loader.local_state_dict()


def test_each_state_that_was_ever_saved_is_explained():
    paths = sorted(GOLDEN.rglob("*.*"))
    assert paths
    for path in paths:
        positions = list(positions_in(read_checkpoint(path)))
        assert positions or path.name == "labelled.json" or path.with_suffix(".pt").exists(), path
        assert all(position.loads_on and position.ranks for position in positions), path
        assert all(rank.epoch >= 0 and rank.left for position in positions for rank in position.ranks), path


def test_a_checkpoint_says_where_its_loaders_stand_and_who_can_load_them(tmp_path):
    merged = DataLoader.merge_state_dicts([dealt(rank, 2, 3) for rank in range(2)])
    torch.save({"step": 3, "model": {"weight": torch.ones(3)}, "loaders": [merged]}, tmp_path / "last.ckpt")
    output = said(tmp_path / "last.ckpt")
    assert "loaders.0: DataLoader" in output
    assert output.count("2 of 5 microbatches") == 2
    assert "loads on any number of ranks" in output


def test_what_the_program_says_is_left_is_what_comes(tmp_path):
    for num_delivered in range(5):
        state = dealt(1, 3, min(num_delivered, 4))
        loader = DataLoader(list(range(20)), 2, shuffle=True, seed=1)
        loader.deal_out(3, 1)
        loader.load_state_dict(state)
        num_left = sum(1 for _ in loader)
        (position,) = positions_in({"": state})
        if num_delivered:
            assert position.ranks[0].left == f"{num_left} of 4 microbatches", num_delivered


@pytest.mark.parametrize("field", ["version", "seed", "epoch", "step", "sampler"])
@pytest.mark.parametrize("damage", ["gone", "text"])
def test_a_damaged_state_of_a_rank_is_named_by_its_field(field, damage):
    merged = unsealed(DataLoader.merge_state_dicts([dealt(rank, 2, 3 - rank) for rank in range(2)]))
    entry = merged["all_rank_states"][1]
    if damage == "gone":
        del entry[field]
    else:
        entry[field] = "text"
    with pytest.raises(StateMismatchError) as caught:
        list(positions_in({"loader": merged}))
    assert caught.value.field == field


def test_one_rank_alone_says_what_is_missing():
    (position,) = positions_in(dealt(0, 2, 1))
    assert position.loads_on.startswith("2 ranks; merge_state_dicts()")


class OwnRanks(Sampler):
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        return iter(range(self.rank, 20, 2))


def test_one_rank_says_whether_its_state_is_of_all():
    loader = DataLoader(range(20), 2, sampler=DistributedSampler(range(20), 2, 1), seed=1)
    begun(loader, 3)
    (position,) = positions_in(loader.state_dict())
    assert [(each.rank, each.step) for each in position.ranks] == [(0, 3), (1, 3)]
    assert position.loads_on == "any number of ranks"
    loader = DataLoader(range(20), 2, sampler=OwnRanks(1), seed=1)
    begun(loader, 3)
    (position,) = positions_in(loader.state_dict())
    assert position.loads_on.startswith("rank 1; merge_state_dicts()")


def test_shards_are_counted_by_rank(tmp_path):
    states = []
    for rank in range(2):
        sampler = samplers.DistributedDataParallelShardSampler(["a", "b", "c", "d"], 2, rank)
        with ShardedDataLoader(
            0, sampler, lambda shard: [f"{shard}{n}" for n in range(3)], multiprocessing=False
        ) as loader:
            begun(loader, 1 + 3 * rank)
            states.append(loader.local_state_dict())
    (tmp_path / "state.json").write_text(json.dumps(states[1]))
    assert "each with its own state" in said(tmp_path / "state.json")
    (position,) = positions_in(ShardedDataLoader.merge_state_dicts(states))
    assert [rank.left for rank in position.ranks] == [
        "2 of 2 shards, the first of them from microbatch 1 on",
        "1 of 2 shards, the first of them from microbatch 1 on",
    ]
    assert position.loads_on == "any number of ranks"


class Code:
    pass


def test_what_cannot_be_explained_is_an_error_with_a_way_out(tmp_path):
    torch.save({"object": Code(), "loader": dealt(0, 1, 1)}, tmp_path / "objects.pt")
    (tmp_path / "empty.json").write_text("{}")
    assert "--trusted" in said(tmp_path / "objects.pt", code=2)
    said(tmp_path / "objects.pt", "--trusted")
    assert "state_dict()" in said(tmp_path / "empty.json", code=2)
    torch.save({**dealt(0, 1, 1), "version": 99}, tmp_path / "newer.pt")
    assert "99" in said(tmp_path / "newer.pt", code=2)


def test_a_folder_is_explained_file_by_file(tmp_path):
    torch.save({"loader": dealt(0, 1, 2)}, tmp_path / "one.pt")
    (tmp_path / "two.json").write_text(json.dumps(dealt(0, 1, 4)))
    output = said(tmp_path)
    assert "one.pt.loader: DataLoader" in output
    assert "two.json: DataLoader" in output


def test_what_the_caller_has_left_out_is_a_note():
    loader = DataLoader(list(range(20)), 2, shuffle=True, seed=1)
    begun(loader, 2)
    loader.exclude([record.sample_id for record in loader.samples_of(5)])
    (position,) = positions_in(loader.state_dict())
    assert position.ranks[0].left == "7 of 7 microbatches"
    assert position.notes == ("the caller has left samples or steps out 1 time",)

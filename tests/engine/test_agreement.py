"""Ranks that disagree are found out: the comparison as a function, then four gloo ranks, two replicas each."""

import pytest

PROGRAM = """
import json, sys
import torch, torch.distributed
from fkat_data import DistributedDataParallelShardSampler, RankMismatchError, ShardedDataLoader
from fkat_data.runtime.distributed import gather

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
dp_rank, replica = divmod(rank, 2)
group = [2 * dp_rank, 2 * dp_rank + 1]
found = {}

def make(*, seed=7, shards=8, bend=None, replica_group=group, **options):
    sampler = DistributedDataParallelShardSampler([str(index) for index in range(shards)], 2, dp_rank)
    def factory(shard):
        return [torch.full((3000,), 10 * int(shard) + index + (rank == bend)) for index in range(5)]
    return ShardedDataLoader(seed, sampler, factory, dp_rank=dp_rank, multiprocessing=False, replica_group=replica_group,
                             check_ranks_every=3, **options)

def told(name, loader, steps=None):
    count = 0
    try:
        for count, _ in enumerate(loader, 1):
            if count == steps:
                break
        found[name] = count
    except RankMismatchError as error:
        found[name] = [count, error.field, str(error)]

told("agree", make())
told("seed", make(seed=7 + (rank == 3)))
told("shards", make(shards=8 + 2 * (rank == 2)))
told("content", make(bend=1))
told("plan alone", make(replica_group=None, seed=7 + (rank == 0)))
loader = make()
iterator = iter(loader)
for _ in range(4 + (rank == 3)):
    next(iterator)
state = loader.local_state_dict()
resumed = make()
resumed.load_state_dict(state)
told("position", resumed)
again = make()
told("before the load", again, 2)
again.load_state_dict(make().local_state_dict())
told("after the load", again)
torch.distributed.barrier()
if rank != 2:
    try:
        gather("state", timeout_s=2)
    except RankMismatchError as error:
        found["absent"] = str(error)
with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def found(prepared, tmp_path_factory):
    return prepared.found_by_ranks(4, PROGRAM, tmp_path_factory.mktemp("ranks"))


def test_ranks_that_agree_are_told_nothing_also_after_a_load(found):
    for ranks in found:
        assert [ranks[name] for name in ("agree", "before the load", "after the load")] == [20, 2, 20]


@pytest.mark.parametrize("name", ["seed", "plan alone"])
def test_another_seed_is_named_on_every_rank_before_the_first_microbatch(found, name):
    text = {"seed": "7 on ranks 0, 1, 2; 8 on rank 3", "plan alone": "8 on rank 0; 7 on ranks 1, 2, 3"}[name]
    for ranks in found:
        assert ranks[name] == [0, "seed", f"ranks disagree on seed: {text}"]


def test_another_list_of_shards_is_named_before_the_first_microbatch(found):
    for ranks in found:
        count, field, text = ranks["shards"]
        assert (count, field) == (0, "all shards")
        assert "on ranks 0, 1, 3; digest" in text
        assert text.endswith("on rank 2")


def test_replicas_that_are_given_other_data_are_named_within_two_intervals(found):
    for rank in (0, 1):
        count, field, text = found[rank]["content"]
        assert count in (5, 6)
        assert field == "the content of delivered microbatches"
        assert "on rank 0" in text
        assert "on rank 1" in text
    assert [found[rank]["content"] for rank in (2, 3)] == [20, 20]


def test_replicas_at_other_places_are_named_after_a_load(found):
    assert [found[rank]["position"] for rank in (0, 1)] == [16, 16]
    for rank in (2, 3):
        assert found[rank]["position"][:2] == [0, "shard"]
        assert found[rank]["position"][2] == "ranks disagree on shard: 0 on rank 2; 1 on rank 3"


def test_a_rank_that_does_not_call_state_dict_is_named(found):
    assert "rank 2" in found[0]["absent"].lower() or "ranks 2" in found[0]["absent"].lower()
    assert all("not every rank called it within 2 s" in found[rank]["absent"] for rank in (0, 1, 3))

import pytest
import torch

from fkat_data.runtime.distributed import gather, rank_and_world_size

PROGRAM = """
import sys, json, logging, time
import torch, torch.distributed
import torch.distributed.checkpoint as checkpoint
from fkat_data import ConfigurationError, DistributedDataParallelShardSampler, ShardedDataLoader, StateMismatchError
from fkat_data.runtime.distributed import gather, rank_and_world_size

folder = sys.argv[1]
torch.distributed.init_process_group("gloo")
rank, world_size = rank_and_world_size()
found = {"gathered": gather({"rank": rank})}

log = logging.Handler()
log.lines = []
log.emit = lambda record: log.lines.append(record.getMessage())
logging.getLogger("fkat_data.runtime.distributed").addHandler(log)
for late in (1, 0):
    if rank == late:
        time.sleep(1.5)
    gather(rank, warning_s=0.5)
gather(rank, warning_s=0.5)
found["log"] = log.lines

def factory(shard):
    return [torch.tensor([int(shard), index]) for index in range(3)]

def make(size=world_size):
    shards = [str(index) for index in range(12)]
    sampler = DistributedDataParallelShardSampler(shards, size, rank % size)
    return ShardedDataLoader(7, sampler, factory, num_shard_prefetches=3, dp_rank=rank, multiprocessing=False)

loader = make()
whole = [microbatch.tolist() for microbatch in loader]
loader = make()
iterator = iter(loader)
# Rank 0 is one microbatch into its shard at index 1, rank 1 into its shard at index 2; with 3 shards prefetched the
# samplers stand at 4 and 5.
count = 4 + 3 * rank
for _ in range(count):
    next(iterator)
state = loader.state_dict()
found["indices"] = [int(index) for index in state["all_rank_indices"]]
found["microbatches"] = state["all_rank_microbatches"]
found["dp_size"] = state["dp_size"]
found["merged"] = str(loader.merge_state_dicts(gather(loader.local_state_dict()))) == str(state)

resumed = make()
resumed.load_state_dict(state)
found["resumed"] = [microbatch.tolist() for microbatch in resumed] == whole[count:]

local = make()
local.load_state_dict(loader.local_state_dict())
found["local"] = [microbatch.tolist() for microbatch in local] == whole[count:]

found["state"] = str(state)
checkpoint.save({"loader": loader}, checkpoint_id=folder)
fresh = make()
checkpoint.load({"loader": fresh}, checkpoint_id=folder)
found["checkpoint"] = [microbatch.tolist() for microbatch in fresh] == whole[count:]

# The background has a process group of its own; the loop goes on meanwhile.
group = torch.distributed.new_group(backend="gloo")
saving = checkpoint.async_save({"loader": loader}, checkpoint_id=folder + "/async", process_group=group)
next(iterator)
loader.state_dict()
saving.result()
fresh = make()
checkpoint.load({"loader": fresh}, checkpoint_id=folder + "/async")
found["async"] = [microbatch.tolist() for microbatch in fresh] == whole[count:]

three = {**state, "all_rank_indices": [torch.tensor(0)] * 3, "dp_size": 3}
for name in list(three):
    if name.startswith("all_rank") and name != "all_rank_indices":
        del three[name]
three["fingerprint"] = {"seed": 7}
loader = make()
loader.load_state_dict(three)
found["other world"] = [microbatch.tolist() for microbatch in loader]
try:
    unsplit = ShardedDataLoader(7, ["0", "1"], factory, dp_rank=rank, multiprocessing=False)
    unsplit.load_state_dict(three)
except StateMismatchError as error:
    found["not split"] = str(error)
try:
    ShardedDataLoader(7, ["0", "1"], factory, dp_rank=2, multiprocessing=False)
except ConfigurationError as error:
    found["no such rank"] = str(error)
with open(f"{folder}/rank{rank}.json", "w") as file:
    json.dump(found, file)
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(prepared, tmp_path_factory):
    """What two gloo ranks found."""
    return prepared.found_by_ranks(2, PROGRAM, tmp_path_factory.mktemp("ranks"))


def test_a_rank_that_waits_names_the_missing_ones_and_what_to_call_instead(ranks):
    for rank, found in enumerate(ranks):
        (line,) = found["log"]
        assert line.startswith(f"rank {rank} has waited 0 s in state_dict() for rank {1 - rank}: ")
        assert "local_state_dict()" in line


def test_three_shards_prefetched_and_samplers_at_four_and_five_are_saved_as_zero_and_one(ranks):
    for found in ranks:
        assert found["indices"] == [0, 1]
        assert found["microbatches"] == [1, 1]
        assert found["dp_size"] == 2


@pytest.mark.parametrize("how", ["resumed", "local", "checkpoint", "async", "merged"])
def test_each_rank_resumes_exactly_where_it_was(ranks, how):
    assert [found[how] for found in ranks] == [True, True]


def test_a_state_of_another_number_of_ranks_is_split_anew(ranks):
    # Three ranks had four shards each, and had delivered the first.
    left = [shard for shard in range(12) if shard % 4]
    delivered = [item for found in ranks for item in found["other world"]]
    assert sorted(delivered) == [[shard, index] for shard in left for index in range(3)]
    assert abs(len(ranks[0]["other world"]) - len(ranks[1]["other world"])) <= 3


def test_a_state_of_another_number_of_ranks_is_refused_by_name_where_the_sampler_splits_nothing(ranks):
    for found in ranks:
        assert found["not split"].startswith("state field 'dp_size': saved 3, expected 2")


def test_without_torch_distributed_there_is_one_rank():
    assert rank_and_world_size() == (0, 1)
    value = torch.tensor(1)
    assert gather(value) == [value]


def test_a_rank_outside_the_world_is_refused(ranks):
    assert {found["no such rank"] for found in ranks} == {"dp_rank = 2: expected an integer from 0 to 1"}

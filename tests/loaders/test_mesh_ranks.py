"""Loaders with ``mesh=``: four gloo ranks in two groups of two get what two ranks without replicas get, bit for bit."""

import pytest

PROGRAM = """
import json, sys
from itertools import islice
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DistributedSampler, IterableDataset, get_worker_info
from fkat_data import ConfigurationError, DataLoader, DistributedDataParallelShardSampler, RankMismatchError
from fkat_data import ShardedDataLoader
from fkat_data.datasets import PackedDataset
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset, World

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), sys.argv[1]
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp_shard"))  # replicas are 0 and 2, and 1 and 3
dp_rank = rank % 2
found = {}
if rank == 0:
    with MDSWriter(out=f"{folder}/stream", columns={"number": "int"}, size_limit=500) as writer:
        for number in range(60):
            writer.write({"number": number})
dist.barrier()

class Drawn(torch.utils.data.Dataset):
    bend = 0
    def __len__(self):
        return 46
    def __getitem__(self, index):
        return index, int(torch.randint(1000, ())) + self.bend

class Own(IterableDataset):
    def __iter__(self):
        yield from ((10 * number + dp_rank, int(torch.randint(1000, ()))) for number in range(9))

class Counted(IterableDataset):
    counts_workers_of_all_ranks = True
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 30, info.num_workers)

def rows(samples):
    return [row for row, _ in samples for _ in range(row % 3)]

def packed():
    documents = [torch.full((1 + index % 5,), index) for index in range(40)]
    return PackedDataset(documents, 8, 16, lengths=[1 + index % 5 for index in range(40)], pad_value=-1, seed=3)

def stream(**given):
    return StreamingDataset(local=f"{folder}/stream", shuffle=True, batch_size=4, **given)

def sharded(shards=None, **given):
    shards = shards or [str(shard) for shard in range(8)]
    make = lambda shard: [torch.rand(2) + int(shard) for _ in range(5)]
    return ShardedDataLoader(5, shards, make, multiprocessing=False, **given)

LOADERS = {
    "shuffled": lambda **given: DataLoader(Drawn(), 3, shuffle=True, **given),
    "windows": lambda **given: DataLoader(Drawn(), 3, shuffle=True, window_fn=rows, window_size=8, **given),
    "packed": lambda **given: DataLoader(packed(), 1, collate_fn=lambda some: some[0]["tokens"], **given),
    "iterable": lambda **given: DataLoader(Own(), 2, **given),
    "counted": lambda **given: DataLoader(Counted(), 2, num_workers=2, start_method="fork", **given),
    "sampler": lambda **given: DataLoader(Drawn(), 3, sampler=DistributedSampler(range(46), 2, dp_rank), **given),
    "stream": lambda of={}, **given: StreamingDataLoader(stream(**of), **given),
    "windows of a stream": lambda of={}, **given: DataLoader(
        stream(**of), 4, window_fn=list, window_size=8, **given),
    "shards": sharded,
}

def of_two_ranks(name):
    # A rank's loader in a job of two, without a mesh.
    own = {"of": {"world": World(1, 2, 1, dp_rank)}} if "stream" in name else {}
    if name == "shards":
        own = {"shards": DistributedDataParallelShardSampler([str(shard) for shard in range(8)], 2, dp_rank)}
    elif "stream" not in name:
        own["seed"] = 5
    loader = LOADERS[name](dp_rank=None if name == "counted" else dp_rank, **own)
    if name not in ("shards", "sampler"):
        loader.deal_out(2, dp_rank)
    return loader

def plain(microbatch):
    if isinstance(microbatch, torch.Tensor):
        return microbatch.tolist()
    if isinstance(microbatch, dict):
        return {name: plain(part) for name, part in microbatch.items()}
    return [plain(part) for part in microbatch] if isinstance(microbatch, (list, tuple)) else microbatch

torch.manual_seed(rank)
for name, make in LOADERS.items():
    loader = make(mesh=mesh)
    epoch = iter(loader)
    begun = [plain(each) for each in islice(epoch, 2)]
    state = loader.state_dict()
    rest = [plain(each) for each in epoch]
    resumed = make(mesh=mesh)
    resumed.load_state_dict(state)
    seeded = {} if "stream" in name or name == "shards" else {"seed": 5}
    with_mesh, without = make(mesh=mesh, **seeded), of_two_ranks(name)
    found[name] = {
        "all": begun + rest,
        "resumed": [plain(each) for each in resumed] == rest,
        "as two ranks": [plain(each) for each in with_mesh] == [plain(each) for each in without],
    }
    if name == "shuffled":
        alone = DataLoader(Drawn(), 3, shuffle=True)
        alone.load_state_dict(state)
        found["alone"] = [plain(each) for each in alone]
    for each in (loader, resumed, with_mesh, without):
        each.close()

def refused(name, make):
    try:
        make()
    except ConfigurationError as error:
        found[name] = [error.argument, str(error)]

refused("dp_rank", lambda: LOADERS["shuffled"](mesh=mesh, dp_rank=1 - dp_rank))
refused("dp_rank of shards", lambda: LOADERS["shards"](mesh=mesh, dp_rank=1 - dp_rank))
refused("replica_group", lambda: LOADERS["shards"](mesh=mesh, replica_group=[rank]))
refused("another sampler", lambda: DataLoader(
    Drawn(), sampler=DistributedSampler(range(46), 4, rank), mesh=mesh, dp_dims="dp_shard"))
refused("deal_out", lambda: LOADERS["shuffled"](mesh=mesh).deal_out(4, rank))
refused("replication", lambda: StreamingDataLoader(
    StreamingDataset(local=f"{folder}/stream", batch_size=4, replication=2), mesh=mesh))
LOADERS["shuffled"](mesh=mesh).deal_out(2, dp_rank)
bent = Drawn()
bent.bend = int(rank == 3)
loader = DataLoader(bent, 1, seed=3, mesh=mesh)
try:
    for _ in range(12):
        list(loader)
except RankMismatchError as error:
    found["bent"] = [error.field, str(error)]
with open(f"{folder}/rank{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(prepared, tmp_path_factory):
    return prepared.found_by_ranks(4, PROGRAM, tmp_path_factory.mktemp("mesh"))


KINDS = ("shuffled", "windows", "packed", "iterable", "counted", "sampler", "stream", "windows of a stream", "shards")


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_a_group_get_the_same_and_groups_get_what_two_ranks_would(found, kind):
    of_ranks = [ranks[kind] for ranks in found]
    assert of_ranks[0]["all"] == of_ranks[2]["all"]
    assert of_ranks[1]["all"] == of_ranks[3]["all"]
    assert of_ranks[0]["all"] != of_ranks[1]["all"]
    assert all(each["as two ranks"] for each in of_ranks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_all_ranks_resumes_each_group_where_it_was(found, kind):
    assert all(ranks[kind]["resumed"] for ranks in found)


def test_one_rank_goes_on_with_what_both_groups_had_left(found):
    begun = [microbatch for ranks in found[:2] for microbatch in ranks["shuffled"]["all"][:2]]
    for ranks in found:
        assert sorted(index for microbatch in begun + ranks["alone"] for index in microbatch[0]) == list(range(46))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("dp_rank", "dp_rank"),
        ("dp_rank of shards", "dp_rank"),
        ("replica_group", "replica_group"),
        ("another sampler", "mesh"),
        ("deal_out", "deal_out"),
        ("replication", "replication"),
    ],
)
def test_what_contradicts_the_mesh_is_refused_by_its_name(found, name, field):
    for ranks in found:
        assert ranks[name][0] == field


def test_replicas_that_make_other_microbatches_are_named(found):
    for rank in (1, 3):
        field, text = found[rank]["bent"]
        assert field == "the content of delivered microbatches"
        assert "on rank 1" in text
        assert "on rank 3" in text
    assert all("bent" not in found[rank] for rank in (0, 2))

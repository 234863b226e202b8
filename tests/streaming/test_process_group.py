"""Ranks that a process group numbers, without environment variables."""

import json

import pytest
from streaming_examples import write

PROGRAM = """
import json, os, sys
import torch.distributed
from torch.utils.data import DataLoader
from fkat_data import ConfigurationError, ShardedDataLoader
from fkat_data.streaming import StreamingDataLoader, StreamingDataset

folder, rank = sys.argv[1], int(sys.argv[2])

def make():
    return StreamingDataset(local=folder + "/data", batch_size=4, shuffle=True, shuffle_algo="block")

def numbers(batches):
    return sorted(number for batch in batches for number in batch["number"].tolist())

if __name__ == "__main__":
    found = {}
    early = make()
    found["early"] = len(early)
    try:
        next(iter(early))
    except ConfigurationError as error:
        found["refused"] = str(error)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found["late"] = len(early)
    found["loader"] = numbers(StreamingDataLoader(early))
    found["spawned"] = numbers(DataLoader(make(), batch_size=4, num_workers=1, multiprocessing_context="spawn"))
    with ShardedDataLoader(0, ["0"], lambda shard: StreamingDataLoader(make())) as loader:
        found["sharded"] = numbers(loader)
    os.environ["RANK"] = str(1 - rank)
    try:
        next(iter(StreamingDataLoader(make())))
    except ConfigurationError as error:
        found["contradiction"] = error.argument
    print(json.dumps(found))
    torch.distributed.destroy_process_group()
"""


@pytest.mark.usefixtures("processes")
def test_each_rank_reads_its_part_in_every_process(prepared, tmp_path):
    write(tmp_path / "data", 40)
    (tmp_path / "program.py").write_text(PROGRAM)
    # Lightning's launcher sets variables for the ranks that it starts, but not for the one that it runs in.
    ranks = prepared.run_together(
        [(tmp_path / "program.py", tmp_path, rank) for rank in range(2)],
        folder=tmp_path,
        variables=[{}, {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}],
    )
    assert not any(rank.returncode for rank in ranks), [rank.stderr for rank in ranks]
    first, second = (json.loads(rank.stdout.splitlines()[-1]) for rank in ranks)
    assert first["early"] == 40
    assert "refused" not in first
    # The variables give the number of ranks, but not this one's index.
    assert second["early"] == 20
    assert "RANK = <unset>" in second["refused"]
    assert "WORLD_SIZE = 2" in second["refused"]
    for found in (first, second):
        assert found["late"] == 20
        assert found["contradiction"] == "RANK"
        assert found["loader"] == found["spawned"] == found["sharded"]
    assert sorted(first["loader"] + second["loader"]) == list(range(40))

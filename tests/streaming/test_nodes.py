"""Several nodes, as torchrun starts them: each a launcher with a cache of its own, side by side on one machine."""

import collections
import itertools
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from proxy import FaultServer
from streaming_examples import write

from fkat_data.streaming import StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.usefixtures("processes", "nothing_left_behind")

COUNT = 96
GLOBAL_BATCH_SIZE = 8

RANK = """
import json, os, sys
from pathlib import Path
from fkat_data.streaming import StreamingDataLoader, StreamingDataset

url, local, folder, batch_size, num_steps = sys.argv[1:]
folder, rank = Path(folder), int(os.environ["RANK"])
dataset = StreamingDataset(
    remote=url, local=local, batch_size=int(batch_size), shuffle=True, shuffle_algo="block", shuffle_block_size=40,
    num_canonical_nodes=2, validate_hash="sha256", predownload=8,
)
loader = StreamingDataLoader(dataset, num_workers=1)
if (folder / "state.json").exists():
    loader.load_state_dict(json.loads((folder / "state.json").read_text()))
batches = []
for batch in loader:
    assert batch["text"] == [f"sample {number}" for number in batch["number"].tolist()]
    batches.append(batch["number"].tolist())
    if len(batches) == int(num_steps):
        break
(folder / f"state{rank}.json").write_text(json.dumps(loader.state_dict()))
(folder / f"rank{rank}.json").write_text(json.dumps(batches))
"""


def launch(program, num_nodes, num_ranks, *arguments_of_node):
    """Start so many launchers, wait for all, and fail with what they said."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launchers = [
        subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run"),
                *(f"--nnodes={num_nodes}", f"--node-rank={node}", f"--nproc-per-node={num_ranks}"),
                *("--master-addr=127.0.0.1", f"--master-port={port}"),
                *map(str, (program, *arguments)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node, arguments in enumerate(arguments_of_node)
    ]
    try:
        said = [launcher.communicate(timeout=150)[0] for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    assert [launcher.returncode for launcher in launchers] == [0] * num_nodes, said


def steps_of(folder, num_ranks):
    """Return each step's samples, over all ranks, and remove what the ranks wrote of them."""
    found = []
    for rank in range(num_ranks):
        path = folder / f"rank{rank}.json"
        found.append(json.loads(path.read_text()))
        path.unlink()
    return [sorted(itertools.chain(*step)) for step in zip(*found, strict=True)]


def test_nodes_of_torchrun_fetch_once_each_and_one_node_goes_on_with_the_same_global_batches(prepared, tmp_path):
    data = Path(write(tmp_path / "data", COUNT, hashes=["sha256"], compression="zstd"))
    program, folder = tmp_path / "rank.py", tmp_path / "run"
    program.write_text(RANK)
    folder.mkdir()
    # In one process, from the directory itself.
    options = {"shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 40, "num_canonical_nodes": 2}
    whole = StreamingDataLoader(StreamingDataset(local=str(data), batch_size=GLOBAL_BATCH_SIZE, **options))
    expected = [sorted(batch["number"].tolist()) for batch in whole]
    assert sorted(itertools.chain(*expected)) == list(range(COUNT))
    with FaultServer(data) as server:
        nodes = [(server.url, tmp_path / f"cache{node}", folder, 2, 5) for node in range(2)]
        launch(program, 2, 2, *nodes)
        steps = steps_of(folder, 4)
        states = [(folder / f"state{rank}.json").read_text() for rank in range(4)]
        assert len(set(states)) == 1
        fetched = collections.Counter({name: server.count(name) for name in {path.name for path in data.iterdir()}})
        fetched.pop("index.json")
        assert all(count <= 2 for count in fetched.values()), fetched  # once a node at most
        assert max(fetched.values()) > 0

        (folder / "state.json").write_text(states[0])
        ranks = prepared.run_ranks(2, program, server.url, tmp_path / "cache1", folder, 4, -1, folder=tmp_path)
        assert not any(rank.returncode for rank in ranks), [rank.stderr for rank in ranks]
        assert [*steps, *steps_of(folder, 2)] == expected
    # Nothing but the index and whole shards.
    assert {path.suffix for path in (tmp_path / "cache1").iterdir() if path.is_file()} == {".json", ".mds"}


# Ranks that a process group numbers, without environment variables.
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


def test_each_rank_reads_its_part_in_every_process(processes, prepared, tmp_path):
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

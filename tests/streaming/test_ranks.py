"""Ranks as processes of their own, which share nothing but files."""

import json

import pytest
from streaming_examples import global_batches, write

PROGRAM = """
import json, sys
from fkat_data.streaming import StreamingDataLoader, StreamingDataset

options = json.loads(sys.argv[1])
state = options.pop("state")
loader = StreamingDataLoader(StreamingDataset(**options))
if state:
    loader.load_state_dict(state)
read, states = [], []
for batch in loader:
    read.append(batch["number"].tolist())
    states.append(loader.state_dict())
print(json.dumps([read, states]))
"""


def run_ranks(prepared, folder, num_nodes, ranks_per_node, **options):
    """Run all ranks side by side; return what they read by step, and their states."""
    (folder / "program.py").write_text(PROGRAM)
    world_size = num_nodes * ranks_per_node
    job = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": ranks_per_node}
    ranks = prepared.run_together(
        [("program.py", json.dumps(options))] * world_size,
        folder=folder,
        variables=[{"RANK": rank, **job} for rank in range(world_size)],
    )
    assert not any(rank.returncode for rank in ranks), [rank.stderr for rank in ranks]
    outputs = [json.loads(rank.stdout) for rank in ranks]
    steps = zip(*(read for read, _ in outputs), strict=True)
    return [sorted(number for batch in step for number in batch) for step in steps], [states for _, states in outputs]


@pytest.mark.usefixtures("processes", "nothing_left_behind")
def test_ranks_fetch_side_by_side_and_a_run_goes_on_in_another_world(prepared, tmp_path):
    data = write(tmp_path / "data", 96, compression="zstd", hashes=["xxh64"])
    options = {"shuffle": True, "shuffle_algo": "block", "shuffle_block_size": 40, "num_canonical_nodes": 2}
    copied = options | {"remote": data, "local": str(tmp_path / "local"), "validate_hash": "xxh64"}
    whole, states = run_ranks(prepared, tmp_path, 2, 1, state=None, batch_size=6, **copied)
    assert whole == global_batches(1, 1, remote=data, batch_size=12, **options)
    assert states[0] == states[1]
    rest, _ = run_ranks(prepared, tmp_path, 1, 3, state=states[0][2], batch_size=4, **copied)
    assert rest == whole[3:]
    # Nothing but the index and whole shards.
    names = {path.name.split(".")[-1] for path in (tmp_path / "local").iterdir() if path.is_file()}
    assert names == {"json", "mds"}

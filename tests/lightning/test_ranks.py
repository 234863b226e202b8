"""Two ranks that Lightning starts itself, then two that torchrun starts, then one, from the same checkpoints."""

import json
import os
from pathlib import Path

import pytest
from interpreters import run_python
from lightning_examples import Model, trainer_of
from loader_examples import make, mixed
from prepared import PreparedInterpreter

from fkat_data.samplers import DistributedDataParallelShardSampler, SequenceShardSampler

pytestmark = pytest.mark.filterwarnings("ignore:::lightning", "ignore:::torch")
SCRIPT = Path(__file__).parent / "train_on_ranks.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


@pytest.fixture(scope="module")
def python(shared_processes):
    """An interpreter that has imported Lightning, and is nobody's rank."""
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(variable, None)
    with PreparedInterpreter("torch", "torch._dynamo", "lightning.pytorch", OMP_NUM_THREADS="1") as interpreter:
        yield interpreter


def found(folder, name):
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_resume_however_they_are_started_and_one_goes_on(python, tmp_path, processes):
    started = python.run(SCRIPT, tmp_path, "lightning", folder=tmp_path, timeout=170)
    assert started.returncode == 0, started.stdout + started.stderr
    ranks = found(tmp_path, "lightning")
    for case in ("unknown", "known", "DataLoader"):
        together = [microbatch for rank in ranks for microbatch in rank[case]["seen"]]
        if case == "DataLoader":  # shuffled: each epoch has other batches
            epochs = [
                [row for rank in ranks for each in rank[case]["seen"][first : first + 4] for row in each]
                for first in (0, 4)
            ]
            assert sorted(epochs[0]) == sorted(epochs[1])
            assert epochs[0] != epochs[1]
            assert len({row[0] for row in epochs[0]}) == len(epochs[0]) == 16
        else:
            assert len(together) == len({json.dumps(microbatch) for microbatch in together}) == 16
        assert ranks[0][case]["weights"] == ranks[1][case]["weights"]
        for rank in ranks:
            for num_seen, resumed in rank[f"{case} resumed"].items():
                assert resumed["seen"] == rank[case]["seen"][int(num_seen) :]
                assert resumed["weights"] == rank[case]["weights"]
    path = "unknown/2-on_train_batch_end.ckpt"
    run_python(*TORCHRUN, SCRIPT, tmp_path, "torchrun", path, cwd=tmp_path, timeout=170)
    by_torchrun = found(tmp_path, "torchrun")
    for before, after in zip(ranks, by_torchrun, strict=True):
        assert after[path]["seen"] == before["unknown"]["seen"][3:]
        assert after[path]["weights"] == before["unknown"]["weights"]
        fabric = after["fabric"]
        for num_seen, rest in fabric["resumed"].items():
            assert rest == fabric["whole"][int(num_seen) :]
    for epoch in (slice(0, 4), slice(4, 8)):
        together = [row[0] for rank in by_torchrun for batch in rank["fabric"]["whole"][epoch] for row in batch]
        assert set(together) == set(range(13))
    alone = Model()
    shards = SequenceShardSampler([f"{kind}-{name}-2" for name in "abcd" for kind in ("map", "stream")])
    loader = make(DistributedDataParallelShardSampler(shards, dp_size=1, dp_rank=0), mixed)
    trainer_of(max_epochs=1).fit(alone, loader, ckpt_path=tmp_path / path)
    left = [microbatch for rank in ranks for microbatch in rank["unknown"]["seen"][3:4]]
    assert sorted(alone.seen) == sorted(left)


def test_a_checkpoint_of_two_ranks_goes_on_with_three_and_with_one(python, tmp_path, processes, some):
    script = Path(__file__).with_name("resplit_ranks.py")
    for way in some(("deal_out", "Lightning's sampler"), 1):
        seen = []
        for num_ranks, num_steps, *before in ((2, 4), (3, 2, 2), (1, 0, 3)):
            words = (script, tmp_path, num_ranks, way, num_steps, *before)
            for rank, done in enumerate(python.run_ranks(num_ranks, *words, folder=tmp_path, timeout=170)):
                assert done.returncode == 0, done.stdout + done.stderr
                seen += json.loads((tmp_path / f"{way}-{num_ranks}-{rank}.json").read_text())
        assert sorted(seen) == list(range(47))

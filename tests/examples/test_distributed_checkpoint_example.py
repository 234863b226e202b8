"""The example of a distributed checkpoint: any number of ranks goes on where another was, each sample once."""

import ast
import re
from pathlib import Path

import pyarrow as pa
import pytest
from prepared import PreparedInterpreter
from pyarrow import parquet

PROGRAM = Path(__file__).parents[2] / "docs/examples/distributed_checkpoint/distributed_checkpoint.py"
#: Of unequal length: ranks come to the end of an epoch at different steps.
SHARD_SIZES = [8, 16, 8, 24, 40, 8, 16, 32, 8, 16, 24, 40]
NUM_SAMPLES = sum(SHARD_SIZES)


def delivered(printed):
    """The samples of epoch 0 that all ranks printed."""
    return [
        number for line in re.findall(r"epoch 0, step \d+: (\[[\d, ]*\])", printed) for number in ast.literal_eval(line)
    ]


@pytest.fixture(scope="module")
def printed(shared_processes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed checkpoint")
    (folder / "data").mkdir()
    first = 0
    for index, size in enumerate(SHARD_SIZES):
        parquet.write_table(pa.table({"value": range(first, first + size)}), folder / f"data/{index:02}.parquet")
        first += size

    for name, begun in (("one", "two/step-000004"), ("again", "two/step-000004"), ("after", "four/step-000006")):
        (folder / name).mkdir()
        (folder / name / Path(begun).name).symlink_to(folder / begun)
    (folder / "four").mkdir()
    (folder / "four/step-000004").symlink_to(folder / "two/step-000004")
    jobs = {
        "2": (2, "two", 4),
        "1": (1, "one", 30),
        "2 again": (2, "again", 20),
        "4": (4, "four", 6),
        "2 after 4": (2, "after", 20),
    }
    modules = ("torch", "torch.distributed.checkpoint", "torch.distributed.fsdp")
    printed = {}
    with PreparedInterpreter(*modules, OMP_NUM_THREADS="1") as python:
        for job, (size, name, steps) in jobs.items():
            settings = (f"folder={name}", f"steps={steps}", f"save_every={steps}", "loader.multiprocessing=false")
            ranks = python.run_ranks(size, PROGRAM, *settings, folder=folder)
            assert not any(rank.returncode for rank in ranks), [rank.stderr for rank in ranks]
            printed[job] = "".join(rank.stdout for rank in ranks)
    return printed


@pytest.mark.parametrize("names", [["1"], ["2 again"], ["4", "2 after 4"]], ids=" then ".join)
def test_each_sample_of_an_epoch_comes_once_whatever_the_ranks(printed, names):
    assert sorted(number for name in ["2", *names] for number in delivered(printed[name])) == list(range(NUM_SAMPLES))


def test_a_later_launch_goes_on_after_the_last_step(printed):
    assert {int(step) for step in re.findall(r"step (\d+)", printed["4"])} == {5, 6}

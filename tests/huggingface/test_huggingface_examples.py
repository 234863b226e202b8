"""Ranks of one machine, by torchrun and without, and the examples of the documentation."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from interpreters import run_python
from prepared import PreparedInterpreter

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent), os.environ["PYTHONPATH"]]),
}


@pytest.fixture(scope="module")
def python(shared_processes):
    """An interpreter that has imported what the programs need."""
    with PreparedInterpreter("torch", "torch._dynamo", "transformers", "accelerate", **VARIABLES) as interpreter:
        yield interpreter


def on_two_ranks(python, folder, *program):
    """Run a program on two ranks; return what they have printed."""
    ranks = python.run_ranks(2, *program, folder=folder, timeout=150)
    output, log = ("".join(getattr(rank, stream) for rank in ranks) for stream in ("stdout", "stderr"))
    assert [rank.returncode for rank in ranks] == [0, 0], output + log
    return output


def test_two_ranks_deliver_each_sample_once_and_resume_exactly(processes, python, tmp_path, some):
    kinds = some(("sharded", "DataLoader", "streaming"), 1)
    output = on_two_ranks(python, tmp_path, Path(__file__).with_name("two_ranks.py"), tmp_path, *kinds)
    assert output.endswith("all of it\n")


def test_a_checkpoint_of_two_ranks_goes_on_with_three_and_with_one(processes, python, tmp_path):
    program = Path(__file__).with_name("resplit_ranks.py")
    for number, (num_ranks, num_steps) in enumerate(((2, 4), (3, 2), (1, 0))):
        arguments = tmp_path, f"{number - 1}", f"{number}", num_steps
        for rank in python.run_ranks(num_ranks, program, *arguments, folder=tmp_path, timeout=150):
            assert rank.returncode == 0, rank.stdout + rank.stderr
    for way in ("accelerate", "prepare", "a DistributedSampler"):
        assert sorted(json.loads((tmp_path / f"{way}.json").read_text())) == list(range(47)), way


def test_packed_conversations_are_trained_on_as_if_nothing_had_stopped(processes, python, tmp_path):
    chats = [[f"<{number}>?", f"{number}{'!' * (number % 9)}"] for number in range(200)]
    roles = ("user", "assistant")
    rows = [
        {"messages": [{"role": role, "content": text} for role, text in zip(roles, chat, strict=True)]}
        for chat in chats
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    program = Path(__file__).with_name("sft_ranks.py")

    def trained(name, max_steps, num_ranks=1):
        for rank in python.run_ranks(num_ranks, program, tmp_path, name, max_steps, folder=tmp_path, timeout=150):
            assert rank.returncode == 0, rank.stdout + rank.stderr
        return [json.loads((tmp_path / f"{name}-{max_steps}-{rank}.json").read_text()) for rank in range(num_ranks)]

    (whole,), (first,), (rest,) = trained("whole", 12), trained("part", 5), trained("part", 12)
    assert first["rows"] + rest["rows"] == whole["rows"]
    assert rest["weights"] == whole["weights"]
    ranks = [*trained("ranks", 4, 2), *trained("ranks", 13)]
    seen = [number for rank in ranks for rows in rank["rows"] for row in rows for number in re.findall(r"<(\d+)>", row)]
    assert len(set(seen)) == len(seen) > 120


def test_the_example_of_accelerate_uses_each_sample_once_an_epoch_however_often_it_is_stopped(
    processes, python, tmp_path
):
    program = EXAMPLES / "accelerate" / "train.py"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program, "stop_after=7"]
    assert run_python(*words, cwd=tmp_path, **VARIABLES).stdout == ""
    assert on_two_ranks(python, tmp_path, program).startswith("samples used 2 times: 80 of 80\nweights ")


def test_the_example_of_the_trainer_is_killed_and_ends_with_the_weights_of_a_whole_run(processes, python, tmp_path):
    program = EXAMPLES / "huggingface" / "train.py"
    started = python.start([(program, "output_dir=whole"), (program,)], folders=[tmp_path] * 2, variables=[{}, {}])
    written = tmp_path / "outputs" / "huggingface" / "checkpoint-4" / "trainer_state.json"
    deadline = time.monotonic() + 120
    while not written.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(started.pids[1], signal.SIGKILL)
    whole, killed = started.wait()
    expected = whole.stdout.splitlines()[-1]
    assert killed.returncode == -signal.SIGKILL
    assert expected.startswith("weights ")
    assert python.run(program, folder=tmp_path).stdout.splitlines()[-1] == expected

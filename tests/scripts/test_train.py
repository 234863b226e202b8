import functools
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from demo_gpt.checkpoints import Checkpoints
from prepared import PreparedInterpreter

SCRIPTS = Path(__file__).parents[2] / "scripts"

STEPS = 30
EVERY_STEPS = 5

# An epoch has 16 microbatches, a step takes 2 of them: 30 steps are almost four epochs. Dropout and the shuffle of
# each shard are random; a run that resumed with another draw would show.
SETTINGS = [
    f"steps={STEPS}",
    "accumulate=2",
    f"checkpoint.every_steps={EVERY_STEPS}",
    "checkpoint.keep=1",
    "data.sequence_length=16",
    "data.factory.batch_size=2",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.width=16",
    "model.dropout=0.1",
]

# Runs the training and kills it, as `kill -9` does, where its first argument says.
DEADLY = """
import os, pathlib, runpy, signal, sys

place, scripts, *arguments = sys.argv[1:]
sys.argv = [f"{scripts}/train.py", *arguments]
sys.path[0] = scripts

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_at_call(number, owner, name):
    function, calls = getattr(owner, name), []
    def deadly(*args, **keywords):
        calls.append(name)
        return die() if len(calls) == number else function(*args, **keywords)
    setattr(owner, name, deadly)

import torch
from demo_gpt.losses import LossLog

if place == "before the first checkpoint":
    die_at_call(3, torch.optim.AdamW, "step")
elif place == "while a checkpoint is written":
    def half(content, file):
        file.write(b"PK" + bytes(1000))
        file.flush()
        die()
    torch.save = half
elif place == "before a checkpoint has its name":
    die_at_call(1, pathlib.Path, "replace")
elif place == "before older checkpoints are removed":
    die_at_call(1, pathlib.Path, "unlink")
elif place == "in the middle of a line of losses":
    def torn(log, step, loss):
        log._file.write(b'{"step": 1')
        die()
    append, LossLog.append = LossLog.append, lambda log, step, loss: (torn if step == 23 else append)(log, step, loss)
elif place == "in a step of rank 0":
    if os.environ["RANK"] == "0":
        die_at_call(8, torch.optim.AdamW, "step")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def folder(shared_processes, tmp_path_factory):
    """A folder with small shards in data/stdlib, and a program that dies."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "source").mkdir()
    text = "".join(f"line {number} of {number * number % 97}\n" for number in range(60))
    (folder / "source" / "text.py").write_text(text[: 17 * 4 * 8])  # 4 shards of 8 rows of 17 bytes
    command = [sys.executable, SCRIPTS / "prepare_data.py", "--source", "source", "--sequence-length", "16"]
    subprocess.run([*command, "--num-shards", "4"], cwd=folder, check=True, capture_output=True)
    (folder / "deadly.py").write_text(DEADLY)
    return folder


@pytest.fixture(scope="module")
def python(shared_processes, folder):
    """Runs a program in the folder, alone or as ranks."""
    modules = ("hydra", "omegaconf", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch._dynamo", "tqdm")
    with PreparedInterpreter("torch", *modules, OMP_NUM_THREADS="1") as interpreter:
        yield SimpleNamespace(
            run=functools.partial(interpreter.run, folder=folder),
            run_ranks=functools.partial(interpreter.run_ranks, folder=folder),
            start=functools.partial(interpreter.start, folders=[folder]),
        )


def program(*arguments, output_dir, place=None):
    start = [SCRIPTS / "train.py"] if place is None else ["deadly.py", place, SCRIPTS]
    return [str(part) for part in [*start, *SETTINGS, f"output_dir={output_dir}", *arguments]]


def train(python, *arguments, expected_code=0, **options):
    """Run the training to its end, and return what it printed."""
    done = python.run(*program(*arguments, **options))
    assert done.returncode == expected_code, done.stderr
    return done.stdout + done.stderr


def train_on_two_ranks(python, *arguments, **options):
    ranks = python.run_ranks(2, *program(*arguments, **options))
    assert [rank.returncode for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]
    return "".join(rank.stdout + rank.stderr for rank in ranks)


def ended_by(number, started, log, num_losses):
    """Send a signal to a training that has written so many losses, and return how it ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not log.exists() or log.read_bytes().count(b"\n") < num_losses):
        time.sleep(0.001)
    os.kill(started.pids[0], number)
    (ended,) = started.wait()
    return ended


def losses(folder, output_dir):
    return (folder / output_dir / "losses.jsonl").read_text().splitlines()


def last_checkpoint(folder, output_dir):
    (path,) = (folder / output_dir / "checkpoints").iterdir()
    assert path.name == f"step-{STEPS:06d}.pt"
    return torch.load(path, weights_only=True)


def assert_equal_runs(folder, one, other):
    assert len(losses(folder, one)) == STEPS
    assert losses(folder, one) == losses(folder, other)
    model, other_model = (last_checkpoint(folder, name)["model"] for name in (one, other))
    assert all(torch.equal(model[name], other_model[name]) for name in model)


@pytest.fixture(scope="module")
def uninterrupted(shared_processes, python):
    return train(python, output_dir="uninterrupted")


def test_the_last_line_says_what_was_done(processes, uninterrupted):
    (line,) = [line for line in uninterrupted.splitlines() if line.startswith("done: ")]
    assert "steps 1 to 30, now 12 microbatches into epoch 3" in line
    assert f"{STEPS * 2 * 2 * 16:,} tokens, loss " in line
    assert "tokens/s, waited for data " in line
    assert line.endswith("uninterrupted/checkpoints/step-000030.pt")


def test_a_run_killed_at_the_worst_moments_loses_nothing(processes, folder, python, uninterrupted):
    # Each is resumed and killed again; worker and in-process mode take turns.
    for turn, place in enumerate(
        [
            "before the first checkpoint",
            "before older checkpoints are removed",
            "while a checkpoint is written",
            "before a checkpoint has its name",
            "in the middle of a line of losses",
        ]
    ):
        mode = ("sharded", "debug")[turn % 2]
        train(python, "resume=true", f"loader={mode}", output_dir="killed", place=place, expected_code=-signal.SIGKILL)
    assert "resuming after" in train(python, "resume=true", output_dir="killed")
    assert_equal_runs(folder, "uninterrupted", "killed")


def test_a_run_killed_from_outside_at_any_moment_loses_nothing(processes, folder, python, uninterrupted, some):
    for num_losses in some((4, 17), 1):
        started = python.start([program("resume=true", output_dir="outside")], variables=[{}])
        killed = ended_by(signal.SIGKILL, started, folder / "outside" / "losses.jsonl", num_losses)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    train(python, "resume=true", output_dir="outside")
    assert_equal_runs(folder, "uninterrupted", "outside")


@pytest.fixture(scope="module")
def two_ranks(shared_processes, python):
    return train_on_two_ranks(python, "loader=debug", output_dir="two_ranks")


def test_two_ranks_train(folder, two_ranks):
    assert "done: steps 1 to 30" in two_ranks
    assert len(losses(folder, "two_ranks")) == STEPS


def test_two_ranks_lose_nothing_either_when_one_of_them_is_killed(processes, folder, python, two_ranks):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += program(output_dir="one_killed", place="in a step of rank 0")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Signal 9" in done.stdout + done.stderr
    assert len(losses(folder, "one_killed")) == 7
    output = train_on_two_ranks(python, "resume=true", "loader=debug", output_dir="one_killed")
    assert "resuming after" in output
    assert_equal_runs(folder, "two_ranks", "one_killed")


def test_a_new_run_takes_nothing_from_an_earlier_one(processes, folder, python, uninterrupted):
    output_dir = "again"
    train(python, "loader=debug", "seed=2", output_dir=output_dir)
    assert losses(folder, output_dir) != losses(folder, "uninterrupted")
    first = losses(folder, output_dir)
    output = train(python, "loader=debug", output_dir=output_dir)
    assert_equal_runs(folder, "uninterrupted", output_dir)
    assert f"the earlier run is kept: to go on with it, resume=true output_dir={output_dir}/earlier-1" in output
    assert losses(folder, f"{output_dir}/earlier-1") == first
    kept = train(python, "loader=debug", "seed=2", "resume=true", output_dir=f"{output_dir}/earlier-1")
    assert "nothing to do: all 30 steps are done" in kept
    assert "nothing to do" in train(python, "loader=debug", "resume=true", output_dir=output_dir)
    assert_equal_runs(folder, "uninterrupted", output_dir)
    refused = train(python, "loader=debug", "resume=true", "seed=2", "steps=31", output_dir=output_dir, expected_code=1)
    assert "seed" in refused
    assert "Traceback" not in refused


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on(processes, folder, python, number):
    output_dir = f"stopped by {number.name}"
    command = program("steps=100000", "resume=false", output_dir=output_dir)
    started = python.start([command], variables=[{"DEMO_COMMAND": "scripts/demo"}])
    stopped = ended_by(number, started, folder / output_dir / "losses.jsonl", 3)
    assert stopped.returncode == 1
    settings = [word for word in command[1:] if word != "resume=false"]
    expected = shlex.join(["scripts/demo", "resume=true", *settings])
    assert f"a checkpoint every 5 steps; after Ctrl-C or kill -9, go on: {expected}\n" in stopped.stdout
    assert stopped.stderr.splitlines()[-1] == f"stopped; go on after the latest checkpoint: {expected}"
    assert "Traceback" not in stopped.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.uri=nowhere"], "no complete data in nowhere: run `python scripts/prepare_data.py` first"),
        (["checkpoint.every_steps=0"], "checkpoint.every_steps = 0: expected an integer of at least 1"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(processes, python, arguments, message):
    output = train(python, *arguments, output_dir="refused", expected_code=1)
    assert message in output
    assert "Traceback" not in output


def test_only_the_latest_checkpoints_stay_and_half_written_ones_are_no_checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path / "folder", keep=2)
    assert checkpoints.latest() is None
    for step in (999_999, 1_000_000, 1_000_001):  # in the order of their numbers, not of their names
        checkpoints.save(step, {"step": step})
    (tmp_path / "folder" / ".step-1000002.pt.partial").write_bytes(b"half")
    (tmp_path / "folder" / "notes.pt").write_bytes(b"not ours")
    assert checkpoints.load(checkpoints.latest()) == {"step": 1_000_001}
    (tmp_path / "losses").write_text("a line")
    for name in ("earlier-1", "earlier-2"):
        assert checkpoints.set_aside(tmp_path / "losses", tmp_path / "not there") == tmp_path / name
        checkpoints.save(7, {"step": 7})
    assert {path.name for path in (tmp_path / "earlier-1").rglob("*.*")} == {
        *("step-1000000.pt", "step-1000001.pt", "notes.pt")
    }
    assert (tmp_path / "earlier-1" / "losses").read_text() == "a line"
    assert checkpoints.latest().name == "step-000007.pt"

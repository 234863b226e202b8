"""Two ranks, and the examples of the documentation."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from forked_ranks import run_jobs

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
}


def two_ranks(folder, *program):
    """Run a program on two ranks; return what it has printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program]
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_ranks_deliver_each_sample_once_and_resume_exactly(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    program = Path(__file__).with_name("two_ranks.py")
    (output,) = run_jobs((2, program, tmp_path), folder=tmp_path, imports=("accelerate", "transformers.trainer"))
    assert output.endswith("all of it\n")


def test_the_example_of_accelerate_uses_each_sample_once_an_epoch_however_often_it_is_stopped(processes, tmp_path):
    program = EXAMPLES / "accelerate" / "train.py"
    assert two_ranks(tmp_path, program, "stop_after=7") == ""
    assert two_ranks(tmp_path, program).startswith("samples used 2 times: 80 of 80\nweights ")


def test_the_example_of_the_trainer_is_killed_and_ends_with_the_weights_of_a_whole_run(processes, tmp_path):
    command = [sys.executable, str(EXAMPLES / "huggingface" / "train.py")]

    def start(*arguments):
        return subprocess.Popen(
            [*command, *arguments],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    with start("output_dir=whole") as whole, start() as killed:
        written = tmp_path / "outputs" / "huggingface" / "checkpoint-4" / "trainer_state.json"
        deadline = time.monotonic() + 120
        while not written.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        expected = whole.communicate()[0].splitlines()[-1]
    assert killed.returncode == -signal.SIGKILL
    assert expected.startswith("weights ")
    with start() as resumed:
        assert resumed.communicate()[0].splitlines()[-1] == expected

"""Each example that says so is killed by SIGKILL and goes on, with the losses of a run that nothing stopped, bit for bit."""

import re
import signal
from pathlib import Path

import pytest
from prepared import PreparedInterpreter

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

# Runs a program and kills it, as `kill -9` does, when it has printed so many lines.
DEADLY = """
import builtins, os, runpy, signal, sys

num_lines, *sys.argv = sys.argv[1:]
printed, plain_print = [], print

def deadly_print(*values, file=None, **options):
    plain_print(*values, file=file, **options)
    printed.append(file is None)
    if sum(printed) == int(num_lines):
        os.kill(os.getpid(), signal.SIGKILL)

builtins.print = deadly_print
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# How many lines the program prints before it dies, and after how many the run that follows begins.
KILLED = {"chat": (30, 24), "images": (33, 28), "mixture": (131, 120), "multimodal": (57, 45)}


@pytest.fixture(scope="module")
def python(shared_processes):
    """An interpreter with one thread, which small models need: several would wait for one another."""
    modules = ("torch", "torch._dynamo", "torch.optim", "torch.nn.parallel", "PIL.ImageFont", "pyarrow.parquet")
    with PreparedInterpreter(*modules, OMP_NUM_THREADS="1") as interpreter:
        yield interpreter


@pytest.fixture
def folders(processes, tmp_path):
    """A folder for the run that nothing stops, one for the run that is killed, and the program that dies."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    return whole, killed, tmp_path / "deadly.py"


def lines_of(done, expected_code=0):
    assert done.returncode == expected_code, done.stdout + done.stderr
    return done.stdout.splitlines()


def assert_model_learns(lines):
    losses = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in lines]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_program_goes_on_as_if_nothing_had_stopped_it(python, folders, name):
    program, (num_lines, num_saved) = EXAMPLES / name / "train.py", KILLED[name]
    *places, deadly = folders
    commands = [(program,), (deadly, num_lines, program)]
    whole, killed = python.start(commands, folders=places, variables=[{}, {}]).wait(300)
    lines = lines_of(whole)
    assert_model_learns(lines)
    assert lines_of(killed, -signal.SIGKILL) == lines[:num_lines]
    assert lines_of(python.run(program, folder=places[1], timeout=300)) == lines[num_saved:]
    if name == "mixture":
        shares = dict(reversed(share.split("% ")) for share in re.findall(r"[\d.]+% \w+", lines[-1]))
        for source, share in {"prose": 70, "code": 20, "tables": 10}.items():
            assert abs(float(shares[source]) - share) < 6, lines[-1]


def test_one_rank_finishes_the_run_of_two(python, folders):
    program = EXAMPLES / "ranks" / "train.py"
    whole, killed, deadly = folders
    lines = lines_of(python.run_ranks(2, program, folder=whole, timeout=300)[0])
    assert_model_learns(lines)
    dead, left = python.run_ranks(2, deadly, 47, program, folder=killed, timeout=300)
    assert lines_of(dead, -signal.SIGKILL) == lines[:47]
    assert left.returncode != 0  # it waited for the other
    assert lines_of(python.run(program, folder=killed, timeout=300)) == lines[40:]


def test_each_prompt_is_used_once_however_often_the_trainer_is_killed(python, folders):
    program = EXAMPLES / "rollouts" / "train.py"
    folder, _, deadly = folders
    for num_lines in (3, 11, 7):
        found = python.run(deadly, num_lines, program, folder=folder, timeout=300)
        assert found.returncode == -signal.SIGKILL
        assert len(found.stdout.splitlines()) == num_lines
    assert python.run(program, folder=folder, timeout=300).stdout.endswith("epochs: True\n")

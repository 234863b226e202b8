"""All workers order a set alike: those of a loader, their successors, those of other ranks and of other runs."""

import ast

import pytest
from interpreters import run_python

PROGRAM = """
import os, signal, sys
import torch
from own_workers import worker_pids
from fkat_data import ShardedDataLoader

labels = [f"label {index}" for index in range(50)]

def factory(shard):
    for _ in range(10):
        yield list(set(labels)), os.environ.get("PYTHONHASHSEED"), os.environ.get("PYTHONWARNINGS"), hash("a")

os.environ.update(AT_RUN_TIME)
found = []
with ShardedDataLoader(0, ["a", "b"], factory, 2, 1, max_worker_restarts=2) as loader:
    iterator = iter(loader)
    found.append(next(iterator))
    os.kill(worker_pids()[0], signal.SIGKILL)
    found += iterator
    assert loader.statistics().worker_restarts == 1 and len(found) == 20
with ShardedDataLoader(0, ["a"], factory, start_method="spawn") as loader:
    found += loader
assert all(numbering == found[0] for numbering in found)
print((found[0], list(set(labels)) == found[0][0]))
"""


ORDER = "print(list({f'label {index}' for index in range(50)}))"


@pytest.mark.parametrize(("seed", "later"), [(None, None), (None, "7"), ("0", None), ("5", None)])
def test_workers_have_the_seed_of_a_trainer_that_has_one_and_order_sets_alike_without(
    run_script, monkeypatch, seed, later
):
    at_run_time = {"PYTHONHASHSEED": later} if later else {}
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    done = run_script(PROGRAM.replace("AT_RUN_TIME", repr(at_run_time)), by="file" if seed or later else "stdin")
    (order, variable, *_), is_trainers = ast.literal_eval(done.stdout)
    assert variable == (later or seed)  # programs that a dataset starts see the trainer's
    assert is_trainers or seed is None
    assert order == ast.literal_eval(run_python("-c", ORDER, PYTHONHASHSEED=seed or "0").stdout)


def test_workers_of_a_trainer_that_ignores_its_environment_hash_alike_too(run_script, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    (tmp_path / "program.py").write_text(PROGRAM.replace("AT_RUN_TIME", "{}"))
    found = []
    for flag in ("-E", "-I"):
        started = f"""
import subprocess, sys
begin = "import sys; sys.path[:] = {{!r}}; exec(open('program.py').read())".format(sys.path)
print(subprocess.run([sys.executable, {flag!r}, "-c", begin], stdout=subprocess.PIPE, text=True, check=True).stdout)
"""
        (order, seed, warnings, _), _ = ast.literal_eval(run_script(started).stdout)
        assert (seed, warnings) == ("5", "ignore")
        found.append(order)
    assert found[0] == found[1]

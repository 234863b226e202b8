"""Workers start whatever is in the trainer's directory, among its descriptors and limits, and without source files."""

import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest
from interpreters import environment_of, run_python

import fkat_data

pytestmark = pytest.mark.usefixtures("processes")

CHILDREN = """
import os, signal, subprocess, sys, time
from fkat_data import ShardedDataLoader

HANDLED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")

def factory(shard):
    for name in HANDLED:
        child = subprocess.Popen(["sleep", "600"])
        child.send_signal(getattr(signal, name))
        yield name, child.wait(20)
    with subprocess.Popen(["sleep", "2"]) as child:
        for name in HANDLED:
            os.kill(os.getpid(), getattr(signal, name))
        began = time.monotonic()
        time.sleep(0.5)
        yield time.monotonic() - began >= 0.5 and child.wait(20)

for method in ("template", "spawn"):
    with ShardedDataLoader(0, ["a"], factory, start_method=method) as loader:
        print(list(loader))
"""


@pytest.mark.parametrize("by", ["fork", "stdin"])
def test_programs_that_a_dataset_starts_can_be_ended_and_the_worker_cannot(prepared, run_script, by):
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    expected = [*((number.name, -number) for number in numbers), 0]
    assert run_script(CHILDREN, by=by).stdout == f"{expected}\n" * 2


PROGRAM = """
import os, sys
import torch
from fkat_data import ShardedDataLoader

def factory(shard):
    if shard == "b":
        print("from the worker")
        os.write(1, b"once more" + bytes([10]))
        sys.stdout.flush()
    yield torch.arange(20000), os.getcwd()

results = []
for method in ("template", "spawn"):
    with ShardedDataLoader(0, ["a", "b"], factory, start_method=method) as loader:
        results += [[tensor.sum().item(), folder == os.getcwd()] for tensor, folder in loader]
open("results", "w").write(repr(results))
"""
RESULTS = [[199990000, True]] * 4


def run_by_bash(folder, command):
    """Run the script of a folder by a command of bash, in which $0 is the interpreter."""
    command = ["bash", "-c", command, sys.executable]
    options = {"timeout": 120, "text": True, "capture_output": True}
    return subprocess.run(command, cwd=folder, env=environment_of(), check=False, **options)


def test_nothing_in_the_working_directory_runs_in_a_worker(tmp_path):
    (tmp_path / "scripts").mkdir()
    # Modules of the program's own are found, though the package has some of these names.
    (tmp_path / "scripts" / "script.py").write_text(PROGRAM.replace("    yield", "    import lifeline\n    yield"))
    (tmp_path / "scripts" / "lifeline.py").touch()
    for name in ("signal", "contextlib", "fcntl", "os", "threading", "pickle", "mmap", "numpy", "lifeline"):
        (tmp_path / f"{name}.py").write_text(f"open('was-run-{name}', 'w')\nraise RuntimeError('was run')\n")
    run_python("scripts/script.py", cwd=tmp_path)
    assert (tmp_path / "results").read_text() == repr(RESULTS)
    assert not list(tmp_path.glob("was-run-*"))


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "0<&- 1>&- 2>&-"])
def test_a_trainer_without_its_standard_descriptors_has_workers(tmp_path, closed):
    (tmp_path / "script.py").write_text(PROGRAM)
    done = run_by_bash(tmp_path, f'exec "$0" script.py {closed}')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results").read_text() == repr(RESULTS)
    assert sorted(done.stdout.split("\n")) == ["", *sorted(["from the worker", "once more"] * 2)] or "1>&-" in closed
    assert done.stderr == ""


LIMITED = """
import sys
import torch
from fkat_data import ConfigurationError, MemoryLimitError, ShardedDataLoader

try:
    with ShardedDataLoader(0, ["a"], lambda shard: [torch.zeros(100), torch.zeros(2 << 20)]) as loader:
        for microbatch in loader:
            print(len(microbatch), flush=True)
except (ConfigurationError, MemoryLimitError) as error:
    print(type(error).__name__, "`ulimit -f`" in str(error).replace("ulimit -f =", "`ulimit -f`"))
"""


@pytest.mark.parametrize(
    ("limit_kib", "said"),
    [(1, "ConfigurationError True"), (4096, "100 MemoryLimitError True"), (1 << 20, "100 2097152")],
)
def test_a_limit_of_file_sizes_is_named(tmp_path, limit_kib, said):
    (tmp_path / "script.py").write_text(LIMITED)
    done = run_by_bash(tmp_path, f'ulimit -f {limit_kib}; exec "$0" script.py')
    assert done.stdout.split() == said.split(), done.stderr


@pytest.mark.parametrize("form", ["compiled", "zipped"])
def test_a_package_without_its_sources_starts_workers(tmp_path, form):
    others = set(psutil.Process().children())  # servers of other tests
    package = Path(fkat_data.__file__).parent
    target = tmp_path / "library"
    if form == "compiled":
        program = """
import compileall, pathlib, shutil, sys
package, target = map(pathlib.Path, sys.argv[1:])
shutil.copytree(package, target / "fkat_data", ignore=shutil.ignore_patterns("__pycache__"))
assert compileall.compile_dir(target, legacy=True, quiet=1)
for path in target.rglob("*.py"):
    path.unlink()
"""
        subprocess.run([sys.executable, "-c", program, str(package), str(target)], check=True)
    else:
        with zipfile.ZipFile(target, "w") as archive:
            for path in package.rglob("*.py"):
                archive.write(path, Path("fkat_data") / path.relative_to(package))
    (tmp_path / "script.py").write_text(f"{PROGRAM}\nimport fkat_data; assert {str(target)!r} in fkat_data.__file__\n")
    run_python("script.py", cwd=tmp_path, folders=[target])
    assert (tmp_path / "results").read_text() == repr(RESULTS)
    assert set(psutil.Process().children()) <= others

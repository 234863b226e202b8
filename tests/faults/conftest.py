"""Fault tests run over whole programs and over many modules at once, so this folder mirrors no single module."""

import json

import pytest
from prepared import PreparedInterpreter


@pytest.fixture
def start(processes, tmp_path):
    """Start a text as a trainer's program in a session of its own; it and all below it are gone at the end."""
    from programs import Program

    started = []

    def run(text, *arguments, **options):
        path = tmp_path / f"trainer{len(started)}.py"
        path.write_text(text)
        started.append(Program(path, arguments, **options))
        return started[-1]

    yield run
    for program in started:
        program.end()


@pytest.fixture(scope="module")
def sweeper(shared_processes):
    with PreparedInterpreter("psutil", "pytest", "torch") as interpreter:
        yield interpreter


@pytest.fixture
def swept(sweeper, processes, tmp_path):
    """Call a function of a module here in a process of its own, and return what it has printed last."""

    def run(function, *arguments):
        module = function.partition(".")[0]
        (tmp_path / "script.py").write_text(f"import sys, {module}\n{function}(*sys.argv[1:])")
        done = sweeper.run(tmp_path / "script.py", *arguments, folder=tmp_path, timeout=7000)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run

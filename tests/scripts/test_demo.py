import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

# Stands in for every Python that the script starts: it writes down what it was asked for, and makes what the script
# looks for. The real thing takes minutes and a network.
PYTHON = """#!/usr/bin/env bash
case "$*" in
  -c*) exec {real} "$@" ;;
  --version) echo Python 3.11.0 ;;
  "-m pip --version") ;;
  "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo venv >>asked ;;
  "-m pip install"*"pip>="*) ;;
  "-m pip install"*) [[ "$*" = *" -q"* ]] || echo Downloading torch; echo install >>asked && [[ ! -e no-network ]] ;;
  *) echo "$*" >>asked; echo "DEMO_COMMAND=$DEMO_COMMAND" >&2 ;;
esac
"""
TRAIN = ["scripts/prepare_data.py", "scripts/train.py"]


@pytest.fixture
def fresh(processes, tmp_path):
    """A checkout on a machine with nothing but a Python."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/demo", "scripts/environment", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(PYTHON.format(real=sys.executable))
    python.chmod(0o755)
    return tmp_path


def output_of_demo(checkout, *arguments, expected_code=0, **environment):
    """Run the script from elsewhere, and return what it wrote to standard error."""
    (checkout / "asked").unlink(missing_ok=True)
    done = subprocess.run(
        [checkout / "scripts" / "demo", *arguments],
        cwd="/",
        env={"PATH": f"{checkout / 'bin'}:/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected_code, done.stderr
    return done.stderr


def run_demo(checkout, *arguments, expected_code=0, **environment):
    """Run the script from elsewhere, and return what Python was asked for, or what the script wrote instead."""
    output = output_of_demo(checkout, *arguments, expected_code=expected_code, **environment)
    asked = checkout / "asked"
    return asked.read_text().splitlines() if asked.exists() else output


def test_from_nothing_it_makes_an_environment_installs_prepares_and_trains(fresh):
    assert run_demo(fresh) == ["venv", "install", *TRAIN]


def test_it_shows_how_far_the_installation_is_and_has_the_training_name_this_script(fresh):
    output = output_of_demo(fresh)
    assert "Downloading torch" in output
    assert "DEMO_COMMAND=scripts/demo" in output
    assert "Downloading" not in output_of_demo(fresh)  # everything is there


def test_the_second_time_it_only_trains(fresh):
    run_demo(fresh)
    assert run_demo(fresh) == TRAIN


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_it_installs_again_where_the_requirements_have_changed(fresh, name):
    run_demo(fresh)
    with (fresh / name).open("a") as file:
        file.write("# changed\n")
    assert run_demo(fresh) == ["install", *TRAIN]


def test_an_installation_that_failed_is_repeated(fresh):
    (fresh / "no-network").touch()
    assert run_demo(fresh, expected_code=1) == ["venv", "install"]
    (fresh / "no-network").unlink()
    assert run_demo(fresh) == ["install", *TRAIN]


@pytest.mark.parametrize("left", ["", "exit 1", "exec nothing"])
def test_a_half_made_environment_is_made_again(fresh, left):
    (fresh / ".venv" / "bin").mkdir(parents=True)
    if left:
        python = fresh / ".venv" / "bin" / "python"
        python.write_text(f"#!/bin/sh\n{left}\n")
        python.chmod(0o755)
    assert run_demo(fresh) == ["venv", "install", *TRAIN]


def test_an_old_python_is_refused(fresh):
    old = fresh / "bin" / "old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1\nexit 1\n')
    old.chmod(0o755)
    assert "needs Python 3.11 or newer; Python 3.9.1" in run_demo(fresh, PYTHON=str(old), expected_code=1)

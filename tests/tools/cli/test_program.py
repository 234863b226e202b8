"""The program starts as a module, too, and says its version."""

import subprocess
import sys
from importlib import metadata

from typer.testing import CliRunner

import fkat_data
from fkat_data.tools.cli.commands import app


def test_the_version_comes_from_one_place():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"fkat-data {fkat_data.__version__}\n")
    assert metadata.version("fkat_data") == fkat_data.__version__


def test_the_program_runs_as_a_module(processes):
    done = subprocess.run(
        [sys.executable, "-m", "fkat_data", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "verify-resume" in done.stdout
    assert "doctor" in done.stdout

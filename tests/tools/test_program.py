"""The program starts as a module, says its version, shows texts as they are, and ends as other programs do."""

import io
import os
import sys
from importlib import metadata

import pytest
from interpreters import run_python
from typer.testing import CliRunner

import fkat_data
from fkat_data.__main__ import main
from fkat_data.tools import app


def test_the_version_comes_from_one_place():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"fkat-data {fkat_data.__version__}\n")
    assert metadata.version("fkat_data") == fkat_data.__version__


def test_the_program_runs_as_a_module(processes):
    printed = run_python("-m", "fkat_data", "--help").stdout
    assert "verify-resume" in printed
    assert "doctor" in printed


def test_without_its_extra_the_program_says_what_to_install(run_script):
    text = "import sys\nsys.modules['typer'] = None\nfrom fkat_data.__main__ import main\nmain()"
    done = run_script(text, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "fkat-data needs typer: pip install 'fkat_data[cli]'"


def exit_code(monkeypatch, stdout, *arguments):
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["fkat-data", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    ("name", "shown"),
    [("/no\udcffµ", rb"'/no\udcff\xb5'"), ("/[bold]:smile:[/red] 1.5", b"'/[bold]:smile:[/red] 1.5'")],
)
def test_a_name_is_shown_as_it_is_and_what_a_terminal_lacks_is_written_out(monkeypatch, name, shown):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert exit_code(monkeypatch, stdout, "inspect", name) == 2
    assert shown + b": no such directory" in stdout.buffer.getvalue()


def test_a_reader_that_leaves_is_neither_damage_nor_a_failure(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        assert exit_code(monkeypatch, stdout, "inspect", "/nowhere") == 141

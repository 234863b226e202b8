"""Long work shows that it goes on, on a terminal and elsewhere."""

import io
import os
import sys
import time

import pytest
from rich.console import Console

from fkat_data.observe import progress
from fkat_data.tools.cli.dataset_commands import sample_progress
from fkat_data.tools.cli.presentation import long_work, say, terminal
from fkat_data.tools.cli.program import main


def wait_for(read, text):
    deadline_s = time.monotonic() + 10
    while text not in read():
        assert time.monotonic() < deadline_s, read()
        time.sleep(0.01)


@pytest.fixture
def soon(monkeypatch):
    """Let lines come after a moment."""
    monkeypatch.setattr(progress, "_LOG_AFTER_S", 0.02)


@pytest.mark.usefixtures("soon")
def test_lines_go_to_stderr_where_there_is_no_terminal(capsys):
    printed = []

    def errors():
        printed.append(capsys.readouterr().err)
        return "".join(printed)

    out = io.StringIO()
    console = Console(file=out)
    with long_work(console, "simulating"):
        wait_for(errors, "waiting for 0 s: simulating\n")
    with sample_progress(console, "verifying data") as show:
        show(1200, 5000)
        wait_for(errors, "verifying data: 1,200 samples\n")
    assert not out.getvalue()


@pytest.mark.usefixtures("soon")
def test_a_terminal_shows_a_bar_and_no_lines(capsys):
    out = io.StringIO()
    with long_work(Console(file=out, force_terminal=True, width=100), "simulating"):
        wait_for(out.getvalue, "simulating")
        time.sleep(0.1)
    assert not capsys.readouterr().err


def test_short_work_prints_nothing(capsys):
    out = io.StringIO()
    with long_work(Console(file=out), "simulating"):
        pass
    assert not out.getvalue() + capsys.readouterr().err


def test_texts_are_shown_as_they_are(capsys):
    say(terminal(), "[bold]:smile: a\x1b[31mb\n[/red] 1.5")
    assert capsys.readouterr().out == "[bold]:smile: a\\x1b[31mb\n[/red] 1.5\n"


def exit_code(monkeypatch, stdout, *arguments):
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["fkat-data", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_what_a_terminal_lacks_is_written_out(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert exit_code(monkeypatch, stdout, "inspect", "/no\udcffµ") == 2
    assert rb"'/no\udcff\xb5': no such directory" in stdout.buffer.getvalue()


def test_a_reader_that_leaves_is_neither_damage_nor_a_failure(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        assert exit_code(monkeypatch, stdout, "inspect", "/nowhere") == 141

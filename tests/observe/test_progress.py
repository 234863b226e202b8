import io
import logging
import os
import pty
import subprocess
import sys
import termios
import time

import pytest
from interpreters import environment_of

from fkat_data.observe.progress import Activity, WaitDisplay, display_for

SCRIPT = """
import os, sys, time, torch
from fkat_data import ShardedDataLoader
def factory(shard):
    time.sleep(2.5)
    for index in range(6):
        time.sleep(0.6 if shard == "b" else 0)
        yield torch.full((3,), index)
loader = ShardedDataLoader(0, ["a", "b"], factory)
state = None
for microbatch in loader:
    if loader.step == 11:
        state = loader.state_dict()
        break
loader.close()
resumed = ShardedDataLoader(0, ["a", "b"], factory)
resumed.load_state_dict(state)
print([microbatch.tolist() for microbatch in resumed])
resumed.close()
"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def start(stderr):
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment_of())


def test_a_terminal_shows_a_bar_and_is_left_as_it_was_and_a_pipe_gets_nothing(processes):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    try:
        with start(theirs) as on_a_terminal, start(subprocess.PIPE) as on_a_pipe:
            assert on_a_pipe.communicate(timeout=120) == (b"[[5, 5, 5]]\n", b"")
            assert on_a_terminal.communicate(timeout=120)[0] == b"[[5, 5, 5]]\n"
        os.set_blocking(ours, False)
        shown = b""
        deadline_s = time.monotonic() + 5
        while time.monotonic() < deadline_s:
            try:
                shown += os.read(ours, 1 << 16)
            except BlockingIOError:
                break
    finally:
        os.close(ours)
        os.close(theirs)
    text = shown.decode()
    assert "making microbatch 0 of shard 'a'" in text
    assert "making again what was delivered before the resume, of shard 'b'" in text
    assert "/5 " in text
    assert text.rsplit("\r", 2)[1].strip() == ""  # the last thing is a line of blanks, and back to its begin
    assert "\n" not in text


def test_lines_of_the_log_come_at_growing_intervals(caplog):
    display = WaitDisplay()
    waited_s = 0.0
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            waited_s += display.interval_s
            display.show(waited_s, Activity("making again", 3, 7_000))
    display.end()
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for {seconds} s: making again: 3 of 7,000" for seconds in (10, 30, 70)
    ]


@pytest.mark.parametrize(
    ("stream", "world_size", "is_bar"),
    [(Terminal(), None, True), (Terminal(), "1", True), (Terminal(), "2", False), (io.StringIO(), None, False)],
)
def test_a_bar_needs_a_terminal_of_its_own(stream, world_size, is_bar, monkeypatch):
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    assert (display_for(stream).interval_s == 2.0) == is_bar


def test_without_tqdm_there_are_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert display_for(Terminal()).interval_s == 10.0

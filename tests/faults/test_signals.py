"""Signals belong to the trainer: its handlers run, its defaults hold, and a stop never looks like an end."""

import contextlib
import os
import pty
import signal

import psutil
import pytest

#: Goes through moments of an iteration; a signal comes in each, and the loader must be usable after it.
PROGRAM = """
import fcntl, os, select, signal, sys, termios, time
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

catchable = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP})
found = [signal.getsignal(number) for number in catchable]
from fkat_data import ShardedDataLoader

name, handling, num_shards_ahead, gate, *moments = sys.argv[1:]
number = signal.Signals[name]
moment = None

if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

def say(text):
    os.write(1, f"{text}\\n".encode())

class Stopped(Exception):
    pass

def handle(signum, frame):
    say("handled")
    if moment == "hung":
        raise Stopped

def check_handlers():
    assert all(was is signal.getsignal(number) for was, number in zip(found, catchable))

def install():
    signal.signal(number, handle)
    found[catchable.index(number)] = handle

class Gated(Dataset):
    def __init__(self, shard):
        self.shard = shard
    def __len__(self):
        return 4
    def __getitem__(self, index):
        while index == 2 and self.shard == "a" and os.path.exists(gate):
            time.sleep(0.002)
        return f"{self.shard}{index}"

def go_through(loader):
    open(gate, "w").close()
    if moment == "computing":
        os.unlink(gate)
    iterator = iter(loader)
    got = [next(iterator), next(iterator)]
    stopped = False
    try:
        say(moment)
        if moment == "computing":
            while not select.select([0], [], [], 0)[0]:
                sum(range(1000))
        elif moment == "closing":
            loader.close()
            # A slow machine sends the signal when the loader is closed: it comes here, then, and not in a later moment.
            sys.stdin.readline()
        else:
            got.append(next(iterator))
    except (KeyboardInterrupt, Stopped) as stop:
        say(type(stop).__name__)
        stopped = True
    if moment == "computing" or (moment == "waiting" and stopped):
        sys.stdin.readline()
    check_handlers()
    assert loader.state_dict()["all_rank_steps"] == [len(got)], (loader.state_dict(), got)
    if moment == "closing" or (moment == "hung" and stopped):
        loader.close()
        template = psutil.Process().children()
        assert len(template) == 1 and not template[0].children(), "workers are left"
    else:
        got.extend(iterator)
        assert got == [f"{shard}{index}" for shard in "ab" for index in range(4)], got
    say("done")

check_handlers()
if handling == "before":
    install()
elif handling == "ignored":
    signal.signal(number, signal.SIG_IGN)
    found[catchable.index(number)] = signal.SIG_IGN
loader = ShardedDataLoader(0, ["a", "b"], lambda shard: DataLoader(Gated(shard), batch_size=None), int(num_shards_ahead))
check_handlers()
if handling == "after":
    install()
for moment in moments:
    go_through(loader)
loader.close()
check_handlers()
say("end")
"""

MOMENTS = ["computing", "waiting", "hung", "closing"]
NUM_SHARDS_AHEAD = [0, 1, 3]
#: The bound that is promised is 0.5 s; a loaded machine is given more, and what was measured is printed.
AT_ONCE_S = 10.0


def marked(cells, covering):
    return [
        pytest.param(*cell, id=" ".join(map(str, cell)), marks=() if cell in covering else pytest.mark.slow)
        for cell in cells
    ]


SURVIVED = [
    (name, handling, num_shards_ahead)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    for handling in ("default", "before", "after", "ignored")
    for num_shards_ahead in NUM_SHARDS_AHEAD
    if handling != "default" or name == "SIGINT"
]
SURVIVED_COVERING = {
    ("SIGINT", "default", 3),
    ("SIGINT", "before", 0),
    ("SIGTERM", "before", 1),
    ("SIGTERM", "after", 0),
    ("SIGHUP", "after", 1),
    ("SIGTERM", "ignored", 0),
}


@pytest.mark.parametrize(("name", "handling", "num_shards_ahead"), marked(SURVIVED, SURVIVED_COVERING))
def test_a_signal_that_does_not_end_the_trainer_ends_nothing_of_its_loader(
    start, tmp_path, name, handling, num_shards_ahead
):
    gate = tmp_path / "gate"
    program = start(PROGRAM, name, handling, num_shards_ahead, gate, *MOMENTS)
    for moment in MOMENTS:
        program.expect(moment)
        if moment != "computing":
            program.wait_until_asleep()
        program.signal_group(signal.Signals[name])
        for process in program.below():  # schedulers signal every process of a job, also those outside of the group
            with contextlib.suppress(psutil.NoSuchProcess):  # of an earlier moment
                process.send_signal(signal.Signals[name])
        if handling in ("before", "after"):
            print(f"{moment}: handled after {program.expect('handled', AT_ONCE_S):.3f} s")
        if handling == "default" or (moment == "hung" and handling != "ignored"):
            word = "KeyboardInterrupt" if handling == "default" else "Stopped"
            print(f"{moment}: {word} after {program.expect(word, AT_ONCE_S):.3f} s")
        is_stopped = handling == "default"
        if moment == "waiting" or (moment == "hung" and handling == "ignored"):
            gate.unlink()
        if moment in ("computing", "closing") or (moment == "waiting" and is_stopped):
            program.tell()
        print(f"{moment}: done after {program.expect('done'):.3f} s")
    program.expect("end")
    program.check_silent_end()


ENDED = [
    (name, moment, num_shards_ahead)
    for name in ("SIGTERM", "SIGHUP")
    for moment in MOMENTS
    for num_shards_ahead in NUM_SHARDS_AHEAD
]
ENDED_COVERING = {("SIGTERM", "waiting", 1), ("SIGHUP", "computing", 0), ("SIGTERM", "closing", 3)}


@pytest.mark.parametrize(("name", "moment", "num_shards_ahead"), marked(ENDED, ENDED_COVERING))
def test_a_signal_that_nobody_handles_ends_the_trainer_by_itself_and_its_workers_with_it(
    start, tmp_path, name, moment, num_shards_ahead
):
    program = start(PROGRAM, name, "default", num_shards_ahead, tmp_path / "gate", moment)
    program.expect(moment)
    if moment != "computing":
        program.wait_until_asleep()
    number = signal.Signals[name]
    program.signal_group(number)
    program.check_silent_end(-number, AT_ONCE_S)


@pytest.mark.parametrize("moment", ["hung", pytest.param("waiting", marks=pytest.mark.slow)])
def test_ctrl_c_at_a_terminal_is_a_keyboard_interrupt_of_the_trainer_alone(start, tmp_path, moment):
    ours, theirs = pty.openpty()
    try:
        gate = tmp_path / "gate"
        program = start(PROGRAM, "SIGINT", "default", 1, gate, moment, terminal=theirs)
        program.expect(moment)
        program.wait_until_asleep()
        program.below()
        os.write(ours, b"\x03")
        print(f"after {program.expect('KeyboardInterrupt', AT_ONCE_S):.3f} s")
        if moment == "waiting":
            gate.unlink()
            os.write(ours, b"\n")
        program.expect("done")
        program.expect("end")
        program.check_silent_end()
    finally:
        os.close(ours)
        os.close(theirs)

"""A cache after a power loss gives right bytes, whatever of it the disk has kept."""

import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from disk_states import Disk, recorded
from forks import in_child
from streaming_examples import write

from fkat_data.streaming import StreamingDataset


def can_trace():
    return shutil.which("strace") is not None and not subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode  # fmt: skip


pytestmark = pytest.mark.skipif("not can_trace()", reason="needs strace, and leave to use it")


COUNT = 30
#: The dataset as it was at first, and as it is when it was written again: files of the same names and sizes.
FIRST = {"before": 10, "after": 50}
#: Large, and only read to choose what is evicted; its tests write anything into it.
LEFT_OUT = (".fkat_data/recency",)

PROGRAM = """
import sys
from fkat_data.streaming import StreamingDataset
before, after, local = sys.argv[1:]
for remote in (before, after):
    dataset = StreamingDataset(remote=remote, local=local)
    for index in range(len(dataset)):
        dataset[index]
"""


def is_ignored(path):
    """Return whether a path is a lock's, or a file's that is empty."""
    folder, _, name = path.rpartition("/")
    return folder.startswith(".fkat_data") and name != "dataset_version.json" and "making" not in folder


def is_right(remote, local, first):
    """Return whether a fork of this process reads the dataset through a cache; it keeps nothing of it."""

    def work():
        dataset = StreamingDataset(remote=remote, local=str(local))
        return [dataset[index]["number"] for index in range(COUNT)] == list(range(first, first + COUNT))

    return in_child(work) == 0


def lay_out(state, folder):
    for path, content in sorted(state.items()):
        if content is None:
            (folder / path).mkdir(mode=0o700)
        else:
            (folder / path).write_bytes(content)


def test_whatever_the_disk_has_kept_right_bytes_are_read(processes, share_of_examples, tmp_path):
    remotes = {name: write(tmp_path / name, COUNT, first=first) for name, first in FIRST.items()}
    os.utime(Path(remotes["after"], "index.json"), (1_000_000_000, 1_000_000_000))
    local, program = tmp_path / "cache", tmp_path / "program.py"
    local.mkdir(mode=0o700)
    program.write_text(PROGRAM)
    calls = recorded([sys.executable, program, *remotes.values(), local], tmp_path / "log")
    draw = random.Random(1)
    disk, seen, wrong = Disk(local, is_ignored, LEFT_OUT), set(), []
    for number, call in enumerate(calls):
        if not disk.follow(*call):
            continue
        for state in disk.states(draw, num_random=4):
            known = sorted((path, content) for path, content in state.items() if not is_ignored(path))
            key = hashlib.blake2b(repr(known).encode()).digest()
            if key in seen:
                continue
            seen.add(key)
            if len(seen) % round(3 / share_of_examples):
                continue
            for name, remote in remotes.items():
                folder = tmp_path / "state"
                folder.mkdir(mode=0o700)
                lay_out(state, folder)
                if not is_right(remote, folder, FIRST[name]):
                    wrong.append((number, call[0], name, {path: content and content[:99] for path, content in known}))
                shutil.rmtree(folder)
    assert not wrong, wrong[:3]
    assert len(seen) > 200

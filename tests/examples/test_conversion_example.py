"""The example of a conversion on Dask and on Ray: a killed worker costs no sample, and leaves nothing."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S
from programs import still_alive

from fkat_data.streaming import LocalDataset

ROOT = Path(__file__).parents[2]
NUM_FILES, NUM_LINES = 50, 1000


@pytest.fixture
def short_folder():
    # The path of a Unix socket has at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    yield folder
    shutil.rmtree(folder)


def writer_of(attempt, process):
    """Return the process below another one that is writing an attempt, if one is."""
    for child in process.children(recursive=True):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{child.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if link.readlink() == attempt / ".fkat_data.writing":
                        return child
    return None


def kill_a_worker(process, out):
    """Kill a worker in the middle of an item; return the folder that it leaves."""
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        for attempt in out.glob("*.attempt-*"):
            if writer := writer_of(attempt, process):
                writer.send_signal(signal.SIGKILL)
                with contextlib.suppress(psutil.TimeoutExpired):
                    writer.wait(PATIENCE_S)
                if (attempt / ".fkat_data.writing").exists():
                    return attempt
        time.sleep(0.001)
    raise AssertionError("the conversion has ended before a worker could be killed")


@pytest.mark.timeout(600)  # in the lane whole, both
def test_a_conversion_survives_a_killed_worker(processes, tmp_path, short_folder, some):
    for engine in some(("dask", "ray"), 1):
        (tmp_path / engine).mkdir()
        convert(tmp_path / engine, short_folder, engine)


def convert(folder, short_folder, engine):
    data, out = folder / "data", folder / "out"
    data.mkdir()
    for file in range(NUM_FILES):
        lines = [{"id": file * NUM_LINES + line, "tokens": [file] * (1 + line % 50)} for line in range(NUM_LINES)]
        (data / f"{file:02}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}",
        "RAY_TMPDIR": short_folder,
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else it writes when no other test computes
    }
    script = ROOT / "docs" / "examples" / "conversion" / "convert.py"
    command = [sys.executable, script, f"engine={engine}", f"inputs={data}/*.jsonl", f"out={out}"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        process = psutil.Process(run.pid)
        try:
            dead = kill_a_worker(process, out)
            children = process.children(recursive=True)
            output, _ = run.communicate(timeout=150)
        finally:
            run.kill()
    assert run.returncode == 0, output
    num_tokens = NUM_FILES * sum(1 + line % 50 for line in range(NUM_LINES))
    assert f"{NUM_FILES * NUM_LINES} samples with {num_tokens} tokens" in output
    assert not dead.exists()
    assert sorted(path.name for path in out.iterdir()) == [*(f"{item:06}" for item in range(NUM_FILES)), "index.json"]
    dataset = LocalDataset(out)
    assert [dataset[index]["id"] for index in range(len(dataset))] == list(range(NUM_FILES * NUM_LINES))
    assert still_alive(children) == []

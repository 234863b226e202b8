"""Programs, servers and small datasets that tests of streaming share."""

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def start(processes, tmp_path):
    """Start a text as a program that finds what this one finds, with pipes; it is killed at the end."""
    started = []

    def run(text, *arguments, under=()):
        path = tmp_path / f"program{len(started)}.py"
        path.write_text(text)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [*under, sys.executable, str(path), *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, text=True, env=environment, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run_on_small_disk(start, tmp_path):
    """Run a program with a folder that is a file system of its own, and is gone when the program ends."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def run(text, *arguments, size="4m"):
        mount = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
        under = ["unshare", "-rm", "sh", "-c", mount, str(folder)]
        try:
            subprocess.run([*under, "true"], check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no file system can be mounted here")
        process = start(text, folder, *arguments, under=under)
        output, _ = process.communicate(timeout=170)
        assert process.returncode == 0
        return output

    return run


@pytest.fixture
def folder_for_all():
    """A folder that every user gets to, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A dataset of 97 numbers."""
    from streaming_examples import write

    return write(tmp_path_factory.mktemp("data") / "numbers", 97)


@pytest.fixture(scope="module")
def options(data):
    """What a small shuffled dataset of the numbers is made with."""
    return {"local": data, "batch_size": 4, "shuffle": True, "shuffle_algo": "block", "num_canonical_nodes": 2}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two datasets, of 60 numbers from 0 on and of 37 from 1000 on."""
    from streaming_examples import write

    folder = tmp_path_factory.mktemp("two")
    return [write(folder / "a", 60), write(folder / "b", 37, first=1000)]


@pytest.fixture(scope="module")
def moto(shared_processes):
    """A server of S3."""
    import servers

    with servers.moto() as server:
        yield server


@pytest.fixture
def bucket(moto, request):
    """A folder of a bucket, for this test."""
    from file_streams import Bucket

    return Bucket(moto, f"{request.node.name}/data")


@pytest.fixture
def hub(processes, monkeypatch, tmp_path):
    """A Hugging Face hub."""
    from hub_server import be_the_hub, hub_server

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with hub_server() as server:
        be_the_hub(server, monkeypatch, tmp_path)
        yield server


@pytest.fixture
def own_caches(monkeypatch, tmp_path):
    """Generated indices are kept for this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    # Between attempts, a random part of at most this fraction of what is documented.
    uniform = random.Random().uniform
    monkeypatch.setattr(random.SystemRandom, "uniform", lambda _, low, high: uniform(low, high) / 25)

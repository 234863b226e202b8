"""Modules here can be imported by spawned workers, which search the trainer's sys.path."""

import random
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in (".", "order", "../files")]
sys.path.append(str(Path(__file__).parents[1] / "faults"))


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


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    # Between attempts, a random part of at most this fraction of what is documented.
    uniform = random.Random().uniform
    monkeypatch.setattr(random.SystemRandom, "uniform", lambda _, low, high: uniform(low, high) / 25)

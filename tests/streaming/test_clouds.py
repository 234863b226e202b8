"""Datasets in Google's and Azure's stores, as far as emulators of them go. Slow: CI has neither."""

import itertools
import uuid
from pathlib import Path

import pytest
import servers
from proxy import FaultServer
from proxy.faults import fault
from streaming_examples import numbers, write

from fkat_data.errors import DownloadError, ShardNotFoundError
from fkat_data.streaming import StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.slow

COUNT = 97
OPTIONS = {"batch_size": 4, "shuffle": True, "shuffle_algo": "block", "validate_hash": "sha256", "download_timeout": 5}


@pytest.fixture(scope="module", params=["gs", "az"])
def cloud(shared_processes, request, tmp_path_factory):
    """A scheme, an emulator's URL, and a function from a URL to the storage options."""
    directory = tmp_path_factory.mktemp(request.param)
    with {"gs": servers.google, "az": servers.azure}[request.param](directory) as (url, options_of):
        yield request.param, url, options_of


@pytest.fixture
def filled(cloud, tmp_path):
    """A dataset's URL in the cloud, and a function that opens it through a server with faults."""
    import fsspec

    scheme, url, options_of = cloud
    data = Path(write(tmp_path / "data", COUNT, hashes=["sha256"]))
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    filesystem = fsspec.filesystem(scheme, **options_of(url), skip_instance_cache=True)
    filesystem.mkdir(bucket)
    for path in data.iterdir():
        filesystem.pipe_file(f"{bucket}/train/{path.name}", path.read_bytes())
    opened = []

    def open_through(plan, **options):
        faulty = FaultServer(url, plan, forever=options.pop("forever", False)).__enter__()
        opened.append(faulty)
        local, given = str(tmp_path / f"local{len(opened)}"), OPTIONS | options
        remote = f"{scheme}://{bucket}/train"
        return StreamingDataset(remote=remote, local=local, storage_options=options_of(faulty.url), **given)

    yield sorted(path.name for path in data.iterdir() if path.name != "index.json"), open_through
    for faulty in opened:
        faulty.__exit__()


def test_every_sample_arrives_once_through_faults(filled):
    names, open_through = filled
    kinds = ["status", "reset", "end", "flip", "stall", "longer", "reset_first", "xml"]
    plan = {name: [fault(kinds[place % len(kinds)])] for place, name in enumerate(names)}
    dataset = open_through(plan, download_retry=5)
    assert sorted(itertools.chain(*numbers(StreamingDataLoader(dataset)))) == list(range(COUNT))


def test_what_is_missing_and_what_is_refused_is_an_error_at_once(filled):
    names, open_through = filled
    with pytest.raises(ShardNotFoundError, match=names[1]):
        list(StreamingDataLoader(open_through({names[1]: [fault("status", status=404)]}, forever=True)))
    with pytest.raises(DownloadError, match=r"403|orbidden|ermission|uthori") as caught:
        list(StreamingDataLoader(open_through({names[1]: [fault("status", status=403, body=b"")]}, forever=True)))
    assert caught.value.is_refused

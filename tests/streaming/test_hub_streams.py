"""Datasets on the Hugging Face hub as streams: the samples of a commit, whatever is pushed meanwhile."""

import pickle
from pathlib import Path

import pytest
from parquet_examples import write_both

from fkat_data.streaming import StreamingDataset

pytest.importorskip("huggingface_hub")

COUNT = 60
HUB = "hf://datasets/owner/name"


def numbers(dataset):
    return [sample["number"] for sample in dataset]


def files_of(folder, below=""):
    return {f"{below}{path.relative_to(folder)}": path.read_bytes() for path in Path(folder).rglob("*.*")}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The MDS shards and the Parquet files of the same samples, by their names."""
    mds, parquet = write_both(tmp_path_factory.mktemp("both"), COUNT)
    return files_of(mds, "mds/"), files_of(parquet, "data/")


@pytest.fixture
def hub(hub, both):
    hub.push({"README.md": b"#"} | both[0] | both[1])
    hub.push(both[1], revision="refs/convert/parquet")
    return hub


def opened(remote, local, **options):
    return StreamingDataset(
        remote=remote, local=str(local), batch_size=4, download_timeout=10, download_retry=0, **options
    )


@pytest.mark.parametrize(
    "path",
    [
        "/mds",
        "/data",
        "/data/*.parquet",
        "/**/*.parquet",
        "@refs/convert/parquet",
        "@refs/convert/parquet/data/**/*.parquet",
    ],
)
def test_a_dataset_is_read_by_any_of_its_names(hub, tmp_path, path):
    found = opened(HUB + path, tmp_path / "cache")
    count = 28 if path == "/data/*.parquet" else COUNT
    assert sorted(numbers(found)) == list(range(count))


@pytest.mark.parametrize("path", ["/mds", "/data"])
def test_a_push_in_the_middle_of_an_epoch_mixes_nothing(hub, tmp_path, both, path):
    dataset = opened(HUB + path, tmp_path / "cache")
    worker = pickle.dumps(dataset)
    samples = iter(dataset)
    first = [next(samples)["number"] for _ in range(5)]
    # Every file has the same size and other bytes: only the commit tells them apart.
    hub.push({name: content[::-1] for name, content in (both[0] | both[1]).items()})
    assert [*first, *(sample["number"] for sample in samples)] == list(range(COUNT))
    assert [pickle.loads(worker)[number]["number"] for number in range(COUNT)] == list(range(COUNT))
    assert len(hub.asked("/revision/main")) == 1


def test_a_push_that_changes_no_data_fetches_nothing_again(hub, tmp_path, both):
    for path in ("/mds", "/data"):
        assert sorted(numbers(opened(HUB + path, tmp_path / path))) == list(range(COUNT))
    hub.push({"README.md": b"# More words"} | both[0] | both[1])
    hub.requests.clear()
    for path in ("/mds", "/data"):
        assert sorted(numbers(opened(HUB + path, tmp_path / path))) == list(range(COUNT))
    assert not [asked for asked in hub.asked("/cdn/") if asked[0] == "GET"]

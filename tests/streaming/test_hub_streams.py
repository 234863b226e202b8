"""Datasets on the Hugging Face hub as streams: the samples of a commit on all ranks, whatever is pushed meanwhile."""

import itertools
import multiprocessing
import pickle
from pathlib import Path

import pytest
import torch.distributed as dist
from parquet_examples import write_both, write_parquet

from fkat_data.errors import RankMismatchError, StateMismatchError
from fkat_data.runtime.distributed import gather
from fkat_data.streaming import StreamingDataLoader, StreamingDataset
from fkat_data.streaming.reader import reader_of

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
def filled(hub, both):
    hub.push({"README.md": b"#"} | both[0] | both[1])
    hub.push(both[1], revision="refs/convert/parquet")
    return hub


def opened(path, local):
    return StreamingDataset(remote=HUB + path, local=str(local), batch_size=2, download_timeout=10, download_retry=0)


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
def test_a_dataset_is_read_by_any_of_its_names(filled, tmp_path, path):
    found = opened(path, tmp_path / "cache")
    count = 28 if path == "/data/*.parquet" else COUNT
    assert sorted(numbers(found)) == list(range(count))


@pytest.mark.parametrize("path", ["/mds", "/data"])
def test_a_push_in_the_middle_of_an_epoch_mixes_nothing(filled, tmp_path, both, path):
    dataset = opened(path, tmp_path / "cache")
    worker = pickle.dumps(dataset)
    samples = iter(dataset)
    first = [next(samples)["number"] for _ in range(5)]
    # Every file has the same size and other bytes: only the commit tells them apart.
    filled.push({name: content[::-1] for name, content in (both[0] | both[1]).items()})
    assert [*first, *(sample["number"] for sample in samples)] == list(range(COUNT))
    assert [pickle.loads(worker)[number]["number"] for number in range(COUNT)] == list(range(COUNT))
    assert len(filled.asked("/revision/main")) == 1


def test_a_push_that_changes_no_data_fetches_nothing_again(filled, tmp_path, both):
    for path in ("/mds", "/data"):
        assert sorted(numbers(opened(path, tmp_path / path))) == list(range(COUNT))
    filled.push({"README.md": b"# More words"} | both[0] | both[1])
    filled.requests.clear()
    for path in ("/mds", "/data"):
        assert sorted(numbers(opened(path, tmp_path / path))) == list(range(COUNT))
    assert not [asked for asked in filled.asked("/cdn/") if asked[0] == "GET"]


def files(folder, start=0):
    """Two Parquet files of ten samples each."""
    parts = (start, start + 10)
    paths = [write_parquet(folder / f"{part}.parquet", range(part, part + 10), [10], ("number",)) for part in parts]
    return {f"data/{index}.parquet": Path(path).read_bytes() for index, path in enumerate(paths)}


def error_of(function):
    try:
        function()
    except (RankMismatchError, StateMismatchError) as error:
        return str(error)
    return None


def in_batches(loader):
    return sorted(number for batch in loader for number in batch["number"].tolist())


def _rank(rank, folder, turns, queue):
    turns[rank].wait(20)
    early, kept = opened("/data", folder / f"early-{rank}"), opened("@v1/data", folder / f"kept-{rank}")
    queue.put((rank, reader_of(early).catalog.commits[0].commit, reader_of(kept).catalog.commits[0].commit))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for turn in range(2):
        dist.barrier()
        if turn == rank:
            found["early"] = error_of(lambda: iter(StreamingDataLoader(early)).__next__())
            found["kept"] = in_batches(StreamingDataLoader(kept))
    states = gather(StreamingDataLoader(early).local_state_dict())
    found["merged"] = error_of(lambda: StreamingDataLoader.merge_state_dicts(states))
    turns[2 + rank].wait(20)
    late = opened("/data", folder / f"late-{rank}")
    found["late"] = in_batches(StreamingDataLoader(late))
    found["other"] = in_batches(StreamingDataLoader(opened("@v2/data", folder / f"other-{rank}")))
    queue.put((rank, reader_of(late).catalog.commits[0].commit, found))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_read_one_commit_or_say_that_they_do_not(hub, tmp_path):
    context = multiprocessing.get_context("fork")
    turns, queue = [context.Event() for _ in range(4)], context.Queue()
    first, second = files(tmp_path / "first"), files(tmp_path / "second", start=100)
    v1 = hub.push(first, revision="v1")
    before = hub.push(first)
    ranks = [context.Process(target=_rank, args=(rank, tmp_path, turns, queue)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    turns[0].set()
    assert queue.get(timeout=20) == (0, before, v1)
    # Equal names and sizes under one branch. Another commit with the same data under the other one.
    after, words = hub.push(second), hub.push(first | {"README.md": b"#"}, revision="v1")
    turns[1].set()
    assert queue.get(timeout=20) == (1, after, words)
    hub.push(first, revision="v2")
    hub.requests.clear()
    turns[2].set()
    _, commit, zero = queue.get(timeout=20)
    hub.push(second, revision="v2")
    turns[3].set()
    _, commit_of_one, one = queue.get(timeout=20)
    for rank in ranks:
        rank.join(20)
    text = f"ranks disagree on the data of {HUB}/data: commit {before} on rank 0, commit {after} on rank 1; "
    assert zero["early"] is None
    assert one["early"].startswith(text)
    assert zero["merged"] == one["merged"]
    assert f"commit {before} on rank 0, commit {after} on rank 1" in one["merged"]
    assert sorted(zero["kept"] + one["kept"]) == list(range(20))
    # Where the ranks can talk, the first one decides for all. What one of them reads already decides, too.
    assert commit == commit_of_one == before
    assert sorted(zero["late"] + one["late"]) == list(range(20))
    assert sorted(zero["other"] + one["other"]) == list(range(20))
    assert not hub.asked("/revision/main")
    assert len(hub.asked("/revision/v2")) == 1
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_a_state_names_the_commit_and_refuses_other_data(hub, tmp_path):
    first = files(tmp_path / "first")
    before = hub.push(first)
    loader = StreamingDataLoader(opened("/data", tmp_path / "a"))
    batches = iter(loader)
    begun = [next(batches)["number"].tolist() for _ in range(3)]
    state = loader.state_dict()
    assert state["commits"][0]["commit"] == before
    hub.push(first | {"README.md": b"#"})
    resumed = StreamingDataLoader(opened("/data", tmp_path / "b"))
    resumed.load_state_dict(state)
    assert sorted([*itertools.chain(*begun), *in_batches(resumed)]) == list(range(20))
    after = hub.push(files(tmp_path / "second", start=100))
    moved = StreamingDataLoader(opened("/data", tmp_path / "c"))
    with pytest.raises(StateMismatchError, match=f"saved '{before}', expected '{after}'.*write @{before}"):
        moved.load_state_dict(state)
    accepting, again = (StreamingDataLoader(opened("/data", tmp_path / name)) for name in "ef")
    accepting.load_state_dict(state, accept={"commits"})
    assert accepting.state_dict()["commits"][0]["commit"] == after
    again.load_state_dict(accepting.state_dict())
    rest = [number - 100 for number in in_batches(again)]
    assert sorted([*itertools.chain(*begun), *rest]) == list(range(20))
    assert again.state_dict()["accepted"] == ({"field": "commits", "epoch": 0, "step": 6},)
    # The commit that the message names, a state without commits, and the same data of another place.
    StreamingDataLoader(opened(f"@{before}/data", tmp_path / "d")).load_state_dict(state)
    moved.load_state_dict({name: value for name, value in state.items() if name != "commits"})
    StreamingDataLoader(StreamingDataset(local=str(tmp_path / "first"), batch_size=2)).load_state_dict(state)
    for wrong in (3, ({},), (None, None)):
        with pytest.raises(StateMismatchError, match="commits"):
            moved.load_state_dict(state | {"commits": wrong})

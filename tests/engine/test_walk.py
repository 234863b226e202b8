"""A newcomer's walk: what docs/architecture.md says of a microbatch's way through each face is what the code does."""

import gc
import re
import weakref
from pathlib import Path

import pytest
from drop_in_examples import Strand
from test_path import calls_of

import fkat_data
from fkat_data import DataLoader, DataLoaderFactory, ShardedDataLoader
from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

ROOT = Path(fkat_data.__file__).parent
TEXT = (ROOT.parent / "docs" / "architecture.md").read_text()
SECTION = TEXT[TEXT.index("## Through each face") : TEXT.index("## Where to change what")]
CHANGES = [line.split("|")[1:4] for line in re.findall(r"^\|.+\|$", TEXT, re.MULTILINE) if ".py`" in line]
TABLE = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.+\|$", SECTION, re.MULTILINE)
]


def stored(folder):
    with MDSWriter(out=str(folder), columns={"x": "int"}) as writer:
        for number in range(8):
            writer.write({"x": number})
    return StreamingDataset(local=str(folder), batch_size=4)


FACES = {
    "`ShardedDataLoader`": lambda folder: ShardedDataLoader(
        0, ["shard"], DataLoaderFactory(lambda shard: range(8), batch_size=4), multiprocessing=False
    ),
    "`DataLoader`, indices": lambda folder: DataLoader(range(8), batch_size=4),
    "`DataLoader`, iterable": lambda folder: DataLoader(Strand(range(8)), batch_size=4),
    "`StreamingDataLoader`": lambda folder: StreamingDataLoader(stored(folder), batch_size=4),
}


def test_the_table_has_all_faces():
    assert TABLE[0][1:] == [*FACES]
    assert len(TABLE) > 10


@pytest.mark.parametrize("face", FACES)
def test_a_microbatch_goes_through_the_stations_in_their_order(face, tmp_path):
    made = []

    def first():
        made.append(FACES[face](tmp_path / "data"))
        next(iter(made[0]))

    calls = iter([name for _, name in calls_of(first)])
    column = [row[TABLE[0].index(face)] for row in TABLE[2:]]
    for station in (name for cell in column for name in re.findall(r"`([\w.]+)`", cell) if name != "__iter__"):
        assert station in calls, station  # goes on behind the station before
    made[0].close()


def test_the_stations_of_worker_processes_are_functions_of_the_package():
    said = re.search(r"With worker processes, (.+)", TEXT)[1]
    held = re.search(r"## What holds what\n\n```text\n(.+?)```", TEXT, re.DOTALL)[1]
    said += "".join(f"`{name}`" for name in re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|(?<=─ )[A-Z]\w+", held))
    source = "\n".join(path.read_text() for path in ROOT.rglob("*.py"))
    for name in re.findall(r"`([\w.]+)`", said):
        assert re.search(rf"(def|class) {name.rpartition('.')[2]}\b", source), name


@pytest.mark.parametrize(("begin", "then"), [row[1:] for row in CHANGES], ids=[row[0].strip() for row in CHANGES])
def test_a_change_begins_in_files_and_with_names_that_are_there(begin, then):
    found = re.findall(r"`([\w/]+\.py)`: `(\w+)`", begin + then)
    found += [(path, name) for name, path in re.findall(r"`(\w+)` in `([\w/]+\.py)`", then)]
    assert len(found) > len(re.findall(r"`[\w/]+\.py`: ", then))
    for path, name in found:
        assert re.search(rf"^(?:(?:def|class) )?{name}\b", (ROOT / path).read_text(), re.MULTILINE), (path, name)
    for path in re.findall(r"`([a-z_]+/[\w/]+(?:\.py)?)`", then):
        assert (ROOT / path).exists() or (ROOT.parent / path).exists(), path


def test_ten_changes_are_shown():
    assert len(CHANGES) == 10


class Numbers(list):
    """A dataset that can be referred to weakly."""


DATA = {
    "shards": (
        lambda folder: lambda shard: DataLoader(range(8), batch_size=4),
        lambda factory: ShardedDataLoader(0, ["a"], factory, multiprocessing=False),
    ),
    "indices": (lambda folder: Numbers(range(8)), lambda dataset: DataLoader(dataset, batch_size=4)),
    "iterable": (lambda folder: Strand(range(8)), lambda dataset: DataLoader(dataset, batch_size=4)),
    "stream": (stored, lambda dataset: StreamingDataLoader(dataset, batch_size=4)),
}


@pytest.mark.parametrize("face", DATA)
def test_the_data_of_a_dropped_loader_are_gone_at_once(face, tmp_path):
    """A loader that works in the caller's thread leaves nothing behind, not even until garbage is collected."""
    make, load = DATA[face]
    data = make(tmp_path / "data")
    loader, known = load(data), weakref.ref(data)
    del data
    gc.collect()
    gc.disable()
    try:
        batches = iter(loader)
        next(batches)
        del batches, loader
        assert known() is None
    finally:
        gc.enable()

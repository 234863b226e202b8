"""Attempts at one item: dead, doubled and late ones leave neither a sample nor a file in the dataset."""

import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_examples import rows_in

from fkat_data.streaming import MDSWriter, write_parallel

MAKE_WRITER = partial(MDSWriter, columns={"item": "int", "row": "int", "attempt": "int"}, size_limit=300)
NUM_ROWS = 20


def files(directory):
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}


def named(directory):
    shards = json.loads((directory / "index.json").read_text())["shards"]
    return {shard["raw_data"]["basename"] for shard in shards}


class LossyCluster:
    """An executor that runs each call as a plan says. Attempts at an item write samples that tell them apart.

    Args:
        plans: For each item, one letter for each attempt at it, in their order. ``d``: its process is killed while it
            writes. ``e``: it ends early, but its report is lost. ``c``: the one that counts. ``l``: it is late: it ends
            after the dataset is whole.
    """

    def __init__(self, plans):
        self._plans = plans
        self._threads = ThreadPoolExecutor(sum(plan.count("l") for plan in plans) or 1)
        self._is_over = threading.Event()
        self._late = []

    def samples_of(self, item):
        """Yield an attempt's samples."""
        for row in range(NUM_ROWS):
            if self._attempt.is_late and row == NUM_ROWS // 2:
                self._attempt.has_begun.set()
                assert self._is_over.wait(20)
            yield {"item": item, "row": row, "attempt": self._attempt.number}

    _attempt = threading.local()

    def submit(self, fn, /, *args):
        future = Future()
        *_, item, folders, number, _ = args
        for attempt, kind in enumerate(self._plans[item]):
            if kind == "d":
                self._leave_what_a_killed_one_leaves(folders, number)
                continue
            has_begun = threading.Event()
            if kind == "l":
                self._late.append(self._threads.submit(self._run, attempt, has_begun, fn, args))
                assert has_begun.wait(20)
                continue
            name = self._run(attempt, None, fn, args)
            if kind == "c":
                future.set_result(name)
        return future

    def end(self):
        """Let the late attempts end; return their errors."""
        self._is_over.set()
        found = [late.exception(20) for late in self._late]
        self._threads.shutdown()
        return found

    def _run(self, attempt, has_begun, fn, args):
        self._attempt.number, self._attempt.is_late, self._attempt.has_begun = attempt, has_begun is not None, has_begun
        return fn(*args)

    def _leave_what_a_killed_one_leaves(self, folders, number):
        location = folders.location(folders.attempt(number))
        for side in [location] if isinstance(location, str) else location:
            folder = Path(side.removeprefix("file://"))
            folder.mkdir(parents=True)
            for name in (".fkat_data.writing", "shard.00000.mds", "shard.00001.mds", "index.json.tmp"):
                (folder / name).write_bytes(b"half")


PLANS = st.lists(
    st.permutations("deel")
    .flatmap(lambda some: st.sampled_from(["", *some, "".join(some)]))
    .map(lambda some: some + "c"),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("sides", ["local", "both", "both kept"])
@given(plans=PLANS)
@settings(max_examples=40)
def test_each_item_comes_from_the_attempt_that_counts_and_nothing_else_stays(tmp_path_factory, sides, plans):
    root = tmp_path_factory.mktemp("whole")
    out = root / "data" if sides == "local" else (str(root / "data"), f"file://{root}/far")
    cluster = LossyCluster(plans)
    count = write_parallel(
        MAKE_WRITER,
        cluster.samples_of,
        range(len(plans)),
        out=out,
        executor=cluster,
        keep_local=sides == "both kept",
    )
    directory = root / ("data" if sides == "local" else "far")
    found = rows_in(directory)
    expected = [
        {"item": item, "row": row, "attempt": plan.index("c")}
        for item, plan in enumerate(plans)
        for row in range(NUM_ROWS)
    ]
    assert found == expected
    assert count == len(expected)
    cluster.end()
    assert rows_in(directory) == expected
    places = [directory] if sides != "both kept" else [directory, root / "data"]
    for place in places:
        parts = {f"{item:06}" for item in range(len(plans))}
        assert {path.name for path in place.iterdir()} == {"index.json", *parts}
        assert files(place) == {"index.json", *(f"{part}/index.json" for part in parts), *named(place)}
    if sides == "both":
        assert not files(root / "data")


def test_a_dataset_that_appears_meanwhile_is_not_touched(tmp_path):
    class Executor(ThreadPoolExecutor):
        def submit(self, fn, /, *args):
            (tmp_path / "index.json").write_text("another's")
            return super().submit(fn, *args)

    with Executor(1) as executor, pytest.raises(FileExistsError, match="meanwhile"):
        write_parallel(MAKE_WRITER, lambda item: [], [1], out=tmp_path, executor=executor)
    assert files(tmp_path) == {"index.json"}
    assert (tmp_path / "index.json").read_text() == "another's"


def test_an_attempt_keeps_its_name_beside_files_of_others(tmp_path):
    (tmp_path / "000001").mkdir()
    (tmp_path / "000001" / "notes.txt").write_text("mine")

    def write(items, **options):
        with ThreadPoolExecutor(1) as executor:
            write_parallel(MAKE_WRITER, one_row, items, out=tmp_path, executor=executor, **options)

    def one_row(item):
        return [{"item": item, "row": 0, "attempt": 0}]

    write([0, 1])
    assert [row["item"] for row in rows_in(tmp_path)] == [0, 1]
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"000000", "000001", "index"}
    assert (tmp_path / "000001" / "notes.txt").read_text() == "mine"
    write([7], exist_ok=True)
    assert [row["item"] for row in rows_in(tmp_path)] == [7]
    assert files(tmp_path) == {"000001/notes.txt", "000000/index.json", "000000/shard.00000.mds", "index.json"}

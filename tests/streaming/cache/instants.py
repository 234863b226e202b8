"""A process that fails at every instant of its use of a cache, one after the other: a program.

Its arguments: a folder, then actions. It prints how often each point was passed, and ends with an error if what a
fresh process finds afterwards is not right.
"""

import itertools
import json
import os
import sys
import traceback
from pathlib import Path

from cache_examples import get, is_right, is_shard, leftovers_in, shards_in

from fkat_data import faults
from fkat_data.streaming.cache.cache import Cache
from fkat_data.streaming.cache.cache_budget import CacheBudget
from fkat_data.streaming.cache.dataset_version import DatasetVersion

POINTS = [point for point in faults.POINTS if point.startswith("cache.")]
SIZES = {"a.mds": 300, "x/b.mds": 500, "c.mds": 400, "d.mds": 0, "e.mds": 450}
LIMIT_BYTES = 1000


def use(directory, armed):
    """What a job does: adopt the directory, which had another state's files, and ask for files."""
    faults._armed = (armed,) if armed else ()
    generation = DatasetVersion(directory)
    generation.adopt("new", lambda old: ["old.mds", "a.mds"] if old == "old" else [])
    cache = Cache(directory, CacheBudget([directory], LIMIT_BYTES, is_shard))
    generation.hold()
    for name, size_bytes in SIZES.items():
        path = get(cache, name, size_bytes)
        assert is_right(path, name, size_bytes)
    assert not (directory / "old.mds").exists()
    assert generation.recorded == "new"


def in_child(work):
    """Return how a child that does it ends: 0, 3 for an error, or minus a signal's number."""
    pid = os.fork()
    if not pid:
        code = 4
        try:
            work()
            code = 0
        except (OSError, RuntimeError) as error:
            code = 3 if "injected" in str(error) else 4
        finally:
            if code == 4:
                traceback.print_exc()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prepare(directory):
    DatasetVersion(directory).adopt("old", lambda old: [])
    (directory / "old.mds").write_bytes(b"old")
    # Of the old state, and as long as the new one's.
    (directory / "a.mds").write_bytes(b"x" * SIZES["a.mds"])
    (directory / "index.json").write_bytes(b"{}")


def afterwards(directory):
    use(directory, None)
    assert leftovers_in(directory) == []
    assert CacheBudget([directory], None).usage_bytes <= LIMIT_BYTES
    for name in shards_in(directory):
        assert is_right(directory / name, name, SIZES[name]), name


def sweep(folder, actions):
    passes = {}
    for point, action in itertools.product(POINTS, actions):
        for occurrence in itertools.count(1):
            directory = folder / f"{point}-{action}-{occurrence}"
            assert in_child(lambda directory=directory: prepare(directory)) == 0
            claim = folder / f"{point}-{action}-{occurrence}.claim"
            armed = faults.parse_fault(f"{point}:{occurrence}:{action}:{claim}")
            code = in_child(lambda directory=directory, armed=armed: use(directory, armed))
            ends = {"kill": -9, "segv": -11, "exit0": 0}
            assert code in ((ends[action],) if action in ends and claim.exists() else (0, 3)), (point, action, code)
            assert in_child(lambda directory=directory: afterwards(directory)) == 0, (point, action, occurrence)
            if not claim.exists():
                break
            passes[point] = occurrence
    print(json.dumps(passes))


if __name__ == "__main__":
    sweep(Path(sys.argv[1]), sys.argv[2:])

"""An index that means harm is read through a store and a cache: an error or data, and nothing outside the cache changes.

Names lead out of the directory, or to files that others have planted in it; numbers promise more than any machine has.
"""

import json
import random
import shutil
import time
import tracemalloc
from functools import partial

import pytest
from damage import VALUES, in_fresh_folders
from streaming_examples import write

from fkat_data.errors import FkatDataError
from fkat_data.streaming import StreamingDataset

NUM_CASES = 300
NUM_CASES_SLOW = 10_000
NUM_PARTS = 10
MOST_BYTES = 64 << 20
LONGEST_S = 20.0

NAMES = [
    *("", ".", "..", "../victim/secret", "../../victim/secret", "/victim/secret", "{root}/victim/secret", "~/secret"),
    *("file://{root}/victim/secret", "a\0b", "x" * 4096, "shard.00000.mds/../../victim/secret", "sub/../../victim/new"),
    *("link/secret", "link/new", "planted", "loop/x", ".fkat/generation", "index.json", "INDEX.JSON", "..\\victim"),
    *(
        "\uff0e\uff0e/victim/secret",
        "\u2025/victim",
        "\u202esecret",
        "%2e%2e/victim/secret",
        "shard.00001.mds",
        "\ud800",
    ),
    *("-rf", "nul\n", " ", "victim/" * 300 + "x", "s3://bucket/key", "C:\\victim"),
]
NUMBERS = [-1, 0, 1, 1 << 31, (1 << 32) + 1, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, 1e308, float("inf"), float("nan")]


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def put(value, path, new):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def renamed(draw, index, root):
    shard = draw.choice(index["shards"])
    shard["raw_data"]["basename"] = draw.choice(NAMES).replace("{root}", str(root))
    if draw.random() < 0.3:
        shard["zip_data"] = {**shard["raw_data"], "basename": draw.choice(NAMES).replace("{root}", str(root))}
        shard["compression"] = draw.choice(["zstd", "gz", "br:1", "snappy", "none", "../x"])


def counted(draw, index, root):
    shard = draw.choice(index["shards"])
    name = draw.choice(["samples", "bytes", "size_limit", "column_sizes"])
    number = draw.choice(NUMBERS)
    if name == "bytes":
        shard["raw_data"]["bytes"] = number
    else:
        shard[name] = [number] * draw.randrange(3) if name == "column_sizes" else number


def replaced(draw, index, root):
    path = draw.choice([path for path in places(index) if path])
    put(index, path, draw.choice([*VALUES, *NAMES, *NUMBERS]))


def repeated(draw, index, root):
    shards = index["shards"]
    index["shards"] = draw.choice([shards * 2, shards[:3] * 500, [shards], []])


MUTATIONS = [renamed, renamed, counted, replaced, repeated]


def hostile_text(draw, index, root):
    for _ in range(draw.choice((1, 1, 2, 3))):
        try:
            draw.choice(MUTATIONS)(draw, index, root)
        except (TypeError, KeyError, AttributeError, IndexError):  # of what an earlier one has made of it
            break
    text = json.dumps(index, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    if draw.random() < 0.15:
        content = bytearray(text)
        for _ in range(draw.randrange(1, 6)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        text = bytes(content)
    return b"[" * draw.choice((10_000, 1_000_000)) if draw.random() < 0.01 else text


def outside(root):
    """What there is beside the cache: names, kinds, contents."""
    beside = [path for path in sorted(root.rglob("*")) if path.relative_to(root).parts[0] != "cache"]
    return {path: path.read_bytes() if path.is_file() else None for path in beside}


def check(number, root, whole):
    draw = random.Random(number)
    shutil.copytree(whole, root / "remote")
    (root / "victim").mkdir()
    (root / "victim" / "secret").write_text("nobody is to read or change this")
    (root / "cache").mkdir()
    if draw.random() < 0.5:  # somebody else has planted these
        (root / "cache" / "link").symlink_to(root / "victim")
        (root / "cache" / "planted").symlink_to(root / "victim" / "secret")
        (root / "cache" / "loop").symlink_to("loop")
    index = json.loads((root / "remote" / "index.json").read_text())
    (root / "remote" / "index.json").write_bytes(hostile_text(draw, index, root))
    before = outside(root)
    tracemalloc.reset_peak()
    began_s = time.process_time()
    try:
        dataset = StreamingDataset(
            remote=str(root / "remote"), local=str(root / "cache"), batch_size=2, download_retry=0, shuffle_seed=1
        )
        for sample_id in range(0, min(len(dataset), 40), 7):
            assert b"nobody" not in repr(dataset[sample_id]).encode()
    except FkatDataError:
        pass
    except Exception as error:
        raise AssertionError(f"case {number}: {(root / 'remote' / 'index.json').read_bytes()[:3000]}") from error
    assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, f"case {number}"
    assert time.process_time() - began_s < LONGEST_S, f"case {number}"
    assert outside(root) == before, f"case {number}"


def run(cases, tmp_path):
    whole = write(tmp_path / "whole", 40)
    in_fresh_folders(partial(check, whole=whole), cases, tmp_path)


def test_a_hostile_index_gives_an_error_or_data_and_changes_nothing_outside(traced, share_of_examples, tmp_path):
    run(range(round(NUM_CASES * share_of_examples)), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_many_hostile_indices_give_errors_or_data_and_change_nothing_outside(traced, part, tmp_path):
    run(range(NUM_CASES + part, NUM_CASES_SLOW, NUM_PARTS), tmp_path)

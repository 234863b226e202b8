"""Damaged datasets give correct data or a ShardError, and nothing else: no crash, no hang, no huge allocation."""

import json
import pickle
import random
import shutil
import time
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest
from damage import CASES, HASHED, OF_DATA, damaged, in_fresh_folders
from golden_shards import SHARDS
from PIL import Image

from fkat_data.errors import ConfigurationError, ShardError
from fkat_data.files.formats import open_shard
from fkat_data.files.index import read_index
from fkat_data.files.stored import decompress_file, validate_file

NUM_CASES = 500
NUM_CASES_SLOW = 100_000
NUM_PARTS = 40
#: A golden dataset has 20 kB at most.
MOST_BYTES = 32 << 20
LONGEST_S = 20.0

TYPES = {
    "bytes": bytes,
    "str": str,
    "int": int,
    "float": (float, int),
    "str_int": int,
    "str_float": float,
    "str_decimal": Decimal,
    "pil": Image.Image,
    "jpeg": Image.Image,
    "png": Image.Image,
}


def read_everything(directory, scratch, algorithm=None):
    """Return every sample, each read in three ways; shards that are damaged give their error instead."""
    found = []
    for entry in read_index(directory / "index.json"):
        if any(column.encoding == "pkl" for column in entry.columns):
            with pytest.raises(ConfigurationError, match="allow_unsafe_types"):
                open_shard(directory, entry)
            continue
        found.append(outcome(lambda entry=entry: read_shard(directory, scratch, entry, algorithm)))
    return found


def read_shard(directory, scratch, entry, algorithm):
    for raw, compressed in entry.files:
        stored = compressed or raw
        validate_file(directory / stored.basename, stored, algorithm)
        if compressed is not None:
            (scratch / raw.basename).parent.mkdir(parents=True, exist_ok=True)
            decompress_file(entry.compression, directory / compressed.basename, scratch / raw.basename, raw)
            validate_file(scratch / raw.basename, raw, algorithm)
    shard = open_shard(scratch if entry.compression else directory, entry)
    assert shard.num_samples == entry.samples
    rows = range(shard.num_samples)
    one_by_one = outcome(lambda: [shard.sample(row) for row in rows])
    at_once = outcome(lambda: shard.samples(list(rows)))
    by_column = outcome(lambda: shard.column_arrays(list(rows)))
    assert isinstance(one_by_one, ShardError) == isinstance(at_once, ShardError) == isinstance(by_column, ShardError)
    if isinstance(one_by_one, ShardError):
        raise one_by_one
    assert len(one_by_one) == entry.samples
    for sample, same in zip(one_by_one, at_once, strict=True):
        assert shown(sample) == shown(same)
        for column in entry.columns:
            assert_typed(sample[column.name], column.encoding)
    assert {name: len(values) for name, values in by_column.items()} == {
        column.name: entry.samples for column in entry.columns
    }
    return one_by_one


def outcome(read):
    try:
        return read()
    except ShardError as error:
        return pickle.loads(pickle.dumps(error))


def shown(value):
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shown(inner) for inner in value]
    if isinstance(value, Image.Image):
        return (value.mode, value.size, value.format)
    if isinstance(value, (np.ndarray, np.generic)):
        return (value.dtype, value.shape, value.tobytes())
    return (type(value), repr(value))


def assert_typed(value, encoding):
    family, _, rest = encoding.partition(":")
    if family == "ndarray":
        assert isinstance(value, np.ndarray)
        assert not rest or value.dtype == rest.split(":")[0]
    elif family in TYPES:
        assert isinstance(value, TYPES[family])
    elif family.startswith(("list[", "jpeg")):
        assert all(isinstance(image, Image.Image) for image in value)
    elif family != "json":
        assert value.dtype == family


def check(number, root):
    draw = random.Random(number)
    case = CASES[number % len(CASES)]
    done = damaged(case, draw, root / "data")
    began_s = time.process_time()
    tracemalloc.reset_peak()
    try:
        found = outcome(lambda: read_everything(root / "data", root / "scratch"))
    except BaseException as error:
        error.add_note(f"case {number}, {case}: {done}")
        raise
    for error in found if isinstance(found, list) else [found]:
        assert not isinstance(error, ShardError) or str(root) in str(error), f"case {number}, {case}: {done}"
    assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, f"case {number}, {case}: {done}"
    assert time.process_time() - began_s < LONGEST_S, f"case {number}, {case}: {done}"


def test_damage_gives_correct_data_or_an_error(traced, share_of_examples, tmp_path):
    in_fresh_folders(check, range(round(NUM_CASES * share_of_examples)), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_much_damage_gives_correct_data_or_an_error(traced, part, tmp_path):
    in_fresh_folders(check, range(NUM_CASES + part, NUM_CASES_SLOW, NUM_PARTS), tmp_path)


def check_hashed(number, root):
    draw = random.Random(-number)
    case = HASHED[number % len(HASHED)]
    shutil.copytree(SHARDS / case / "data", root / "data")
    algorithm = json.loads((root / "data" / "index.json").read_text())["shards"][0]["hashes"][0]
    whole = read_everything(root / "data", root / "scratch", algorithm)
    draw.choice(OF_DATA)(draw, root / "data")
    for shard, original in zip(read_everything(root / "data", root / "scratch", algorithm), whole, strict=True):
        assert isinstance(shard, ShardError) or shown(shard) == shown(original)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_damage_under_a_hash_gives_the_very_data_or_an_error(part, tmp_path):
    in_fresh_folders(check_hashed, range(50 * part, 50 * (part + 1)), tmp_path)

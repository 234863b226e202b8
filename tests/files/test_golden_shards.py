"""Every golden dataset reads exactly, however it is asked for."""

import hashlib
import json

import numpy as np
import pytest
from golden_shards import CASES, SHARDS, WITH_SAMPLES, assert_is, expected_of, unpacked, value_of

from fkat_data.files.encodings import encoding_of
from fkat_data.files.formats import open_shard
from fkat_data.files.index import read_index
from fkat_data.files.stored import HASHES, validate_file


@pytest.fixture
def open_case(tmp_path):
    def open_all(case, **options):
        entries = unpacked(SHARDS / case / "data", tmp_path)
        return [open_shard(tmp_path, entry, allow_unsafe_types=True, **options) for entry in entries]

    return open_all


@pytest.mark.parametrize("case", CASES)
def test_every_sample_has_the_type_and_the_value_that_was_written(case, open_case):
    shards = open_case(case)
    expected = expected_of(case)
    assert sum(shard.num_samples for shard in shards) == expected["num_samples"]
    if shards:
        assert [shard.num_samples for shard in shards] == expected["samples_per_shard"]
    for sample in expected["samples"]:
        shard, row = shards[sample["shard"]], sample["index_in_shard"]
        raw = bytes(shard.raw(row))
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (sample["sample_bytes"], sample["sample_sha256"])
        found = shard.sample(row)
        assert found.keys() == sample["value"].keys()
        for name, value in found.items():
            assert_is(value, sample["value"][name])


@pytest.mark.parametrize("case", WITH_SAMPLES)
def test_many_samples_at_once_are_those_of_one_at_a_time(case, open_case):
    expected = expected_of(case)["samples"]
    generator = np.random.default_rng(0)
    for number, shard in enumerate(open_case(case)):
        values = {sample["index_in_shard"]: sample["value"] for sample in expected if sample["shard"] == number}
        rows = generator.integers(0, shard.num_samples, 3 * shard.num_samples)
        for row, sample in zip(rows, shard.samples(rows), strict=True):
            assert sample.keys() == values[row].keys()
            for name, value in sample.items():
                assert_is(value, values[row][name])
        columns = shard.column_arrays(rows.tolist())
        for name, column in columns.items():
            assert len(column) == len(rows)
            for row, value in zip(rows, column, strict=True):
                typed = values[row][name]
                if typed["type"] == "int" and isinstance(column, np.ndarray):
                    assert column.dtype == np.int64
                    assert int(value) == typed["value"]
                else:
                    assert_is(value, typed)


@pytest.mark.parametrize("case", CASES)
def test_every_file_has_the_size_and_the_hashes_that_the_index_says(case, tmp_path):
    directory = SHARDS / case / "data"
    entries = unpacked(directory, tmp_path)
    assert entries == read_index(directory / "index.json")
    for entry in entries:
        for raw, compressed in entry.files:
            for root, info in ((tmp_path, raw), (directory, compressed)):
                for algorithm in [None, *entry.hashes] if info else []:
                    validate_file(root / info.basename, info, algorithm)


def test_every_hash_is_tried():
    assert set(HASHES) == set(read_index(SHARDS / "mds-all-hashes" / "data" / "index.json")[0].hashes)


TRIPLES = json.loads((SHARDS / "encodings.json").read_text())


def test_values_have_the_bytes_that_the_original_gives_them():
    assert len(TRIPLES) > 100
    for triple in TRIPLES:
        encoding = encoding_of(triple["encoding"])
        assert encoding.size_bytes == triple["fixed_size"], triple
        assert encoding.encode(value_of(triple["input"])).hex() == triple["hex"], triple

"""What the writers make of the golden datasets' samples is, byte for byte, what was made of them before."""

import hashlib

import pytest
from golden_shards import CASES, expected_of, unpacked, value_of

from fkat_data.streaming import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter

WRITERS = {kind.__name__: kind for kind in (MDSWriter, JSONWriter, XSVWriter, CSVWriter, TSVWriter)}
REWRITTEN = [case for case in CASES if "inputs" in expected_of(case)]
COMPRESSED = [case for case in REWRITTEN if expected_of(case)["writer_args"].get("compression")]


def rewritten(case, out):
    expected = expected_of(case)
    settings = dict(expected["writer_args"])
    with WRITERS[settings.pop("class")](out=str(out), **settings) as writer:
        for sample in expected["inputs"]:
            writer.write({name: value_of(typed) for name, typed in sample.items()})
    return expected


def sizes_and_hashes(directory):
    return {
        str(path.relative_to(directory)): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("case", sorted(set(REWRITTEN) - set(COMPRESSED)))
def test_uncompressed_datasets_come_out_byte_for_byte(case, tmp_path):
    expected = rewritten(case, tmp_path)
    assert sizes_and_hashes(tmp_path) == expected["files"]


@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_datasets_come_out_byte_for_byte_once_they_are_decompressed(case, tmp_path):
    (tmp_path / "raw").mkdir()
    expected = rewritten(case, tmp_path / "zip")
    assert set(sizes_and_hashes(tmp_path / "zip")) == set(expected["files"])
    unpacked(tmp_path / "zip", tmp_path / "raw")
    assert sizes_and_hashes(tmp_path / "raw") == expected["raw_files_after_decompression"]


def test_a_dataset_without_samples_is_an_index_without_shards(tmp_path):
    expected = expected_of("mds-no-samples")
    with WRITERS["MDSWriter"](out=tmp_path / "new", columns=expected["writer_args"]["columns"]):
        pass
    assert (tmp_path / "new" / "index.json").read_text() == expected["index_json"]

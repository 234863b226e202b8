"""Where lines begin, and how long samples are, written beside a file of a bucket once."""

import json

import fsspec
import numpy as np
import pytest

from fkat_data import ConfigurationError
from fkat_data.datasets import JsonDataset, read_lengths, write_lengths
from fkat_data.files.opening import RangedFile
from fkat_data.files.sidecar import read_sidecar, write_sidecar
from fkat_data.storage.file_identity import FileIdentity


def lines(values):
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def test_a_file_of_a_bucket_is_not_read_for_its_lines_and_lengths_until_it_is_another(bucket, monkeypatch):
    values = [{"text": "x" * (row % 7), "row": row} for row in range(500)]
    key = f"{bucket.prefix}/a.jsonl"
    bucket.server.put(key, lines(values))
    uri, options = f"s3://bucket/{key}", bucket.server.options()
    plain = JsonDataset(uri, storage_options=options)
    plain.save_index(RangedFile(uri, options).identity())
    write_lengths(uri, [len(value["text"]) for value in values], storage_options=options)
    assert read_lengths(uri, storage_options=options).tolist() == [row % 7 for row in range(500)]
    with monkeypatch.context() as patched:
        patched.setattr("fkat_data.files.opening.TextFile.chunks", None)  # which reads all of a file
        dataset = JsonDataset(uri, storage_options=options)
        assert len(dataset) == 500
        assert dataset.__getitems__([499, 0, 250]) == [values[499], values[0], values[250]]
    bucket.server.put(key, lines(values[:3]))
    fsspec.filesystem("s3", **options).invalidate_cache()
    assert list(JsonDataset(uri, storage_options=options)) == values[:3]
    with pytest.raises(ConfigurationError, match=r"a\.jsonl.*fkat-data index --lengths"):
        read_lengths(uri, storage_options=options)


def test_a_store_that_says_no_version_has_no_sidecars():
    with fsspec.open("memory://sidecars/a.jsonl", "wb") as file:
        file.write(lines([1, 2]))
    with pytest.raises(ConfigurationError, match="a file of a store that says when its content is another one"):
        write_lengths("memory://sidecars/a.jsonl", np.ones(2, int))
    assert list(JsonDataset("memory://sidecars/a.jsonl")) == [1, 2]
    for uri in ("filecache::memory://sidecars/a.jsonl", "https://example.org/a.jsonl?key=1"):
        with pytest.raises(ConfigurationError, match="a file that another can lie beside"):
            write_sidecar(uri, "lines", np.ones(2, int), {}, FileIdentity(2, "version"), {})
        assert read_sidecar(uri, "lines", {}) is None

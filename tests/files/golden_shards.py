"""Datasets that were written by the system whose formats these are, and what they hold."""

import base64
import hashlib
import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
from PIL import Image

from fkat_data.files.index import read_index
from fkat_data.files.stored import decompress_file

SHARDS = Path(__file__).parents[1] / "golden" / "streaming" / "shards"
#: Those of which every sample's value is given.
CASES = sorted(path.parent.name for path in SHARDS.glob("*/expected.json") if path.parent.name != "mds-splits")
WITH_SAMPLES = [case for case in CASES if case != "mds-no-samples"]


def expected_of(case):
    return json.loads((SHARDS / case / "expected.json").read_text())


def array_of(typed):
    return np.frombuffer(base64.b64decode(typed["b64"]), typed["dtype"]).reshape(typed["shape"])


def image_of(typed):
    return Image.frombytes(typed["mode"], tuple(typed["size"]), base64.b64decode(typed["pixels_b64"]))


FROM_TYPED = {
    "bytes": lambda typed: base64.b64decode(typed["b64"]),
    "decimal": lambda typed: Decimal(typed["value"]),
    "float": lambda typed: float(typed["repr"]),
    "image": image_of,
    "list": lambda typed: [value_of(item) for item in typed["items"]],
    "ndarray": array_of,
    **dict.fromkeys(("bool", "int", "json", "str"), lambda typed: typed["value"]),
}


def value_of(typed):
    """Return the Python value of a typed one, as it is given to a writer."""
    if typed["type"].startswith("np."):
        return np.frombuffer(bytes.fromhex(typed["hex"]), typed["type"].removeprefix("np."))[0]
    return FROM_TYPED[typed["type"]](typed)


def assert_is(value, typed):
    """Fail unless a value is of the type, and is the value, that is expected, bit for bit."""
    kind = typed["type"]
    if kind == "image":
        assert (value.format, value.mode, list(value.size)) == (typed["format"], typed["mode"], typed["size"])
        if typed["note"] == "exact":
            assert hashlib.sha256(value.tobytes()).hexdigest() == typed["pixels_sha256"]
        else:
            pixels = np.frombuffer(value.tobytes(), np.uint8).astype(int)
            assert abs(pixels - np.frombuffer(base64.b64decode(typed["pixels_b64"]), np.uint8)).max() <= 2
        return
    if kind == "list":
        assert type(value) is list
        assert len(value) == len(typed["items"])
        for item, expected in zip(value, typed["items"], strict=True):
            assert_is(item, expected)
        return
    expected = value_of(typed)
    assert type(value) is type(expected)
    if isinstance(expected, (np.ndarray, np.generic)):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        assert value.tobytes() == expected.tobytes()
    elif isinstance(expected, float):
        assert value == expected or (math.isnan(value) and math.isnan(expected))
    elif kind == "json":
        assert json.dumps(value) == json.dumps(expected)  # a tuple in a pickle is given as a list
    else:
        assert value == expected
        assert str(value) == str(expected)


def unpacked(directory, target):
    """Decompress every shard of a dataset into another directory; returns the entries of its index."""
    entries = read_index(directory / "index.json")
    for entry in entries:
        for raw, compressed in entry.files:
            (target / raw.basename).parent.mkdir(parents=True, exist_ok=True)
            if (directory / raw.basename).exists():
                (target / raw.basename).write_bytes((directory / raw.basename).read_bytes())
            else:
                decompress_file(entry.compression, directory / compressed.basename, target / raw.basename, raw)
    return entries

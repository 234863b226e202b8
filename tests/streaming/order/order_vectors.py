"""The orders that the reference computed."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from fkat_data.errors import ConfigurationError

VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "streaming" / "vectors.json").read_text())


def sizes_of(text):
    """Shard sizes as they are written: a list, a size that is repeated, or a range."""
    if isinstance(text, dict):
        return [text["repeat"][0]] * text["repeat"][1] if "repeat" in text else list(range(*text["range"]))
    return text


def check(make, case):
    """What is made is what the reference computed, or is refused where it refused it."""
    if "error" in case:
        with pytest.raises(ConfigurationError):
            make()
        return
    found = np.asarray(make())
    assert list(found.shape) == case.get("shape", list(found.shape))
    flat = found.reshape(-1)
    if "out" in case:
        assert flat.tolist() == case["out"]
    else:
        assert flat[: len(case["first"])].tolist() == case["first"]
        assert flat[-len(case["last"]) :].tolist() == case["last"]
        assert hashlib.sha256(flat.astype("<i8").tobytes()).hexdigest() == case["sha256_int64_le"]


def name(case):
    """A case as a test's name."""
    kept = {key: value for key, value in case.items() if key not in {"out", "shape", "first", "last"}}
    return json.dumps(kept)[:90]


def _set_up(name, shards, streams, seed, *, epoch_size=None, **changed):
    params = {**VECTORS["datasets"][0]["params"], "shuffle": True, **changed}
    return {
        "name": name,
        "shards": shards,
        "streams": streams,
        "epoch_size_arg": epoch_size,
        "shuffle_seed": seed,
        "params": params,
    }


_NOTHING = [None, None]
#: The set-ups that the vectors refer to. Those in the second part are not in the file: found by what they gave.
DATASETS = {case["name"]: case for case in VECTORS["datasets"]} | {
    case["name"]: case
    for case in (
        _set_up("one", [[10, 7, 12]], [_NOTHING], 9176),
        _set_up(
            "mix_prop_py1br",
            [[10, 7], [12, 9, 4]],
            [["proportion", 0.5]] * 2,
            17,
            epoch_size=50,
            shuffle_algo="py1br",
            batch_size=3,
        ),
        _set_up(
            "mix_repeat_py2s",
            [[10, 7], [12, 9, 4], [20]],
            [["repeat", 1.5], ["repeat", 2.0], _NOTHING],
            3,
            shuffle_algo="py2s",
        ),
        _set_up("mix_noshuffle", [[20, 13], [30]], [_NOTHING] * 2, 1, shuffle=False),
        _set_up("mix_orig", [[20, 13], [30]], [_NOTHING] * 2, 1, partition_algo="orig"),
    )
}

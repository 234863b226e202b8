"""Offsets of any size take four bytes each."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.files.offsets import Offsets

steps = st.one_of(st.integers(0, 3), st.integers(0, 1 << 31), st.integers((1 << 32) - 3, 1 << 34))


@given(st.lists(st.lists(steps, max_size=12), max_size=6), st.integers(0, 3))
def test_what_was_put_in_comes_out(parts, num_halvings):
    offsets, expected, last = Offsets(), [], 0
    for part in parts:
        values = np.cumsum([last, *part], dtype=np.int64)
        last = int(values[-1])
        offsets.extend(values[1:])
        expected += values[1:].tolist()
    for _ in range(num_halvings):
        offsets.halve()
        expected = expected[::2]
    offsets = pickle.loads(pickle.dumps(offsets))
    assert len(offsets) == len(expected)
    assert [offsets[number] for number in range(len(expected))] == offsets.values().tolist() == expected


def test_a_million_offsets_take_four_megabytes():
    offsets = Offsets()
    offsets.extend(np.arange(1_000_000, dtype=np.int64) * 1_000_000)
    assert len(pickle.dumps(offsets)) < 4_010_000

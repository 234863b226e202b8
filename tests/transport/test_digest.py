from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.transport.digest import digest_of


class Pair(NamedTuple):
    x: int
    y: str


@dataclass
class Sample:
    tokens: torch.Tensor
    text: str


class Opaque:
    def __init__(self, value):
        self.value = value


EQUAL = {
    "a tensor and its copy": lambda: torch.arange(5000),
    "a transposed tensor": lambda: torch.arange(6).reshape(2, 3).t(),
    "a conjugated tensor": lambda: torch.tensor([1 + 2j]).conj(),
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "no element": lambda: torch.empty(0, 3),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "an array": lambda: np.arange(7.0),
    "a strided array": lambda: np.arange(10)[::3],
    "an array of objects": lambda: np.array(["a", None], dtype=object),
    "a number of numpy's": lambda: np.float32(1.5),
    "nested": lambda: {"a": [1, 2.5, None, True], "b": (b"x", "y", Pair(1, "z"))},
    "a dataclass": lambda: Sample(torch.ones(2), "text"),
    "an object of the user's": lambda: Opaque(3),
    "a long list": lambda: list(range(10_000)),
    "a lone surrogate": lambda: "\ud800",
}


@pytest.mark.parametrize("make", EQUAL.values(), ids=EQUAL)
def test_equal_content_has_equal_digests(make):
    assert digest_of(make()) == digest_of(make())


DIFFERENT = {
    "an element": (torch.tensor([1, 2]), torch.tensor([1, 3])),
    "the last of many": (torch.zeros(100_000), torch.cat([torch.zeros(99_999), torch.ones(1)])),
    "the shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "the dtype": (torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float32)),
    "the kind": (torch.zeros(2), np.zeros(2, dtype=np.float32)),
    "the order": ([1, 2], [2, 1]),
    "a key": ({"a": 1}, {"b": 1}),
    "a text": ("ab", "ac"),
    "the length of a list": ([0] * 1000, [0] * 1001),
    "a field": (Sample(torch.ones(2), "a"), Sample(torch.ones(2), "b")),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_content_has_different_digests(one, other):
    assert digest_of(one) != digest_of(other)


@given(st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=600), st.data())
def test_any_change_of_a_short_tensor_shows(values, data):
    place = data.draw(st.integers(0, len(values) - 1))
    changed = list(values)
    changed[place] ^= 1
    assert digest_of(torch.tensor(values)) != digest_of(torch.tensor(changed))

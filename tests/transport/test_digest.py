import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    "a conjugated tensor": lambda: torch.tensor([1 + 2j]).conj(),
    "no element": lambda: torch.empty(0, 3),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a strided array": lambda: np.arange(10)[::3],
    "an array of objects": lambda: np.array(["a", None], dtype=object),
    "a number of numpy's": lambda: np.float32(1.5),
    "nested": lambda: {"a": [1, 2.5, None, True], "b": (b"x", "y", Pair(1, "z"))},
    "a dataclass": lambda: Sample(torch.ones(2), "text"),
    "an object of the user's": lambda: Opaque(3),
    "a lone surrogate": lambda: "\ud800",
}


@pytest.mark.parametrize("make", EQUAL.values(), ids=EQUAL)
def test_equal_content_has_equal_digests(make):
    assert digest_of(make()) == digest_of(make())


DIFFERENT = {
    "the last of many": (torch.zeros(100_000), torch.cat([torch.zeros(99_999), torch.ones(1)])),
    "the shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "the dtype": (torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float32)),
    "the kind": (torch.zeros(2), np.zeros(2, dtype=np.float32)),
    "a text": ("ab", "ac"),
    "the length of a list": ([0] * 1000, [0] * 1001),
    "a field": (Sample(torch.ones(2), "a"), Sample(torch.ones(2), "b")),
    "a long integer": (10**5000, 10**5000 + 1),
    "a number beside a long integer": ({"n": 10**5000, "x": 1}, {"n": 10**5000, "x": 2}),
    "a number of extended precision": (np.longdouble(1), np.longdouble(2)),
    "a field of an array": (
        np.ones(300, dtype="i1,f8"),
        np.concatenate([np.ones(299, dtype="i1,f8"), np.zeros(1, dtype="i1,f8")]),
    ),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_content_has_different_digests(one, other):
    assert digest_of(one) != digest_of(other)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.complex128])
@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor.t(),
        lambda tensor: tensor[:, ::3],
        lambda tensor: tensor.flip(0).reshape(2, 50, 60, 2).permute(3, 0, 2, 1),
        lambda tensor: tensor[:, None, :7].expand(100, 50, 7),
        lambda tensor: tensor[:, 0],
    ],
)
def test_the_strides_of_a_tensor_do_not_count(view, dtype):
    tensor = view(torch.arange(12_000).reshape(100, 120).to(dtype))
    assert digest_of(tensor) == digest_of(tensor.contiguous())


def test_an_expanded_tensor_is_not_copied():
    assert digest_of(torch.ones(1).expand(10**7, 10**7)) != digest_of(torch.zeros(1).expand(10**7, 10**7))


def padded(dtype, junk):
    """Return ones of a dtype, in memory that held other data before."""
    array = np.full(200 * dtype.itemsize, junk, dtype=np.uint8).view(dtype)
    for name in dtype.names or [...]:
        array[name] = 1
    return array


@pytest.mark.parametrize("dtype", ["g", "G", {"names": "ab", "formats": ["i1", "f8"]}, "i1,g,(2,)f4"])
def test_bytes_of_an_array_that_hold_no_value_do_not_count(dtype):
    dtype = np.dtype(dtype, align=True)
    assert digest_of(padded(dtype, 0)) == digest_of(padded(dtype, 255))


@given(st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=600), st.data())
def test_any_change_of_a_short_tensor_shows(values, data):
    place = data.draw(st.integers(0, len(values) - 1))
    changed = list(values)
    changed[place] ^= 1
    assert digest_of(torch.tensor(values)) != digest_of(torch.tensor(changed))


@dataclass
class Partial:
    number: int
    later: int = field(init=False)


class Unreadable(Sequence):
    """Holds its items where only its own methods find them."""

    def __getitem__(self, index):
        raise RuntimeError("not here")

    def __len__(self):
        return 3


def nested(number, layout):
    parts = [torch.full((2,), float(number)), torch.ones(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the strided layout is a prototype
        return torch.nested.nested_tensor(parts, layout=layout)


def holding_itself(number):
    items = [number]
    items.append(items)
    return items


def shared(number):
    """A list that a walk which does not know it again would enter 2**200 times."""
    items = [number]
    for _ in range(200):
        items = [items, items]
    return items


def deep(number):
    items = [number]
    for _ in range(5000):
        items = [items]
    return items


#: What each holds, and whether another number shows.
UNUSUAL = {
    "a strided nested tensor": (lambda number: nested(number, torch.strided), True),
    "a jagged nested tensor": (lambda number: nested(number, torch.jagged), True),
    "a dataclass with an unset field": (Partial, True),
    "a list that holds itself": (holding_itself, True),
    "a list that is there again and again": (shared, False),
    "a deep list": (deep, False),
    "a sequence that cannot be read": (lambda number: Unreadable(), False),
    "a tensor without content": (lambda number: torch.empty(number, device="meta"), True),
}


@pytest.mark.parametrize(("make", "is_seen"), UNUSUAL.values(), ids=UNUSUAL)
def test_whatever_can_be_delivered_has_a_digest(make, is_seen):
    assert digest_of(make(1)) == digest_of(make(1))
    assert (digest_of(make(1)) != digest_of(make(2))) == is_seen

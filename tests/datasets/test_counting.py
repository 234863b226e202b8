"""Counts of many items: in the order of the items, in any executor, or the first error."""

import dataclasses
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from fkat_data.datasets import count_parallel
from fkat_data.errors import ConfigurationError


@pytest.mark.parametrize(
    ("count_of", "expected"),
    [
        (lambda item: item * item, [9, 1, 0]),
        (lambda item: [item] * item, [3, 3, 3, 1]),
        (lambda item: np.arange(item, dtype=np.uint16), [0, 1, 2, 0]),
    ],
    ids=["numbers", "lists", "arrays"],
)
def test_counts_come_in_the_order_of_the_items(count_of, expected):
    with ThreadPoolExecutor(2) as executor:
        found = count_parallel(count_of, [3, 1, 0], executor=executor)
        assert count_parallel(count_of, [], executor=executor).tolist() == []
    assert found.dtype == np.int64
    assert found.tolist() == expected


def test_processes_count(processes):
    with ProcessPoolExecutor(2) as executor:
        assert count_parallel(len, ["four", "by", ""], executor=executor).tolist() == [4, 2, 0]


def test_the_first_error_names_its_item():
    with ThreadPoolExecutor(2) as executor, pytest.raises(ZeroDivisionError) as caught:
        count_parallel(lambda item: 1 // item, [1, 0, 0], executor=executor)
    assert caught.value.__notes__ == ["while counting item 1 (from 0), 0"]


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An error that takes no note."""

    number: int


def test_an_error_that_takes_no_note_is_raised_all_the_same():
    def fail(item):
        raise FrozenError(item)

    with ThreadPoolExecutor(1) as executor, pytest.raises(FrozenError):
        count_parallel(fail, [1], executor=executor)


@pytest.mark.parametrize("count", [-1, 0.5, [2, -1], "3", [[1], [2, 3]]])
def test_what_is_no_count_is_refused(count):
    with ThreadPoolExecutor(1) as executor, pytest.raises(ConfigurationError, match=r"count_of\(items\[0\]\)"):
        count_parallel(lambda item: count, [0], executor=executor)

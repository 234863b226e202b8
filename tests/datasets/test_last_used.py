import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fkat_data.files.kept import LastUsed


def test_the_object_that_was_not_used_for_longest_leaves_first():
    made = []
    kept = LastUsed(2)

    def get(number):
        return kept.get(number, lambda: made.append(number) or f"object {number}")

    assert [get(number) for number in (0, 1, 0, 2, 0, 1)] == [f"object {number}" for number in (0, 1, 0, 2, 0, 1)]
    assert made == [0, 1, 2, 1]
    copy = pickle.loads(pickle.dumps(kept))
    assert copy.get(0, lambda: "another") == "another"


def test_threads_make_an_object_once_and_others_side_by_side():
    kept, made, both = LastUsed(2), [], threading.Barrier(2, timeout=10)

    def make(number):
        made.append(number)
        both.wait()  # ends when two objects are being made
        return number

    with ThreadPoolExecutor(8) as threads:
        numbers = [0, 1] * 4
        assert list(threads.map(lambda number: kept.get(number, lambda: make(number)), numbers)) == numbers
    assert sorted(made) == [0, 1]


def test_an_object_that_could_not_be_made_is_made_again():
    kept = LastUsed(1)
    with pytest.raises(ZeroDivisionError):
        kept.get(0, lambda: 1 // 0)
    assert kept.get(0, lambda: 1) == 1

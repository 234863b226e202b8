import pickle

from fkat_data.datasets.last_used import LastUsed


def test_the_object_that_was_not_used_for_longest_leaves_first():
    made = []
    kept = LastUsed(2)

    def get(number):
        return kept.get(number, lambda: made.append(number) or f"object {number}")

    assert [get(number) for number in (0, 1, 0, 2, 0, 1)] == [f"object {number}" for number in (0, 1, 0, 2, 0, 1)]
    assert made == [0, 1, 2, 1]
    copy = pickle.loads(pickle.dumps(kept))
    assert copy.get(0, lambda: "another") == "another"

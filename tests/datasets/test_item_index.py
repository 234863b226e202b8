import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fkat_data.datasets.item_index import in_parts


@given(st.lists(st.integers(0, 3), min_size=1), st.data())
def test_each_item_is_in_the_part_that_has_it(sizes, data):
    places = [(part, number) for part, size in enumerate(sizes) for number in range(size)]
    items = data.draw(st.lists(st.integers(0, len(places) - 1)) if places else st.just([]))
    found = [None] * len(items)
    parts = []
    for part, positions, within in in_parts(np.array(items, np.int64), np.cumsum(sizes, dtype=np.int64)):
        parts.append(part)
        for position, number in zip(positions.tolist(), within.tolist(), strict=True):
            found[position] = (part, number)
    assert found == [places[item] for item in items]
    assert parts == sorted(set(parts))

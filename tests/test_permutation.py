import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_examples import generators

from fkat_data.permutation import drawn_seed, draws, keys_of, permutation, permuted

NUMBERS = st.integers(-(2**70), 2**70)


@given(count=st.integers(0, 300), place=st.lists(NUMBERS, max_size=3))
@settings(deadline=None)
def test_each_number_stands_once_and_the_order_is_a_function_of_the_place(count, place):
    order = permutation(count, b"test", *place)
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == permutation(count, b"test", *place).tolist()


@given(place=st.tuples(NUMBERS, NUMBERS))
@settings(deadline=None)
def test_places_and_purposes_have_orders_of_their_own(place):
    # 40 things have 10^47 orders.
    first, second = place
    orders = [
        permutation(40, purpose, *where).tolist()
        for purpose, where in ((b"a", place), (b"b", place), (b"a", (first, second + 1)), (b"a", (first + 1, second)))
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_draws_spread_over_all_bits_evenly():
    bits = np.unpackbits(draws(20_000, b"test", 0).view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 0.02  # five standard deviations
    # Neighbours, and neighbouring seeds, are not alike.
    for other in (np.roll(draws(20_000, b"test", 0), 1), draws(20_000, b"test", 1)):
        differing = np.unpackbits((draws(20_000, b"test", 0) ^ other).view(np.uint8)).mean()
        assert abs(differing - 0.5) < 0.01


def test_no_global_generator_is_read_or_moved():
    before = generators()
    permutation(100, b"test", 1)
    assert generators() == before


def test_a_seed_that_is_drawn_comes_from_torch_alone():
    torch.manual_seed(5)
    numpy_state = generators()[1]
    first, second = drawn_seed(), drawn_seed()
    assert first != second
    torch.manual_seed(5)
    assert drawn_seed() == first >= 0
    assert generators()[1] == numpy_state


@given(size=st.integers(1, 400), key=st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_a_keyed_permutation_takes_each_number_somewhere_else(size, key):
    numbers = np.arange(size)
    found = permuted(numbers, np.full(size, size), np.full(size, key, np.uint64))
    assert sorted(found.tolist()) == numbers.tolist()


def test_permutations_of_several_sizes_and_keys_are_computed_side_by_side():
    sizes = np.array([7, 2**40, 3, 1, 2**61])
    keys = keys_of(np.arange(5), b"test", 3)
    together = permuted(sizes - 1, sizes, keys)
    assert together.tolist() == [
        int(permuted(sizes[place : place + 1] - 1, sizes[place : place + 1], keys[place : place + 1])[0])
        for place in range(5)
    ]
    assert (together < sizes).all()


def test_a_keyed_permutation_is_as_even_as_chance():
    size, num_keys = 12, 24_000
    keys = keys_of(np.arange(num_keys), b"test", 0)
    table = np.zeros((size, size))
    for number in range(size):
        found = permuted(np.full(num_keys, number), np.full(num_keys, size), keys)
        table[number] = np.bincount(found, minlength=size)
    expected = num_keys / size
    # 121 degrees of freedom: chance exceeds 200 once in 100,000 keys; this key is fixed.
    assert ((table - expected) ** 2 / expected).sum() < 200


def test_keys_are_the_draws_at_their_places():
    places = np.array([5, 0, 3])
    assert keys_of(places, b"test", 1, 2).tolist() == draws(6, b"test", 1, 2)[places].tolist()

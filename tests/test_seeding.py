import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loader_examples import generators

from fkat_data import DataLoaderFactory, ShardedDataLoader, item_generators
from fkat_data.seeding import ShardRng, preserved_generators, seed_global_generators

GOLDEN = Path(__file__).parent / "golden" / "random_streams.json"


def draws():
    return [random.random(), float(np.random.random_sample()), int(torch.randint(2**40, ()))]


def draws_after(seed, *arguments):
    seed(*arguments)
    return draws()


pytestmark = pytest.mark.usefixtures("generators_as_they_were")


def test_the_streams_are_the_golden_ones():
    # They decide on every augmentation of every run: a change makes saved runs resume with other data. Change the
    # file only with a new state version, and say so in the changelog.
    golden = json.loads(GOLDEN.read_text())["streams"]
    assert len(golden) == 6
    for row in golden:
        streams = ShardRng.of(*row["of"])
        assert [streams.seed_of(index) for index in range(3)] == row["seeds"]
        found = {"opening": draws_after(streams.seed_opening)}
        for chunk in (0, 3):
            found[f"batch order {chunk}"] = draws_after(streams.seed_batch_order, chunk)
        for index in (0, 5):
            found[f"microbatch {index}"] = draws_after(streams.seed_microbatch, index)
        assert found == row["draws"]


places = st.tuples(
    st.integers(-(2**64), 2**64),
    st.integers(0, 100),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.integers(0, 2**62),
)


@given(first=places, second=places)
def test_every_place_has_a_stream_of_its_own(first, second):
    seeds = [ShardRng.of(*place[:4]).seed_of(place[4]) for place in (first, second)]
    assert (seeds[0] == seeds[1]) == (first == second)
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
def test_seeding_python_the_cheap_way_is_random_seed(seed):
    random.seed(7)
    random.gauss()  # keeps a second value for later: part of its state
    seed_global_generators(seed)
    cheap = random.getstate()
    random.seed(seed)
    assert cheap == random.getstate()


def test_seeding_torch_the_cheap_way_is_torch_manual_seed():
    seed_global_generators(12345)
    cheap = torch.rand(3)
    torch.manual_seed(12345)
    assert torch.equal(cheap, torch.rand(3))


class InitialSeeds:
    """What libraries seed their own generators with."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.initial_seed(), item_generators().torch.initial_seed()


def test_the_seeds_that_an_item_finds_are_collated():
    with ShardedDataLoader(
        0, ["a"], DataLoaderFactory(lambda shard: InitialSeeds(), batch_size=1), multiprocessing=False
    ) as loader:
        found = [[int(seeds) for seeds in batch] for batch in loader]
    assert len({seed for seeds in found for seed in seeds}) == 128
    assert min(map(min, found)) >= 0


def test_generators_come_back_as_they_were_even_after_an_error():
    before = generators()

    def draw_and_fail():
        seed_global_generators(1)
        draws()
        np.random.standard_normal()  # keeps a second value for later: part of its state
        torch.set_num_threads(1)
        raise ValueError

    with pytest.raises(ValueError), preserved_generators():
        draw_and_fail()
    assert generators() == before


@given(num_before=st.integers(0, 5), num_within=st.integers(0, 5), is_restored_twice=st.booleans())
def test_normals_that_numpy_draws_in_pairs_go_on_as_if_nothing_had_come_between(
    num_before, num_within, is_restored_twice
):
    expected = np.random.RandomState(3).standard_normal(12).tolist()
    np.random.seed(3)
    found = [np.random.standard_normal() for _ in range(num_before)]
    before, kept = str(np.random.get_state()), preserved_generators()
    with kept:
        seed_global_generators(num_before)
        within = [np.random.standard_normal() for _ in range(num_within)]
    if is_restored_twice:
        kept.restore()
    assert str(np.random.get_state()) == before
    assert found + [np.random.standard_normal() for _ in range(12 - num_before)] == expected
    assert within == np.random.RandomState(num_before).standard_normal(num_within).tolist()


def test_a_bit_generator_that_was_replaced_within_comes_back():
    before = np.random.get_bit_generator()
    with preserved_generators():
        np.random.set_bit_generator(np.random.MT19937(5))
        seed_global_generators(1)
    assert np.random.get_bit_generator() is before


def test_production_in_process_runs_on_one_thread_as_in_a_worker():
    with preserved_generators():
        assert torch.get_num_threads() == 1

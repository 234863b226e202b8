"""What every shuffle must do."""

import itertools
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.streaming.order import Shuffle
from fkat_data.testing.contracts.expectation import expect, expect_same

_Integers = npt.NDArray[np.int64]
_SIZES = ([1], [5], [3, 0, 4], [10] * 7, [1, 50, 2, 0, 30], [64] * 20)
_NUM_NODES = (1, 2, 5)
_BLOCK_SIZES = (4, 32, 1000)


class ShuffleContract:
    """Tests of a shuffle that ``register_shuffle`` knows. Override ``make``."""

    def make(self, unit_sizes: _Integers, num_canonical_nodes: int, seed: int, epoch: int, block_size: int) -> Shuffle:
        """Return the order of an epoch; see ``fkat_data.extensions.MakeShuffle``."""
        raise NotImplementedError

    def test_each_sample_has_one_place(self) -> None:
        """An order is a permutation for any units, canonical nodes and blocks."""
        for sizes, nodes, block_size in itertools.product(_SIZES, _NUM_NODES, _BLOCK_SIZES):
            if sum(sizes) < nodes:
                continue
            for epoch in (0, 3):
                found = self._order(sizes, nodes=nodes, epoch=epoch, block_size=block_size)
                what = f"the order of units {sizes} on {nodes} nodes in blocks of {block_size}, epoch {epoch}"
                expect_same(np.sort(found).tolist(), list(range(sum(sizes))), f"{what}, sorted,")

    def test_any_places_can_be_asked_for(self) -> None:
        """What stands at a place does not depend on the other places that are asked for, or on their order."""
        for sizes, nodes in itertools.product(_SIZES, _NUM_NODES):
            size = sum(sizes)
            if size < nodes:
                continue
            whole = self._order(sizes, nodes=nodes)
            made = self._made(sizes, nodes=nodes)
            generator = np.random.default_rng(size)
            for count in (0, 1, 3, size, 2 * size):
                places = generator.integers(0, size, count)
                kept = places.copy()
                found = np.asarray(made.samples_at(places))
                expect(found.shape == places.shape, f"samples_at returns shape {found.shape} for {places.shape}")
                expect(found.dtype == np.int64, f"samples_at returns {found.dtype}, not int64")
                expect_same(found.tolist(), whole[kept].tolist(), f"the samples at places {kept.tolist()}")
                expect_same(places, kept, "the array of places, which samples_at must not change,")

    def test_the_order_depends_on_its_arguments_alone(self) -> None:
        """Every process and every run makes the same order, and no global generator is drawn from."""
        first = self._order([64] * 20)
        before = _global_generators()
        random.seed(5)
        torch.manual_seed(5)
        own = _global_generators()
        expect_same(self._order([64] * 20), first, "the order that is made again")
        expect_same(_global_generators(), own, "the state of the global generators after an order was made")
        _set_global_generators(before)

    def test_seed_and_epoch_change_the_order(self) -> None:
        """Epochs differ, and so do seeds."""
        orders = {
            f"seed {seed}, epoch {epoch}": self._order([64] * 20, seed=seed, epoch=epoch).tolist()
            for seed, epoch in ((7, 0), (7, 1), (7, 2), (1000, 0))
        }
        for (one, first), (other, second) in itertools.combinations(orders.items(), 2):
            expect(first != second, f"the order is the same for {one} and for {other}")

    def test_the_unit_sizes_stay_as_they_are(self) -> None:
        """The caller uses its array again."""
        sizes = np.array([10, 20, 30], np.int64)
        made = self.make(sizes, 2, 7, 0, 16)
        made.samples_at(np.arange(60, dtype=np.int64))
        expect_same(sizes, np.array([10, 20, 30], np.int64), "unit_sizes")

    def _made(
        self, sizes: list[int], *, nodes: int = 1, seed: int = 7, epoch: int = 1, block_size: int = 32
    ) -> Shuffle:
        return self.make(np.array(sizes, np.int64), nodes, seed, epoch, block_size)

    def _order(self, sizes: list[int], **arguments: Any) -> _Integers:
        return np.asarray(self._made(sizes, **arguments).samples_at(np.arange(sum(sizes), dtype=np.int64)))


def _global_generators() -> tuple[Any, ...]:
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - the generator that a shuffle must not touch
    return random.getstate(), legacy, torch.get_rng_state()


def _set_global_generators(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002 - as above
    torch.set_rng_state(states[2])

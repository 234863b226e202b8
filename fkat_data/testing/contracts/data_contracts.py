"""The contracts of file formats, of shuffles and of objects with a saved state."""

import copy
import io
import itertools
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.streaming.order import Shuffle
from fkat_data.testing.contracts.expectation import expect, expect_error, expect_same


class FormatContract:
    """Tests of a format: of a map-style dataset that reads files, or of an encoding within shards.

    Override ``write`` and ``open``; and ``samples`` for what the format is about.

    Attributes:
        notices_cuts: Whether files that end early are noticed at any position, not only within a sample.
    """

    notices_cuts: ClassVar[bool] = True

    def write(self, samples: Sequence[Any], folder: Path) -> None:
        """Write samples into files of an empty folder."""
        raise NotImplementedError

    def open(self, folder: Path) -> Any:
        """Return the dataset of a folder's files: it has a length, and a sample for each index."""
        raise NotImplementedError

    def samples(self) -> Sequence[Any]:
        """Return samples as the dataset is to give them back."""
        return [{"id": number, "text": f"Grüße {number} " * (number % 5)} for number in range(40)]

    def test_samples_come_back_as_they_were_written(self, tmp_path: Path) -> None:
        """Each sample is equal in types and bits."""
        dataset, samples = self._written(tmp_path)
        expect(len(dataset) == len(samples), f"len() is {len(dataset)}, and {len(samples)} samples were written")
        for index, sample in enumerate(samples):
            expect_same(dataset[index], sample, f"sample {index}")

    def test_any_order_gives_the_same_samples(self, tmp_path: Path) -> None:
        """A sample depends on its index alone, not on what was read before; also where many are read together."""
        dataset, samples = self._written(tmp_path)
        order = random.Random(0).choices(range(len(samples)), k=2 * len(samples))  # noqa: S311 - data, not secrets
        for index in order:
            expect_same(dataset[index], samples[index], f"sample {index}, read in random order")
        read_together: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)
        if read_together is not None:
            expect_same(list(read_together(order)), [samples[index] for index in order], "__getitems__")

    def test_an_index_out_of_range_is_an_index_error(self, tmp_path: Path) -> None:
        """Loops over a dataset end with it."""
        dataset, samples = self._written(tmp_path)
        for index in (len(samples), len(samples) + 7, -len(samples) - 1):
            expect_error(IndexError, lambda index=index: dataset[index], f"sample {index} of {len(samples)}")

    def test_a_pickled_dataset_reads_the_same(self, tmp_path: Path) -> None:
        """A dataset with open files goes to a worker process and reads there."""
        dataset, samples = self._written(tmp_path)
        dataset[0]
        copied = pickle.loads(pickle.dumps(dataset))
        expect_same([copied[index] for index in range(len(copied))], list(samples), "the copy's samples")

    def test_two_writes_give_the_same_files(self, tmp_path: Path) -> None:
        """A file's content depends on the samples alone, so that hashes can be compared."""
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            self.write(self.samples(), tmp_path / name)
        one, two = (_contents(tmp_path / name) for name in ("one", "two"))
        expect(sorted(one) == sorted(two), f"the files have other names: {sorted(one)}, {sorted(two)}")
        for name in one:
            expect(one[name] == two[name], f"{name} has another content when the same samples are written again")

    def test_a_file_that_was_cut_loses_no_sample_in_silence(self, tmp_path: Path) -> None:
        """A file that ends early is an error, unless every sample is read all the same."""
        self.write(self.samples(), tmp_path)
        for name, content in _contents(tmp_path).items():
            cuts = [len(content) // 2, len(content) - 1, 0] if self.notices_cuts else [len(content) // 2]
            for size in cuts:
                (tmp_path / name).write_bytes(content[:size])
                self._check_damaged(tmp_path, f"{name} with {size} of {len(content)} bytes")
            (tmp_path / name).write_bytes(content)

    def _check_damaged(self, folder: Path, what: str) -> None:
        try:
            dataset = self.open(folder)
            found = [dataset[index] for index in range(len(dataset))]
        except Exception:  # noqa: BLE001 - a format of a third party has errors of its own
            return
        expect_same(found, list(self.samples()), f"what is read without an error from {what}")

    def _written(self, folder: Path) -> tuple[Any, Sequence[Any]]:
        samples = self.samples()
        self.write(samples, folder)
        return self.open(folder), samples


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


_Integers = npt.NDArray[np.int64]
_SIZES = ([1], [5], [3, 0, 4], [10] * 7, [1, 50, 2, 0, 30], [64] * 20)
_NUM_NODES = (1, 2, 5)
_BLOCK_SIZES = (4, 32, 1000)


class ShuffleContract:
    """Tests of a shuffle that ``register_shuffle`` knows. Override ``make``."""

    def make(self, unit_sizes: _Integers, num_canonical_nodes: int, seed: int, epoch: int, block_size: int) -> Shuffle:
        """Return the order of an epoch; see ``fkat_data.extensions.MakeShuffle``."""
        raise NotImplementedError

    def test_each_sample_has_one_position(self) -> None:
        """An order is a permutation for any units, canonical nodes and blocks."""
        for sizes, nodes, block_size in itertools.product(_SIZES, _NUM_NODES, _BLOCK_SIZES):
            if sum(sizes) < nodes:
                continue
            for epoch in (0, 3):
                found = self._order(sizes, nodes=nodes, epoch=epoch, block_size=block_size)
                what = f"the order of units {sizes} on {nodes} nodes in blocks of {block_size}, epoch {epoch}"
                expect_same(np.sort(found).tolist(), list(range(sum(sizes))), f"{what}, sorted,")

    def test_any_positions_can_be_asked_for(self) -> None:
        """What stands at a position does not depend on the other positions that are asked for, or on their order."""
        for sizes, nodes in itertools.product(_SIZES, _NUM_NODES):
            size = sum(sizes)
            if size < nodes:
                continue
            whole = self._order(sizes, nodes=nodes)
            made = self._made(sizes, nodes=nodes)
            generator = np.random.default_rng(size)
            for count in (0, 1, 3, size, 2 * size):
                positions = generator.integers(0, size, count)
                kept = positions.copy()
                found = np.asarray(made.samples_at(positions))
                expect(found.shape == positions.shape, f"samples_at returns shape {found.shape} for {positions.shape}")
                expect(found.dtype == np.int64, f"samples_at returns {found.dtype}, not int64")
                expect_same(found.tolist(), whole[kept].tolist(), f"the samples at positions {kept.tolist()}")
                expect_same(positions, kept, "the array of positions, which samples_at must not change,")

    def test_the_order_depends_on_its_arguments_alone(self) -> None:
        """Every process and every run makes the same order, and no global generator is drawn from."""
        before = _global_generators()
        first = self._order([64] * 20)
        expect_same(_global_generators(), before, "the state of the global generators after an order was made")
        random.random()  # noqa: S311 - moves a generator that the order must not depend on
        torch.rand(1)
        expect_same(self._order([64] * 20), first, "the order that is made again")

    def test_seed_and_epoch_change_the_order(self) -> None:
        """Epochs differ, and so do seeds."""
        orders = {
            f"seed {seed}, epoch {epoch}": self._order([64] * 20, seed=seed, epoch=epoch).tolist()
            for seed, epoch in ((7, 0), (7, 1), (7, 2), (1000, 0))
        }
        for (one, first), (other, second) in itertools.combinations(orders.items(), 2):
            expect(first != second, f"the order is the same for {one} and for {other}")

    def _made(
        self, sizes: list[int], *, nodes: int = 1, seed: int = 7, epoch: int = 1, block_size: int = 32
    ) -> Shuffle:
        return self.make(np.array(sizes, np.int64), nodes, seed, epoch, block_size)

    def _order(self, sizes: list[int], **arguments: Any) -> _Integers:
        return np.asarray(self._made(sizes, **arguments).samples_at(np.arange(sum(sizes), dtype=np.int64)))


def _global_generators() -> tuple[Any, ...]:
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - the generator that a shuffle must not touch
    return random.getstate(), legacy, torch.get_rng_state()


_NUM_EMPTY_LOOPS = 3


class StateContract:
    """Tests of ``state_dict`` and ``load_state_dict``: of a sampler, a dataset, a loader, or a mixture of them.

    Override ``make``; and ``course`` if a ``for`` loop is not how its items are taken.

    Attributes:
        num_items: How many items are compared. Let it be more than two epochs.
        refuses_others: Whether ``load_state_dict({})`` raises, as all states of this library do.
    """

    num_items: ClassVar[int] = 20
    refuses_others: ClassVar[bool] = True

    def make(self) -> Any:
        """Return a new object, the same in each call, at its start."""
        raise NotImplementedError

    def course(self, stateful: Any) -> Iterator[Any]:
        """Yield the items from the object's position on: loop after loop, without end."""
        num_empty = 0
        while num_empty < _NUM_EMPTY_LOOPS:
            num_empty += 1
            for item in stateful:
                num_empty = 0
                yield item

    def finish(self, stateful: Any) -> None:
        """Release what an object holds; its ``close``, if it has one."""
        if hasattr(stateful, "close"):
            stateful.close()

    def test_a_resume_at_each_item_changes_nothing(self) -> None:
        """A new object with the state after item *i* goes on with item *i* + 1, whatever it was.

        ``torch.save`` keeps the state, and ``torch.load(weights_only=True)`` reads it.
        """
        whole = self._whole()
        expect(len(whole) == self.num_items, f"the course ended after {len(whole)} items")
        stopped = self.make()
        course = self.course(stopped)
        for count in range(self.num_items):
            resumed = self.make()
            resumed.load_state_dict(_saved(stopped.state_dict()))
            rest = list(islice(self.course(resumed), self.num_items - count))
            self.finish(resumed)
            expect_same(rest, whole[count:], f"what follows a resume after {count} items")
            next(course)
        self.finish(stopped)

    def test_saving_moves_nothing(self) -> None:
        """A state can be taken at any time and as often as wanted, and does not change afterwards."""
        whole, saving = self._whole(), self.make()
        states: list[tuple[Any, Any]] = []
        found: list[Any] = []
        for item in islice(self.course(saving), self.num_items):
            found.append(copy.deepcopy(item))
            state = saving.state_dict()
            states.append((state, copy.deepcopy(state)))
            expect_same(saving.state_dict(), state, f"the state that is taken again after {len(found)} items")
        self.finish(saving)
        expect_same(found, whole, "the items between which states were taken")
        for index, (state, kept) in enumerate(states):
            expect_same(state, kept, f"the state after {index + 1} items, at the end of the loop,")

    def test_an_object_under_way_goes_where_the_state_says(self) -> None:
        """A state of an earlier position takes an object back, and one of a later position takes it ahead."""
        whole, used = self._whole(), self.make()
        states = [_saved(used.state_dict())]
        states += [_saved(used.state_dict()) for _ in islice(self.course(used), self.num_items - 1)]
        for position in (0, self.num_items // 2, self.num_items - 1, 1):
            used.load_state_dict(states[position])
            rest = list(islice(self.course(used), self.num_items - position))
            expect_same(rest, whole[position:], f"what follows position {position}, in an object that was elsewhere")
        self.finish(used)

    def test_what_is_no_state_is_refused(self) -> None:
        """It is an error, and the object stays where it was."""
        if not self.refuses_others:
            return
        stateful, whole = self.make(), self._whole()
        before = stateful.state_dict()
        expect_error(Exception, lambda: stateful.load_state_dict({}), "load_state_dict({})")
        expect_same(stateful.state_dict(), before, "the state after load_state_dict({}) was refused")
        expect_same(next(self.course(stateful)), whole[0], "the item after load_state_dict({}) was refused")
        self.finish(stateful)

    def _whole(self) -> list[Any]:
        stateful = self.make()
        # A loader's microbatches may share memory with those that come later.
        items = [copy.deepcopy(item) for item in islice(self.course(stateful), self.num_items)]
        self.finish(stateful)
        return items


def _saved(state: Any) -> Any:
    """Return what a checkpoint gives back."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)

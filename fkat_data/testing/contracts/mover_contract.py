"""What every mover must do."""

import copy
from typing import Any, NamedTuple

import torch

from fkat_data.device.host import Mover, map_tensors
from fkat_data.testing.contracts.expectation import expect, expect_same


class _Pair(NamedTuple):
    left: Any
    right: Any


class MoverContract:
    """Tests of a mover that ``register_mover`` knows. Override ``make``; and ``settle`` where torch cannot wait for it.

    Attributes:
        device: Where tensors are after the move.
    """

    device: torch.device = torch.device("cpu")

    def make(self) -> Mover:
        """Return a new mover to ``device``."""
        raise NotImplementedError

    def settle(self, mover: Mover) -> None:
        """Wait until every copy that a mover has handed over is complete."""
        del mover
        module: Any = getattr(torch, self.device.type, None)
        if self.device.type != "cpu" and hasattr(module, "synchronize"):
            module.synchronize()

    def test_values_dtypes_and_shapes_arrive(self) -> None:
        """Tensors of any dtype, size and stride have their bits on the device."""
        tensors = {
            "zero-dimensional": torch.tensor(3),
            "empty": torch.empty(0, 5),
            "bool": torch.tensor([True, False]),
            "bfloat16": torch.arange(7).to(torch.bfloat16),
            "int64": torch.arange(12).reshape(3, 4),
            "transposed": torch.arange(12.0).reshape(3, 4).t(),
            "with gaps": torch.arange(20)[::3],
            "large": torch.arange(300_000, dtype=torch.int32),
        }
        self._check(tensors)

    def test_containers_stay_and_so_does_what_is_no_tensor(self) -> None:
        """Tensors are found in dicts, lists, tuples and named tuples; text and numbers pass."""
        self._check(
            {
                "list": [torch.ones(2), "text", None, 3.5],
                "pair": _Pair(torch.zeros(3), {"deep": (torch.arange(2), True)}),
            }
        )
        self._check([])
        self._check("no tensor at all")

    def test_the_source_is_not_changed_and_may_be_used_again_after_wait(self) -> None:
        """``wait`` returns when nothing reads the source any more: writing to it then changes no copy."""
        mover = self.make()
        source = {"x": torch.arange(100_000)}
        kept = copy.deepcopy(source)
        moved = mover.finish(mover.begin(source))
        mover.wait()
        expect_same(source, kept, "the source after the move")
        if mover.copies:
            source["x"].fill_(-1)
        self._expect_arrived(mover, moved, kept)

    def test_several_microbatches_are_under_way_at_once(self) -> None:
        """The loader begins moves ahead, and finishes them in order."""
        mover = self.make()
        sources = [{"x": torch.full((10_000,), number)} for number in range(12)]
        moving = [mover.begin(source) for source in sources]
        for source, one in zip(sources, moving, strict=True):
            self._expect_arrived(mover, mover.finish(one), source)
        mover.wait()

    def test_a_mover_says_whether_it_copies_and_for_how_long(self) -> None:
        """``copies`` decides whether the loader asks it at all; ``copied_s`` does not fall."""
        mover = self.make()
        mover.wait()
        before = mover.copied_s
        expect(before >= 0, f"copied_s is {before} before the first copy")
        source = {"x": torch.arange(1000)}
        moved = mover.finish(mover.begin(source))
        if not mover.copies:
            expect(moved is source, "copies is False, and finish(begin(x)) is another object than x")
        mover.wait()
        expect(mover.copied_s >= before, f"copied_s fell from {before} to {mover.copied_s}")

    def test_a_mover_that_is_dropped_completes_its_copies(self) -> None:
        """A loader that ends early leaves no copy half done."""
        mover = self.make()
        source = {"x": torch.arange(50_000)}
        moved = mover.finish(mover.begin(source))
        mover.wait()
        self.settle(mover)
        del mover
        expect_same(map_tensors(torch.Tensor.cpu, moved), source, "the microbatch of a mover that was dropped")

    def _check(self, microbatch: Any) -> None:
        mover = self.make()
        kept = copy.deepcopy(microbatch)
        moved = mover.finish(mover.begin(microbatch))
        self._expect_arrived(mover, moved, kept)
        mover.wait()

    def _expect_arrived(self, mover: Mover, moved: Any, expected: Any) -> None:
        self.settle(mover)
        elsewhere: list[torch.device] = []

        def landed(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != self.device.type:
                elsewhere.append(tensor.device)
            return tensor.cpu()

        on_host = map_tensors(landed, moved)
        expect(not elsewhere, f"a tensor is on {elsewhere[:1]}, not on {self.device}")
        expect_same(on_host, expected, "the moved microbatch")

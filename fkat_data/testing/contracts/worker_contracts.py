"""The contract of workers, in processes, in threads, on other machines."""

import gc
import inspect
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, ClassVar

import torch
from torch.utils import data as torch_data

from fkat_data.errors import WorkerDiedError, WorkerStalledError
from fkat_data.loaders.data_loader import DataLoader
from fkat_data.loaders.sharded import ShardedDataLoader
from fkat_data.seeding import item_generators
from fkat_data.testing.contracts.expectation import expect, expect_error, expect_same

_SIZES = {"a": 5, "empty": 0, "b": 1, "c": 9}
_BATCH_SIZE = 2
_SETTLED_WITHIN_S = 10.0
_DEADLY = 17
_MOST_INTERRUPTIONS = 600


@dataclass
class _Samples(torch_data.Dataset[Any]):
    """Samples that say where they come from, with a draw; one raises, or waits, or ends its process if a file is there."""

    name: str
    size: int
    bad: int = -1
    slow: int = -1
    slow_s: float = 0.0
    deadly: Path | None = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.bad:
            raise ValueError(f"sample {index} is bad")
        if index == self.slow:
            time.sleep(self.slow_s)
        if index == _DEADLY and self.deadly is not None and self.deadly.exists():
            self.deadly.unlink()
            os.write(2, b"no more of it\n")
            os._exit(3)
        return {"name": self.name, "number": torch.tensor(index), "drawn": item_generators().python.random()}


def _by_index(shard: str) -> Any:
    return torch_data.DataLoader(_Samples(shard, _SIZES[shard]), _BATCH_SIZE, shuffle=_SIZES[shard] > 0)


def _in_a_row(shard: str) -> Iterator[Any]:
    for number in range(_SIZES[shard]):
        yield {"name": shard, "number": number, "drawn": item_generators().numpy.random()}


class _Asked:
    """Makes any microbatch, by its number."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self.num_microbatches = _SIZES[shard]

    def microbatch(self, index: int) -> Any:
        return {"name": self._shard, "number": index, "drawn": item_generators().torch.initial_seed()}


class _Views:
    """Its microbatches are views of memory that it keeps."""

    num_microbatches = 4

    def __init__(self, shard: str) -> None:
        self._kept = torch.zeros(self.num_microbatches, 3)

    def microbatch(self, index: int) -> Any:
        return self._kept[index // 2]


class WorkerContract:
    """Tests of a kind of workers, by ``ShardedDataLoader`` and ``DataLoader``.

    Override ``options``, and ``left`` where something may be left behind.

    Attributes:
        stall_timeout_s: How long a worker may say nothing; longer than one takes to start.
        can_die: Whether a worker may end without the program.
    """

    stall_timeout_s: ClassVar[float] = 0.5
    can_die: ClassVar[bool] = True

    def options(self) -> Mapping[str, Any]:
        """Return the arguments of a loader that ask for the workers, but for how many."""
        raise NotImplementedError

    def left(self) -> object:
        """Return what is there of workers, such as processes or threads; falsy if there is nothing."""
        return None

    def test_microbatches_are_those_of_the_callers_thread(self) -> None:
        """Any number of workers makes the same bits in the same order, epoch after epoch."""
        for factory in (_by_index, _in_a_row, _Asked):
            with self._sharded(factory, options={"multiprocessing": False}) as loader:
                expected = [*loader, *loader]
            for num_workers, num_shards in ((1, 0), (2, 1), (3, 2)):
                with self._sharded(
                    factory, num_workers_per_shard=num_workers, num_shard_prefetches=num_shards
                ) as loader:
                    what = f"two epochs with {num_workers} workers a shard, of {factory.__name__}"
                    expect_same([*loader, *loader], expected, what)

    def test_a_state_goes_on_at_any_microbatch_with_any_number_of_workers(self) -> None:
        """What was made ahead is not lost, and nothing comes twice."""
        with self._loader() as loader:
            whole = list(loader)
            for num_delivered in range(len(whole)):
                with self._loader(num_workers=1 + num_delivered // 2 % 2) as left:
                    first = list(islice(left, num_delivered))
                    state = left.state_dict()
                with self._loader(num_workers=1 + num_delivered % 2) as resumed:
                    resumed.load_state_dict(state)
                    expect_same(first + list(resumed), whole, f"an epoch with a resume behind {num_delivered}")

    def test_an_error_comes_in_its_turn_and_says_where(self) -> None:
        """The microbatches before it are delivered; it is raised again, and the next epoch comes as far."""
        with self._loader(faults={"bad": 13}) as loader:
            for _ in range(2):
                found: list[Any] = []
                try:
                    found.extend(loader)
                except ValueError as error:
                    notes = " ".join(getattr(error, "__notes__", ()))
                    expect("microbatch 3" in notes, f"no note says which microbatch it concerns: {notes}")
                expect(len(found) == 3, f"{len(found)} microbatches came before the error at microbatch 3")
                loader.end_epoch()

    def test_microbatches_belong_to_the_caller(self) -> None:
        """What the caller writes into one shows in no other, and not in the dataset."""
        with self._sharded(_Views, ["a"]) as loader:
            for microbatch in loader:
                expect(not bool(microbatch.any()), "a microbatch shows what was written into another")
                microbatch.add_(1)

    def test_a_loop_that_is_left_is_followed_by_the_next_epoch(self) -> None:
        """Nothing of the epoch before comes in it."""
        with self._loader() as loader:
            epochs = [list(loader) for _ in range(3)]
        with self._loader() as loader:
            first, second = list(islice(loader, 2)), list(islice(loader, 1))
            expect_same([first, second, list(loader)], [epochs[0][:2], epochs[1][:1], epochs[2]], "epochs left early")

    def test_an_interrupted_wait_loses_nothing(self) -> None:
        """What a signal's handler raises reaches the caller; the next call goes on."""
        expected = list(self._loader(options={}))
        own_frame = inspect.currentframe()

        def interrupt(_: int, frame: FrameType | None) -> None:
            # Between the calls, it would reach a line that expects no error, or take what a call has just returned.
            if frame is not own_frame:
                raise InterruptedError("interrupted")

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with self._loader(faults={"slow": 17, "slow_s": 0.5}) as loader:
                found: list[Any] = []
                iterator, num_interrupted = iter(loader), 0
                # The timer is also the one that would end a test that hangs.
                signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
                while len(found) < len(expected) and num_interrupted < _MOST_INTERRUPTIONS:
                    try:
                        found.append(next(iterator))
                    except InterruptedError:
                        num_interrupted += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        expect(num_interrupted > 0, "no call was interrupted")
        expect_same(found, expected, "an epoch with interrupted calls")

    def test_a_worker_that_stalls_is_named(self) -> None:
        """An error names the microbatch, behind all that came before it; also where a second try stalls as well."""
        expected = list(self._loader(options={}))
        faults = {"slow": 17, "slow_s": 4 * self.stall_timeout_s}
        slow: dict[str, Any] = {"timeout": self.stall_timeout_s, "faults": faults}
        with self._loader(**slow) as loader:
            found: list[Any] = []
            expect_error(WorkerStalledError, lambda: found.extend(loader), "a worker that stalls")
        expect_same(found, expected[:4], "what came before the stall")
        with self._loader(**slow, max_worker_restarts=9) as loader:
            expect_error(WorkerStalledError, lambda: list(loader), "a microbatch that stalls two workers")

    def test_a_worker_that_dies_is_named_with_its_last_words_or_replaced(self) -> None:
        """What it had made is delivered; with a restart, the bits are those of an epoch without a death."""
        if not self.can_die:
            return
        expected = list(self._loader(options={}))
        with TemporaryDirectory() as folder:
            deadly = Path(folder, "deadly")
            deadly.touch()
            # A time-out: only a process of its own may end.
            with self._loader(faults={"deadly": deadly}, timeout=600) as loader:
                found: list[Any] = []
                error = expect_error(WorkerDiedError, lambda: found.extend(loader), "a worker that dies")
            expect("no more of it" in str(error), f"the error lacks what the worker wrote last: {error}")
            expect_same(found, expected[: len(found)], "what came before the death")
            deadly.touch()
            with self._loader(faults={"deadly": deadly}, max_worker_restarts=1) as loader:
                expect_same(list(loader), expected, "an epoch with a worker that was replaced")
                num_restarts = loader.statistics().worker_restarts
            expect(num_restarts == 1, f"{num_restarts} restarts were counted, and one worker was replaced")

    def test_nothing_is_left_of_a_loader(self) -> None:
        """Neither of a closed one, nor of one that was dropped within an epoch."""
        self._settle("before the test")
        loader = self._loader()
        next(iter(loader))
        loader.close()
        self._settle("of a closed loader")
        loader = self._loader()
        next(iter(loader))
        del loader
        self._settle("of a dropped loader")

    def _settle(self, what: str) -> None:
        deadline_s = time.monotonic() + _SETTLED_WITHIN_S
        while (left := self.left()) and time.monotonic() < deadline_s:
            gc.collect()
            time.sleep(0.01)
        expect(not left, f"left {what}: {left}")

    def _sharded(
        self,
        factory: Callable[[str], Any],
        shards: list[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> ShardedDataLoader[Any]:
        found = self.options() if options is None else options
        return ShardedDataLoader(3, shards or list(_SIZES), factory, **{**others, **found})

    def _loader(
        self,
        *,
        num_workers: int = 2,
        options: Mapping[str, Any] | None = None,
        faults: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> DataLoader[Any]:
        dataset = _Samples("only", 30, **(faults or {}))
        if options is not None:
            num_workers = 0
        found = self.options() if options is None else options
        return DataLoader(dataset, 4, seed=5, num_workers=num_workers, **{**others, **found})

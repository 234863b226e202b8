"""Make the items of a microbatch: one after the other, or in threads, which is for items that wait.

Threads share python's, numpy's and torch's global random generators, so an item that draws from them would depend on
what the others do at that instant. The states are compared, and a dataset that moved one is refused. What
``fkat_data.item_generators`` gives belongs to the item alone.
"""

import contextvars
import functools
import os
import threading
import time
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch

from fkat_data.dropped import after_end
from fkat_data.errors import ConfigurationError
from fkat_data.observe.stages import helping, shift_to_store
from fkat_data.seeding import enter_place, generator_states, leave_place, microbatch_seed


def items_in_turn(dataset: Any, indices: Iterable[Any]) -> list[Any]:
    """Return the items at the indices, made one after the other, each at its place.

    Raises:
        Exception: Whatever the dataset raises.
    """
    seed = microbatch_seed()
    items: list[Any] = []
    for position, index in enumerate(indices):
        enter_place(seed, position)
        items.append(dataset[index])
    enter_place(seed)
    return items


class ItemThreads:
    """Makes the items of one microbatch at a time in threads, which start with the first and stay.

    Args:
        num_threads: How many items are made at once.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._queue: SimpleQueue[_Share | None] | None = None
        self._pid = os.getpid()

    def items(self, dataset: Any, indices: Iterable[Any]) -> list[Any]:
        """Return the items at the indices, as ``items_in_turn`` does.

        Raises:
            BaseException: What the dataset raises for the first of the items that it fails for. No item is in work
                any more then.
            ConfigurationError: The dataset draws from a global random generator.
        """
        run = _Making(dataset, list(indices))
        before = generator_states()
        began_s = time.perf_counter()
        num_shares = min(self._num_threads, len(run.items))
        queue = self._started()
        for _ in range(num_shares):
            queue.put((run, contextvars.copy_context()))
        try:
            for _ in range(num_shares):
                run.ended.get()
        except BaseException:
            # Ctrl-C does not wait for slow items. Their threads end after them, and others make the next microbatch.
            run.stop()
            self.close()
            raise
        run.raise_first()
        _refuse_draws(dataset, before, self._num_threads)
        if run.busy_s:
            shift_to_store((time.perf_counter() - began_s) * min(1.0, run.store_s / run.busy_s))
        return run.items

    def close(self) -> None:
        """End the threads, each after the item in work; they start again with the next microbatch."""
        queue, self._queue = self._queue, None
        if queue is not None:
            _end(queue, self._num_threads)

    def _started(self) -> "SimpleQueue[_Share | None]":
        if self._queue is None or self._pid != os.getpid():  # the child of a fork has the queue, and no threads
            self._queue, self._pid = SimpleQueue[_Share | None](), os.getpid()
            # At exit, daemon threads end by themselves.
            after_end(self, functools.partial(_end, self._queue, self._num_threads))
            for number in range(self._num_threads):
                name = f"fkat_data items {number}"
                threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True).start()
        return self._queue


class _Making:
    """The items of one microbatch, and who makes them."""

    def __init__(self, dataset: Any, indices: list[Any]) -> None:
        self.items: list[Any] = [None] * len(indices)
        self._errors: dict[int, BaseException] = {}
        self.ended: SimpleQueue[None] = SimpleQueue()
        self.busy_s = 0.0
        self.store_s = 0.0
        self._dataset = dataset
        self._indices = indices
        self._seed = microbatch_seed()
        self._has_gradients = torch.is_grad_enabled()
        self._next = 0
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Begin no further item."""
        with self._lock:
            self._next = len(self._indices)

    def raise_first(self) -> None:
        """Raise the error of the first item that has one: items begin in their order, so none before it is missing."""
        if self._errors:
            first = self._errors[min(self._errors)]
            self._errors.clear()
            try:
                raise first
            finally:
                del first  # it refers to this frame

    def work(self) -> None:
        """Make items until none is left."""
        torch.set_grad_enabled(self._has_gradients)
        began_s = time.perf_counter()
        with helping() as times:
            while (position := self._take()) is not None:
                try:
                    enter_place(self._seed, position)
                    self.items[position] = self._dataset[self._indices[position]]
                except BaseException as error:  # noqa: BLE001 - raised in the worker's own thread
                    self.stop()
                    self._errors[position] = error
            leave_place()
        with self._lock:
            self.busy_s += time.perf_counter() - began_s
            self.store_s += times.store_s

    def _take(self) -> int | None:
        with self._lock:
            position = self._next
            if position >= len(self._indices):
                return None
            self._next += 1
            return position


_Share: TypeAlias = tuple[_Making, contextvars.Context]
"""What one thread does for a microbatch: the items, and a copy of the variables of the worker's own thread."""


def _work(queue: "SimpleQueue[_Share | None]") -> None:
    # torch counts the threads of an operation for each thread that calls it.
    torch.set_num_threads(1)
    while (share := queue.get()) is not None:
        try:
            share[1].run(share[0].work)
        finally:
            share[0].ended.put(None)
            # What waits for the next microbatch keeps nothing of this one.
            del share


def _end(queue: "SimpleQueue[_Share | None]", num_threads: int) -> None:
    for _ in range(num_threads):
        queue.put(None)


def moved_generators(before: tuple[object, object, object]) -> str:
    """Return which global generators are not in the states that ``generator_states`` returned before, in words."""
    names = ("python's (random)", "numpy's (numpy.random)", "torch's")
    moved = (name for name, was, now in zip(names, before, generator_states(), strict=True) if was != now)
    return " and ".join(moved)


def _refuse_draws(dataset: Any, before: tuple[object, object, object], num_threads: int) -> None:
    moved = moved_generators(before)
    if moved:
        name = getattr(dataset, "class_name", type(dataset).__qualname__)
        raise ConfigurationError(
            "num_threads_per_worker",
            num_threads,
            f"1 for {name}, which draws from a generator that all threads share: "
            f"{moved}; or let it draw from fkat_data.item_generators()",
        )

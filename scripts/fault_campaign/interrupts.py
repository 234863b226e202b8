"""Interrupt real loops by real signals at random instants, go on, and count what is wrong.

A timer of the kernel sends the signals; the handler raises in the caller's thread. The loop catches
it and goes on with the same iterator, as a notebook's next cell does.
"""

import argparse
import faulthandler
import gc
import random
import signal
import sys
import time
from collections import Counter
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from fkat_data import ShardedDataLoader

_LONGEST_CALL_S = 60.0
#: Most calls with data ready are this short: a signal within it comes in the middle of one.
_SHORT_S, _LONG_S = 150e-6, 4e-3
_SHARE_SHORT, _SHARE_CALM = 0.7, 0.5
_INTERRUPTS_PER_LOADER = 200
_SIZES = {"a": 7, "b": 40, "empty": 0, "c": 25}
_NUM_ELEMENTS = (4, 3_000, 20_000)

WAYS: dict[str, dict[str, Any]] = {
    "one worker": {},
    "two shards at once": {"num_shard_prefetches": 2, "num_microbatch_prefetches": 4},
    "two workers a shard": {"num_workers_per_shard": 2},
    "a forked worker": {"start_method": "fork"},
    "in process": {"multiprocessing": False},
    "threads": {"workers": "threads", "num_workers_per_shard": 2, "num_shard_prefetches": 1},
}


class PreemptedError(Exception):
    """What a user's handler raises."""


# What a handler raises. Code that is interrupted may take the last ones for errors of its own.
_ERRORS: tuple[type[BaseException], ...] = (
    *(KeyboardInterrupt, PreemptedError),
    *(TimeoutError, BlockingIOError, FileNotFoundError, ValueError, EOFError, KeyError),
)


class Samples(Dataset[dict[str, torch.Tensor]]):
    """A shard whose microbatches say which they are."""

    def __init__(self, shard: str) -> None:
        self._first = 1000 * list(_SIZES).index(shard)
        self._size = _SIZES[shard]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {str(size): torch.full((size,), self._first + index) for size in _NUM_ELEMENTS[: 1 + index % 3]}


def known(shard: str) -> DataLoader[dict[str, torch.Tensor]]:
    """Return a shard whose length is known."""
    return DataLoader(Samples(shard), batch_size=None)


def unknown(shard: str) -> Any:
    """Yield a shard of unknown length."""
    samples = Samples(shard)
    for index in range(len(samples)):
        yield samples[index]


class Counts(Counter[str]):
    """What was found.

    ``raised`` counts the exceptions that the handler has raised, ``caught`` those that have reached the caller,
    ``swallowed`` those that Python has dropped in a finaliser, ``wrong`` the microbatches at whose place another one was
    expected, because one was lost, repeated or mixed up, ``misplaced`` the moments after an interruption at which the
    loader's position was not the caller's, ``delivered`` the microbatches.
    """

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong."""
        return self["raised"] == self["caught"] and not (self["swallowed"] or self["wrong"] or self["misplaced"])


class _Gate:
    """Lets the handler raise while it is open; it closes itself."""

    def __init__(self, error: type[BaseException]) -> None:
        self.is_open = False
        self.num_raised = 0
        self._error = error

    def handle(self, number: int, frame: object) -> None:
        del number, frame
        if self.is_open:
            self.is_open = False
            self.num_raised += 1
            raise self._error("interrupted")


_EXPECTED = [1000 * place + index for place, size in enumerate(_SIZES.values()) for index in range(size)]


def interrupt(
    way: str, factory: Any, error: type[BaseException], num_interrupts: int, random_: random.Random
) -> Counts:
    """Go through epochs of one loader until it was interrupted often enough."""
    gate = _Gate(error)
    swallowed: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, swallowed.append
    handler_before = signal.signal(signal.SIGALRM, gate.handle)
    found = Counts()
    loader = ShardedDataLoader(0, list(_SIZES), factory, **WAYS[way])
    epoch = position = 0
    is_calm = False
    iterator = iter(loader)
    try:
        while found["caught"] < num_interrupts:
            faulthandler.dump_traceback_later(_LONGEST_CALL_S, exit=True)
            try:
                if not is_calm:
                    span_s = _SHORT_S if random_.random() < _SHARE_SHORT else _LONG_S
                    signal.setitimer(signal.ITIMER_REAL, max(1e-6, random_.uniform(0, span_s)))
                    gate.is_open = True
                for microbatch in iterator:
                    gate.is_open = False
                    number = {int(value) for tensor in microbatch.values() for value in (tensor[0], tensor[-1])}
                    found["wrong"] += position >= len(_EXPECTED) or number != {_EXPECTED[position]}
                    position += 1
                    found["delivered"] += 1
                    break
                else:
                    gate.is_open = False
                    found["wrong"] += position != len(_EXPECTED)
                    epoch, position = epoch + 1, 0
                    iterator = iter(loader)
                is_calm = False
            except error:
                found["caught"] += 1
                is_calm = random_.random() < _SHARE_CALM
                place = (epoch + 1, 0) if position == len(_EXPECTED) else (epoch, position)
                found["misplaced"] += (loader.epoch, loader.step) != place
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        loader.close()
        signal.signal(signal.SIGALRM, handler_before)
        gc.collect()
        sys.unraisablehook = hook
    found["raised"] = gate.num_raised
    found["swallowed"] = sum(isinstance(unraisable.exc_value, error) for unraisable in swallowed)
    return found


def main(arguments: list[str]) -> int:
    """Run as many interrupts as asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/campaign --interrupts", description=__doc__)
    parser.add_argument("num_interrupts", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    random_, found = random.Random(options.seed), Counts()
    began_s = time.monotonic()
    while found["caught"] < options.num_interrupts:
        way = random_.choice(list(WAYS))
        factory, error = random_.choice([known, unknown]), random_.choice(_ERRORS)
        num_interrupts = min(_INTERRUPTS_PER_LOADER, options.num_interrupts - found["caught"])
        counts = interrupt(way, factory, error, num_interrupts, random_)
        found.update(counts)
        state = "" if counts.is_clean else f"  NOT CLEAN: {counts}"
        what = f"{found['caught']:,} interrupts  {way}, {factory.__name__}, {error.__name__}"
        print(f"{time.monotonic() - began_s:6.0f} s  {what}{state}", flush=True)
    print(dict(found))
    return 0 if found.is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Twenty-odd ways to raise, and the places of a user's code to do it in; spawned workers import this module.

A shard's name says what happens: ``kind/place``.
"""

import asyncio
import dataclasses
import json
import subprocess
import threading
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

from fkat_data import DataLoaderFactory, WorkerError

NUM_SAMPLES = 6
BATCH_SIZE = 2


class TwoArgumentsError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class KeywordError(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")


class UnpicklableError(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class RefusesToPickleError(Exception):
    def __reduce__(self):
        raise RuntimeError("not me")


class BecomesAnotherError(Exception):
    def __reduce__(self):
        return ValueError, ("disguised",)


class NothingRaisableError(Exception):
    def __reduce__(self):
        return str, ("no exception any more",)


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    text: str


def raise_in_a_circle():
    first, second = ValueError("the circle's first"), TypeError("the circle's second")
    first.__cause__, second.__cause__ = second, first
    raise first


def raise_after_many():
    error = None
    for number in range(300):
        error, error.__cause__ = ValueError(f"cause {number}"), error if number else None
    raise error


def recurse():
    return recurse()


def warn_as_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("mind the gap", UserWarning, stacklevel=1)


def throw(error):
    raise error


#: How it is raised, what type must arrive besides WorkerError, what is told.
ZOO = {
    "plain": (lambda: throw(ValueError("bad sample")), ValueError, "bad sample"),
    "key": (lambda: {}["absent"], KeyError, "absent"),
    "two arguments": (lambda: throw(TwoArgumentsError("one", "two")), TwoArgumentsError, "one and two"),
    "keyword": (lambda: throw(KeywordError(code=7)), KeywordError, "code 7"),
    "called process": (lambda: throw(subprocess.CalledProcessError(3, "tool")), subprocess.CalledProcessError, "tool"),
    "unicode": (lambda: str(b"\xff", "utf-8"), UnicodeDecodeError, "0xff"),
    "json": (lambda: json.loads("{"), json.JSONDecodeError, "line 1 column 2"),
    "file": (lambda: open("/nonexistent/file"), FileNotFoundError, "/nonexistent/file"),  # noqa: PTH123, SIM115
    "unpicklable": (lambda: throw(UnpicklableError("has a lock")), UnpicklableError, "has a lock"),
    "refuses to pickle": (lambda: throw(RefusesToPickleError("stays")), RefusesToPickleError, "stays"),
    "becomes another": (lambda: throw(BecomesAnotherError("itself")), BecomesAnotherError, "BecomesAnotherError"),
    "nothing raisable": (lambda: throw(NothingRaisableError("odd")), NothingRaisableError, "NothingRaisableError"),
    "unprintable": (lambda: throw(UnprintableError), UnprintableError, "UnprintableError"),
    "frozen": (lambda: throw(FrozenError("cold")), FrozenError, "cold"),
    "circle": (raise_in_a_circle, ValueError, "the circle's first"),
    "many causes": (raise_after_many, ValueError, "cause 299"),
    "recursion": (recurse, RecursionError, "recursion"),
    "huge": (lambda: throw(ValueError("x" * 5_000_000)), ValueError, "xxx"),
    "group": (lambda: throw(ExceptionGroup("several", [ValueError("a"), OSError("b")])), ExceptionGroup, "several"),
    "base group": (lambda: throw(BaseExceptionGroup("both", [KeyboardInterrupt()])), WorkerError, "both"),
    "interrupt": (lambda: throw(KeyboardInterrupt), WorkerError, "KeyboardInterrupt"),
    "exit": (lambda: throw(SystemExit(0)), WorkerError, "SystemExit"),
    "generator exit": (lambda: throw(GeneratorExit), WorkerError, "GeneratorExit"),
    "cancelled": (lambda: throw(asyncio.CancelledError), WorkerError, "CancelledError"),
    "stop": (lambda: throw(StopIteration), RuntimeError, "StopIteration"),
    "torch": (lambda: torch.zeros(2) @ torch.zeros(3), RuntimeError, "inconsistent tensor size"),
    "warning": (warn_as_error, UserWarning, "mind the gap"),
    "memory": (lambda: throw(MemoryError("the dataset's own")), MemoryError, "dataset's own"),
    "end of file": (lambda: throw(EOFError), EOFError, "EOFError"),
    "broken pipe": (lambda: throw(BrokenPipeError("the dataset's own")), BrokenPipeError, "dataset's own"),
}
#: Where it is raised, and how many microbatches come before it.
PLACES = {
    "factory": 0,
    "init": 0,
    "len": 0,
    "first item": 0,
    "last item": 2,
    "collate": 1,
    "batch sampler": 2,
    "sampler": 0,
}


class Raising(Dataset):
    """Raises at its place; made of a shard."""

    def __init__(self, shard):
        self.kind, _, self.place = shard.partition("/")
        self.raise_at("init")

    def raise_at(self, place):
        if self.place == place:
            ZOO[self.kind][0]()

    def __len__(self):
        self.raise_at("len")
        return NUM_SAMPLES

    def __getitem__(self, index):
        self.raise_at({0: "first item", NUM_SAMPLES - 1: "last item"}.get(index))
        return torch.tensor(index)

    def collate(self, samples):
        if int(samples[0]) == BATCH_SIZE:
            self.raise_at("collate")
        return torch.stack(samples)


class RaisingSampler:
    """Raises when its iteration begins, as one does that reads an index."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        self.dataset.raise_at("sampler")
        return iter(range(len(self.dataset)))


class RaisingBatchSampler:
    """Raises in place of its last batch, when those before it were drawn and not yet used."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return NUM_SAMPLES // BATCH_SIZE

    def __iter__(self):
        indices = list(self.sampler)
        for number in range(len(self)):
            if number == len(self) - 1:
                self.sampler.dataset.raise_at("batch sampler")
            yield indices[BATCH_SIZE * number : BATCH_SIZE * (number + 1)]


def dataloader(dataset, **options):
    return DataLoader(dataset, collate_fn=dataset.collate, **options)


_load = DataLoaderFactory(
    Raising,
    sampler_generator=RaisingSampler,
    batch_sampler_generator=RaisingBatchSampler,
    dataloader_generator=dataloader,
)


def load(shard):
    """The factory: one good shard, and those that raise."""
    if shard == "good":
        return [torch.tensor([7, 8])]
    kind, _, place = shard.partition("/")
    if place == "factory":
        ZOO[kind][0]()
    return _load(shard)

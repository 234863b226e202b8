"""Find out by experiment why a resume is not exact: change one thing at a time and compare the runs."""

import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any, Final

import numpy as np

from fkat_data.tools.resume_record import RecordedRun, RunRecorder, Setting

# If two runs differ, but agree while one source is pinned, that source is the cause. Pinning replaces functions of
# modules in this process, so it cannot reach a function that a module imported by name (``from time import time``).


class NondeterminismSource(StrEnum):
    """A source of randomness that the loader does not seed. Each is an ``InexactCause``, too."""

    OWN_GENERATOR = "generators made without a seed (np.random.default_rng(), random.Random())"
    CLOCK = "the clock (time.time() and similar)"
    SYSTEM_ENTROPY = "the system's random bytes (os.urandom(), uuid.uuid4(), secrets)"


@contextmanager
def pinned(source: NondeterminismSource) -> Generator[None]:
    """Make a source return the same values in every run during the context, in this process only."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, replacement in _REPLACEMENTS[source]():
            replaced.append((owner, name, getattr(owner, name)))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in replaced:
            setattr(owner, name, original)


def _seeded_generators() -> list[tuple[Any, str, Any]]:
    seeds = count()
    default_rng = np.random.default_rng

    def seeded_default_rng(seed: Any = None) -> Any:
        return default_rng(next(seeds) if seed is None else seed)

    class SeededRandom(random.Random):
        def __init__(self, x: Any = None) -> None:
            super().__init__(next(seeds) if x is None else x)

    class SeededRandomState(np.random.RandomState):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(next(seeds) if seed is None else seed)

    return [
        (np.random, "default_rng", seeded_default_rng),
        (np.random, "RandomState", SeededRandomState),
        (random, "Random", SeededRandom),
    ]


def _counting_clocks() -> list[tuple[Any, str, Any]]:
    # The clocks advance with each call, so that code that waits for a time does not hang.
    names = ("time", "perf_counter", "monotonic", "process_time")
    clocks = [(time, name, _clock(1e9, 1e-3)) for name in names]
    return clocks + [(time, f"{name}_ns", _clock(10**18, 10**6)) for name in names]


def _clock(start: float, tick: float) -> Callable[[], float]:
    ticks = count(1)
    return lambda: start + next(ticks) * tick


def _counted_bytes() -> list[tuple[Any, str, Any]]:
    calls = count()

    def urandom(size: int) -> bytes:
        return hashlib.shake_128(str(next(calls)).encode()).digest(size)

    return [(os, "urandom", urandom), (random, "_urandom", urandom)]


_REPLACEMENTS: Final[dict[NondeterminismSource, Callable[[], list[tuple[Any, str, Any]]]]] = {
    NondeterminismSource.OWN_GENERATOR: _seeded_generators,
    NondeterminismSource.CLOCK: _counting_clocks,
    NondeterminismSource.SYSTEM_ENTROPY: _counted_bytes,
}


class InexactCause(StrEnum):
    """A cause of an inexact resume. The value explains it."""

    OWN_GENERATOR = (
        "the data are not a function of the position: the dataset draws from its own generator, made without a seed "
        "(np.random.default_rng(), random.Random())"
    )
    CLOCK = "the data are not a function of the position: the dataset reads the clock"
    SYSTEM_ENTROPY = (
        "the data are not a function of the position: the dataset draws from the system (os.urandom(), uuid.uuid4())"
    )
    NOT_A_FUNCTION = (
        "the data are not a function of the position: `__getitem__` draws from its own generator, or depends on the "
        "time, on uuid or os.urandom, on files that change, or on a global that earlier runs changed"
    )
    SURVIVING_GLOBAL = (
        "the data depend on a global of the process that outlives the loader: a counter, cache or generator in a "
        "module or a class"
    )
    PROCESS_IDENTITY = "the data differ from process to process: they depend on the process id"
    PROCESS_STATE = (
        "the data depend on the state of the process: a global that only one process sets, the order of a set or the "
        "hash() of strings (workers have one seed, the trainer another), the environment, torch's threads"
    )
    SHARED_BETWEEN_SHARDS = (
        "the dataset carries something over from shard to shard (a buffer, a counter, a cache), so its data depend on "
        "which shards its worker read before"
    )
    ORDER = "the microbatches are the same in a different order: the order of a listing or of a sampler changes"
    SHARDS_CHANGE = "a new loader has different shards, or a different order of them: a listing or a sampler changes"
    KEPT_STATE = (
        "the dataset or its sampler keeps state between microbatches: a counter, a buffer, its own generator seeded "
        "once, a shuffle drawn once"
    )
    FAILING_RESUME = (
        "the dataset, its sampler or its `skip` fails if it starts at the stop, but not if it reads up to it"
    )
    UNKNOWN = "unknown: the time ran out before it was found"


_SEED_REMEDY: Final = "draw from random, np.random or torch directly: the loader seeds them for each microbatch"
_ORDER_REMEDY: Final = "sort the listing; make the sampler's order a function of (seed, epoch)"
_REMEDIES: Final[dict[InexactCause, str]] = {
    InexactCause.OWN_GENERATOR: _SEED_REMEDY,
    InexactCause.CLOCK: "derive the value from the sample's index, or draw it from random, np.random or torch",
    InexactCause.SYSTEM_ENTROPY: _SEED_REMEDY,
    InexactCause.NOT_A_FUNCTION: _SEED_REMEDY,
    InexactCause.SURVIVING_GLOBAL: "keep no state that affects the data in modules or classes",
    InexactCause.PROCESS_IDENTITY: "derive the value from the sample's index, or draw it from random, np.random or torch",
    InexactCause.PROCESS_STATE: (
        "pass everything that affects the data to the factory; sort the elements of a set; use hashlib instead of hash()"
    ),
    InexactCause.SHARED_BETWEEN_SHARDS: "make a new dataset with empty buffers for each shard",
    InexactCause.ORDER: _ORDER_REMEDY,
    InexactCause.SHARDS_CHANGE: _ORDER_REMEDY,
    InexactCause.KEPT_STATE: (
        "make each sample a function of its index and of random, np.random and torch; make `skip(count)` return "
        "exactly the remaining samples"
    ),
    InexactCause.FAILING_RESUME: "read the exception's message; with multiprocessing=False a debugger can stop there",
    InexactCause.UNKNOWN: "allow more time, or use fewer microbatches",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The likely cause, and the evidence.

    Attributes:
        cause: The likely cause.
        findings: One line for each experiment, with its outcome.
    """

    cause: InexactCause
    findings: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """Advice: what to change."""
        return _REMEDIES[self.cause]

    def __str__(self) -> str:
        lines = [f"likely cause: {self.cause}", *(f"  tried: {finding}" for finding in self.findings)]
        return "\n".join([*lines, f"remedy: {self.remedy}"])


def diagnose(
    recorder: RunRecorder,
    bases: list[RecordedRun],
    repeat: RecordedRun | None,
    differing: RecordedRun | None = None,
    resume: Callable[[], RecordedRun] | None = None,
) -> Diagnosis:
    """Return the likely cause of a difference.

    Args:
        recorder: Makes the runs of the experiments.
        bases: Uninterrupted runs, one in each mode.
        repeat: A second run in the first mode, if there is only one mode; else None.
        differing: The resumed run that differs from the bases; None if the bases differ from each other.
        resume: Resumes again at the stop of that run.

    Raises:
        Exception: The dataset raised it.
    """
    findings: list[str] = []
    cause = (
        _cause_in_fresh_runs(recorder, bases, repeat, findings)
        or _cause_in_setting(recorder, bases, differing, findings)
        or _cause_in_resume(bases[0], differing, resume, findings)
    )
    return Diagnosis(InexactCause.UNKNOWN if recorder.is_over else cause, tuple(findings))


def _cause_in_fresh_runs(
    recorder: RunRecorder, bases: list[RecordedRun], repeat: RecordedRun | None, findings: list[str]
) -> InexactCause | None:
    do_modes_differ = bases[-1].divergence is not None
    pairs: list[tuple[RecordedRun, RecordedRun]] = []
    # In process first: data that are stable there, and the same in both modes, are stable in worker processes.
    for base in reversed(bases):
        if do_modes_differ or not pairs or not _are_same(pairs[0]):
            pairs.append((base, repeat or recorder.record_compared(base.setting, base)))
    for base, again in pairs:
        outcome = "same" if again.divergence is None else f"different from microbatch {again.divergence.index} on"
        findings.append(f"two uninterrupted runs, {base.setting}: {outcome}")
    if len({run.shards for run in [*bases, *(again for _, again in pairs)]}) > 1:
        findings.append("the shards of the first epoch, in order: different")
        return InexactCause.SHARDS_CHANGE
    unstable = [pair for pair in pairs if not _are_same(pair)]
    if not unstable and do_modes_differ:
        findings.append("two uninterrupted runs, workers and in process: different")
        return InexactCause.ORDER if _is_reordered(bases[0], bases[1], findings) else InexactCause.PROCESS_STATE
    if not unstable:
        return None
    return _cause_of_instability(recorder, pairs, unstable, findings)


def _cause_of_instability(
    recorder: RunRecorder,
    pairs: list[tuple[RecordedRun, RecordedRun]],
    unstable: list[tuple[RecordedRun, RecordedRun]],
    findings: list[str],
) -> InexactCause:
    is_unstable_in_process = not unstable[0][0].setting.multiprocessing
    if len(unstable) < len(pairs) and is_unstable_in_process:
        return InexactCause.SURVIVING_GLOBAL  # each worker process starts with its own global
    cause = _cause_by_pinning(recorder, unstable[0][1], findings) if is_unstable_in_process else None
    if cause is not None:
        return cause
    if any(_is_reordered(*pair, findings) for pair in unstable):
        return InexactCause.ORDER
    return InexactCause.NOT_A_FUNCTION if len(unstable) == len(pairs) else InexactCause.PROCESS_IDENTITY


def _are_same(pair: tuple[RecordedRun, RecordedRun]) -> bool:
    return pair[1].divergence is None


def _cause_by_pinning(recorder: RunRecorder, unstable: RecordedRun, findings: list[str]) -> InexactCause | None:
    count = min(len(unstable.microbatches), 2 * (unstable.divergence.index if unstable.divergence else 0) + 20)
    in_process = Setting(multiprocessing=False)
    for source in NondeterminismSource:
        with pinned(source):
            once = recorder.record_base(in_process, count, share=0.5)
        with pinned(source):
            again = recorder.record_compared(in_process, once)
        if recorder.is_over:
            return None
        are_same = again.divergence is None
        findings.append(f"two runs with a pinned source, {source}: {'same' if are_same else 'different'}")
        if are_same:
            return InexactCause[source.name]
    return None


def _cause_in_setting(
    recorder: RunRecorder, bases: list[RecordedRun], differing: RecordedRun | None, findings: list[str]
) -> InexactCause | None:
    if differing is None:
        return None
    again = recorder.record_compared(differing.setting, bases[0])
    findings.append(f"an uninterrupted run, {differing.setting}: {'same' if again.divergence is None else 'different'}")
    return None if again.divergence is None else InexactCause.SHARED_BETWEEN_SHARDS


def _cause_in_resume(
    reference: RecordedRun,
    differing: RecordedRun | None,
    resume: Callable[[], RecordedRun] | None,
    findings: list[str],
) -> InexactCause:
    if differing is None or resume is None:
        # The first pair of runs differed, but each agreed with its repetition.
        findings.append("the difference did not appear again")
        return InexactCause.NOT_A_FUNCTION
    again = resume()
    if again.divergence is None:
        findings.append("a second resume at the same stop: exact this time")
        return InexactCause.NOT_A_FUNCTION
    findings.append("a second resume at the same stop: different again")
    if _is_reordered(reference, differing, findings):
        return InexactCause.ORDER
    return InexactCause.KEPT_STATE


def _is_reordered(reference: RecordedRun, other: RecordedRun, findings: list[str]) -> bool:
    """Return whether the rest of an epoch holds the same microbatches in a different order."""
    expected = list(reference.microbatches[other.first :])
    epoch = expected[0].position.epoch
    digests = [
        [delivered.digest for delivered in run if delivered.position.epoch == epoch]
        for run in (expected, other.microbatches)
    ]
    is_reordered = digests[0] != digests[1] and Counter(digests[0]) == Counter(digests[1])
    if is_reordered:
        findings.append(f"the microbatches of epoch {epoch}, in any order: same")
    return is_reordered

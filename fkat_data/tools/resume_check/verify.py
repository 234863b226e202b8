"""Proof that a resume is exact, for the user's own data: stopped at random, gone on with, compared bit for bit.

::

    from fkat_data.tools import verify_resume

    def test_a_resume_is_exact():
        report = verify_resume(lambda **overrides: ShardedDataLoader(7, sampler, factory, **overrides))
        assert report.is_exact, report
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import numpy as np

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.tools.resume_check.diagnose import Diagnosis, InexactCause, diagnose
from fkat_data.tools.resume_check.record import Parting, RecordedRun, RunRecorder, Setting

__all__ = ["Progress", "ResumeReport", "Trial", "verify_resume"]

# The first run is one of many: it leaves time for those that are compared with it.
_SHARE_OF_FIRST_RUN: Final = 0.2
_SHARD_PREFETCHES: Final = (0, 1, 2)
_MICROBATCH_PREFETCHES: Final = (-1, 0, 1, 2)

Progress = Callable[[str, int], None]
"""Called with what is being done, and the microbatches recorded since the last call."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One stop, and what a fresh loader made of the state.

    Attributes:
        stop: Microbatches before the stop.
        saved: How the loader ran that the state is of.
        resumed: How the loader ran that took it.
        num_compared: Microbatches after the stop that were compared.
        parting: The first that differed; None if none did.
        error: What the resumed loader raised, or None.
    """

    stop: int
    saved: Setting
    resumed: Setting
    num_compared: int
    parting: Parting | None = None
    error: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether all that was compared is the same."""
        return self.parting is None and self.error is None

    @property
    def outcome(self) -> str:
        """What came out, in a line."""
        if self.error is not None:
            return f"raised {self.error}"
        return "exact" if self.parting is None else str(self.parting)


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """What a verification found.

    Attributes:
        num_microbatches: Microbatches of the run that nothing stopped.
        num_epochs: How many epochs it reaches into.
        num_shards: How many shards it reaches into, those of each epoch counted.
        settings: The settings in which that run was made.
        parting: Where two runs that nothing stopped differ; None if they are the same.
        trials: The stops, in the order of their trial.
        num_trials: How many were asked for; fewer were made if the time was over.
        diagnosis: The likely cause; None where nothing differs.
    """

    num_microbatches: int
    num_epochs: int
    num_shards: int
    settings: tuple[Setting, ...]
    parting: Parting | None
    trials: tuple[Trial, ...]
    num_trials: int
    diagnosis: Diagnosis | None

    @property
    def is_exact(self) -> bool:
        """Whether every comparison came out the same, and at least one stop was tried."""
        return self.parting is None and bool(self.trials) and all(trial.is_exact for trial in self.trials)

    @property
    def is_cut(self) -> bool:
        """Whether the time was over before every stop was tried."""
        return self.parting is None and len(self.trials) < self.num_trials

    def __str__(self) -> str:
        counts = {"microbatch": self.num_microbatches, "shard": self.num_shards, "epoch": self.num_epochs}
        over = "over " + ", ".join(_counted(count, noun) for noun, count in counts.items())
        lines: list[str] = []
        if self.parting is not None:
            lines += [f"not exact: two runs that nothing stopped differ, {over}", f"they part at {self.parting}"]
        elif not self.trials:
            lines.append("nothing proven: the time was over before a stop was tried")
        elif self.is_exact:
            lines.append(f"exact: {_counted(len(self.trials), 'stop')} {over}, each resumed bit for bit")
        else:
            failed = [trial for trial in self.trials if not trial.is_exact]
            lines.append(f"not exact: {len(failed)} of {len(self.trials)} stops resumed with other data, {over}")
            lines += [
                f"stopped after {trial.stop} ({trial.saved}; resumed: {trial.resumed}): {trial.outcome}"
                for trial in failed
            ]
        if self.is_exact and self.num_shards == 1:
            lines.append("no stop lies beyond the first shard: with more microbatches, one would")
        if self.is_cut and self.trials:
            lines.append(f"the time was over after {len(self.trials)} of {self.num_trials} stops")
        if self.diagnosis is not None:
            lines.append(str(self.diagnosis))
        return "\n".join(lines)


def verify_resume(
    make_loader: Callable[..., Any],
    *,
    num_microbatches: int | None = None,
    num_trials: int = 8,
    seed: int = 0,
    multiprocessing: bool | None = None,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> ResumeReport:
    """Stop and resume at random places, and compare every microbatch with those of a run that nothing stops.

    A run in worker processes and one in process are recorded and compared. States that were taken on the way go
    through ``torch.save`` and ``torch.load(weights_only=True)`` into fresh loaders of either mode and of other
    prefetch depths, which have to deliver what the recorded run delivered afterwards. If anything differs, more runs
    are made to find the cause.

    Args:
        make_loader: Returns a new ``ShardedDataLoader`` each time. Takes ``multiprocessing``,
            ``num_shard_prefetches`` and ``num_microbatch_prefetches`` as keywords, for the loader.
        num_microbatches: Microbatches of a run, at least 2; None: one epoch and a quarter, but at most 200.
        num_trials: How many stops.
        seed: Decides on the stops and the depths.
        multiprocessing: True: worker processes alone; False: in process alone; None: both, and each resumed by the
            other.
        timeout_s: Ends the verification early; looked at after each microbatch. None: no limit.
        progress: Told of each microbatch.

    Raises:
        ConfigurationError: An argument cannot work, or the loader's own arguments cannot.
        Exception: What the dataset raises without a stop.
    """
    if num_microbatches is not None:
        arguments.integer("num_microbatches", num_microbatches, minimum=2)
    arguments.integer("num_trials", num_trials, minimum=1)
    arguments.integer("seed", seed, minimum=0)
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigurationError("timeout_s", timeout_s, "a positive number of seconds")
    deadline_s = None if timeout_s is None else monotonic() + timeout_s
    told = progress or _tell_nobody
    phase = ["recording"]
    recorder = RunRecorder(make_loader, deadline_s, lambda count: told(phase[0], count))
    modes = (True, False) if multiprocessing is None else (arguments.boolean("multiprocessing", multiprocessing),)

    reference = recorder.base(Setting(modes[0]), num_microbatches, _SHARE_OF_FIRST_RUN)
    other = recorder.compared(Setting(modes[-1]), reference, is_base=True)
    # Alone, a mode is compared with itself.
    bases, repeat = ([reference, other], None) if len(modes) == 2 else ([reference], other)
    trials: list[Trial] = []
    diagnosis: Diagnosis | None = None
    if other.parting is not None:
        phase[0] = "looking for the cause"
        diagnosis = diagnose(recorder, bases, repeat)
    elif not other.is_cut:
        phase[0] = "stopping and resuming"
        draws = np.random.default_rng(seed)
        differing: tuple[Trial, RecordedRun | None] | None = None
        for trial, run in _trials(recorder, bases, num_trials, draws):
            trials.append(trial)
            if not trial.is_exact and differing is None:
                differing = trial, run
        if differing is not None:
            phase[0] = "looking for the cause"
            diagnosis = _diagnosed(recorder, bases, repeat, *differing)
    return ResumeReport(
        num_microbatches=len(reference.microbatches),
        num_epochs=reference.microbatches[-1].place.epoch + 1,
        num_shards=len({delivered.place[:2] for delivered in reference.microbatches}),
        settings=tuple(base.setting for base in bases),
        parting=other.parting,
        trials=tuple(trials),
        num_trials=num_trials,
        diagnosis=diagnosis,
    )


def _trials(
    recorder: RunRecorder, bases: list[RecordedRun], num_trials: int, draws: np.random.Generator
) -> Iterator[tuple[Trial, RecordedRun | None]]:
    reference = bases[0]
    places = np.arange(1, len(reference.microbatches))
    if not len(places):
        return
    # Each place once before any comes twice.
    rounds = -(-num_trials // len(places))
    stops = np.concatenate([draws.permutation(places) for _ in range(rounds)])[:num_trials].tolist()
    # The crossed pairs come first: where the time is short, they say most.
    pairs = [(saved, resumed) for distance in (1, 0) for saved, resumed in _pairs(bases, distance)]
    for number, stop in enumerate(stops):
        if recorder.is_over:
            return
        saved, resumed = pairs[number % len(pairs)]
        depths = int(draws.choice(_SHARD_PREFETCHES)), int(draws.choice(_MICROBATCH_PREFETCHES))
        setting = Setting(resumed.setting.multiprocessing, *depths)
        try:
            run = _resumed(recorder, setting, saved.states[stop], stop, reference)
        except _ResumeFailedError as error:
            yield Trial(stop, saved.setting, setting, 0, error=str(error)), None
            continue
        if run.is_cut and run.parting is None and run.end < reference.end:
            return
        yield Trial(stop, saved.setting, setting, len(run.microbatches), run.parting), run


def _pairs(bases: list[RecordedRun], distance: int) -> list[tuple[RecordedRun, RecordedRun]]:
    return [(base, bases[(index + distance) % len(bases)]) for index, base in enumerate(bases)]


class _ResumeFailedError(Exception):
    """A resumed loader raised what the runs that nothing stopped did not."""


def _resumed(recorder: RunRecorder, setting: Setting, state: bytes, stop: int, reference: RecordedRun) -> RecordedRun:
    try:
        return recorder.resumed(setting, state, stop, reference)
    except Exception as error:
        raise _ResumeFailedError(f"{type(error).__name__}: {error}") from error


def _diagnosed(
    recorder: RunRecorder, bases: list[RecordedRun], repeat: RecordedRun | None, trial: Trial, run: RecordedRun | None
) -> Diagnosis:
    if run is None:
        cause = InexactCause.SHARDS_CHANGE if "fingerprint." in str(trial.error) else InexactCause.FAILING_RESUME
        return Diagnosis(cause, ())
    stop, state = trial.stop, next(base for base in bases if base.setting == trial.saved).states[trial.stop]
    return diagnose(
        recorder, bases, repeat, run, lambda: recorder.resumed(run.setting, state, stop, reference=bases[0])
    )


def _counted(count: int, noun: str) -> str:
    plural = {"microbatch": "microbatches"}.get(noun, f"{noun}s")
    return f"{count} {noun if count == 1 else plural}"


def _tell_nobody(phase: str, count: int) -> None:
    del phase, count

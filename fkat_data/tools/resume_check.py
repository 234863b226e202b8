"""Check on the user's own data that every resume is exact: stop at random, resume, and compare bit for bit.

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

from fkat_data.errors import arguments
from fkat_data.errors.wording import counted
from fkat_data.tools.resume_diagnosis import Diagnosis, InexactCause, diagnose
from fkat_data.tools.resume_record import Divergence, RecordedRun, RunRecorder, Setting

# The first run leaves time for the runs to compare with it.
_SHARE_OF_FIRST_RUN: Final = 0.2
_SHARD_PREFETCHES: Final = (0, 1, 2)
_MICROBATCH_PREFETCHES: Final = (-1, 0, 1, 2)

ProgressCallback = Callable[[str, int], None]
"""Takes the name of the phase, and the number of microbatches recorded since the last call."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One stop, and the outcome of the resume.

    Attributes:
        stop: The number of microbatches before the stop.
        saved: How the stopped loader ran.
        resumed: How the resumed loader ran.
        num_compared: The number of microbatches compared after the stop.
        divergence: The first difference, or None.
        error: The error that the resumed loader raised, or None.
    """

    stop: int
    saved: Setting
    resumed: Setting
    num_compared: int
    divergence: Divergence | None = None
    error: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether all compared microbatches are the same."""
        return self.divergence is None and self.error is None

    @property
    def outcome(self) -> str:
        """The outcome in one line."""
        if self.error is not None:
            return f"raised {self.error}"
        return "exact" if self.divergence is None else str(self.divergence)


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """The result of a verification.

    Attributes:
        num_microbatches: The number of microbatches in the uninterrupted run.
        num_epochs: The number of epochs that it reaches into.
        num_shards: The number of shards that it reaches into, counted in each epoch.
        settings: The settings of the uninterrupted runs.
        divergence: The first difference between two uninterrupted runs, or None.
        trials: The stops, in the order in which they were tried.
        num_trials: The number of stops requested. ``trials`` has fewer if the time ran out.
        diagnosis: The likely cause of the first difference, or None.
    """

    num_microbatches: int
    num_epochs: int
    num_shards: int
    settings: tuple[Setting, ...]
    divergence: Divergence | None
    trials: tuple[Trial, ...]
    num_trials: int
    diagnosis: Diagnosis | None

    @property
    def is_exact(self) -> bool:
        """Whether at least one stop was tried and nothing differed."""
        return self.divergence is None and bool(self.trials) and all(trial.is_exact for trial in self.trials)

    @property
    def is_cut(self) -> bool:
        """Whether the time ran out before every stop was tried."""
        return self.divergence is None and len(self.trials) < self.num_trials

    def __str__(self) -> str:
        counts = {"microbatch": self.num_microbatches, "shard": self.num_shards, "epoch": self.num_epochs}
        over = "over " + ", ".join(counted(count, noun) for noun, count in counts.items())
        lines: list[str] = []
        if self.divergence is not None:
            lines += [f"not exact: two uninterrupted runs differ, {over}", f"first difference: {self.divergence}"]
        elif not self.trials:
            lines.append("nothing proven: the time ran out before the first stop")
        elif self.is_exact:
            lines.append(f"exact: {counted(len(self.trials), 'stop')} {over}, each resumed bit for bit")
        else:
            failed = [trial for trial in self.trials if not trial.is_exact]
            lines.append(f"not exact: {len(failed)} of {len(self.trials)} stops did not resume exactly, {over}")
            lines += [
                f"stopped after {trial.stop} ({trial.saved}; resumed: {trial.resumed}): {trial.outcome}"
                for trial in failed
            ]
        if self.is_exact and self.num_shards == 1:
            lines.append("all stops are in the first shard: ask for more microbatches to test further shards")
        if self.is_cut and self.trials:
            lines.append(f"the time ran out after {len(self.trials)} of {self.num_trials} stops")
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
    progress: ProgressCallback | None = None,
) -> ResumeReport:
    """Stop and resume at random positions, and compare every microbatch with an uninterrupted run.

    It records a run in worker processes and a run in process, and compares them. Then it loads states from these runs
    into new loaders, through ``torch.save`` and ``torch.load(weights_only=True)``, in both modes and with other
    prefetch depths. Each must deliver the rest of the recorded run. If anything differs, further runs find the cause.

    Args:
        make_loader: Returns a new ``ShardedDataLoader`` on each call. Takes ``multiprocessing``,
            ``num_shard_prefetches`` and ``num_microbatch_prefetches`` as keywords, for the loader.
        num_microbatches: The number of microbatches in a run, at least 2; None: one epoch and a quarter, but at most
            200.
        num_trials: The number of stops.
        seed: Chooses the stops and the prefetch depths.
        multiprocessing: True: only worker processes; False: only in process; None: both, and each resumes the other.
        timeout_s: Ends the verification early, after the current microbatch. None: no limit.
        progress: Called after each microbatch.

    Raises:
        ConfigurationError: An argument, or an argument of the loader, is invalid.
        Exception: The dataset raised it without a stop.
    """
    if num_microbatches is not None:
        arguments.integer("num_microbatches", num_microbatches, minimum=2)
    arguments.integer("num_trials", num_trials, minimum=1)
    arguments.integer("seed", seed, minimum=0)
    deadline_s = None if timeout_s is None else monotonic() + arguments.seconds("timeout_s", timeout_s)
    phase = "recording"

    def report_progress(count: int) -> None:
        if progress is not None:
            progress(phase, count)

    recorder = RunRecorder(make_loader, deadline_s, report_progress)
    modes = (True, False) if multiprocessing is None else (arguments.boolean("multiprocessing", multiprocessing),)

    reference = recorder.record_base(Setting(modes[0]), num_microbatches, _SHARE_OF_FIRST_RUN)
    other = recorder.record_compared(Setting(modes[-1]), reference, is_base=True)
    # A single mode is compared with itself.
    bases, repeat = ([reference, other], None) if len(modes) == 2 else ([reference], other)
    trials: list[Trial] = []
    diagnosis: Diagnosis | None = None
    if other.divergence is not None:
        phase = "looking for the cause"
        diagnosis = diagnose(recorder, bases, repeat)
    elif not other.is_cut:
        phase = "stopping and resuming"
        draws = np.random.default_rng(seed)
        differing: tuple[Trial, RecordedRun | None] | None = None
        for trial, run in _trials(recorder, bases, num_trials, draws):
            trials.append(trial)
            if not trial.is_exact and differing is None:
                differing = trial, run
        if differing is not None:
            phase = "looking for the cause"
            diagnosis = _diagnosed(recorder, bases, repeat, *differing)
    return ResumeReport(
        num_microbatches=len(reference.microbatches),
        num_epochs=reference.microbatches[-1].position.epoch + 1,
        num_shards=len({delivered.position[:2] for delivered in reference.microbatches}),
        settings=tuple(base.setting for base in bases),
        divergence=other.divergence,
        trials=tuple(trials),
        num_trials=num_trials,
        diagnosis=diagnosis,
    )


def _trials(
    recorder: RunRecorder, bases: list[RecordedRun], num_trials: int, draws: np.random.Generator
) -> Iterator[tuple[Trial, RecordedRun | None]]:
    reference = bases[0]
    positions = np.arange(1, len(reference.microbatches))
    if not len(positions):
        return
    # Every position comes once before any position comes twice.
    rounds = -(-num_trials // len(positions))
    stops = np.concatenate([draws.permutation(positions) for _ in range(rounds)])[:num_trials].tolist()
    # Resumes in the other mode come first: if time is short, they prove most.
    pairs = [(saved, bases[index - distance]) for distance in (1, 0) for index, saved in enumerate(bases)]
    for number, stop in enumerate(stops):
        if recorder.is_over:
            return
        saved, resumed = pairs[number % len(pairs)]
        depths = int(draws.choice(_SHARD_PREFETCHES)), int(draws.choice(_MICROBATCH_PREFETCHES))
        setting = Setting(resumed.setting.multiprocessing, *depths)
        try:
            run = recorder.record_resumed(setting, saved.states[stop], stop, reference)
        except Exception as error:  # noqa: BLE001 - the uninterrupted runs did not raise it
            yield Trial(stop, saved.setting, setting, 0, error=f"{type(error).__name__}: {error}"), None
            continue
        if run.is_cut and run.divergence is None and run.end < reference.end:
            return
        yield Trial(stop, saved.setting, setting, len(run.microbatches), run.divergence), run


def _diagnosed(
    recorder: RunRecorder, bases: list[RecordedRun], repeat: RecordedRun | None, trial: Trial, run: RecordedRun | None
) -> Diagnosis:
    if run is None:
        cause = InexactCause.SHARDS_CHANGE if "fingerprint." in str(trial.error) else InexactCause.FAILING_RESUME
        return Diagnosis(cause, ())
    stop, state = trial.stop, next(base for base in bases if base.setting == trial.saved).states[trial.stop]
    return diagnose(
        recorder, bases, repeat, run, lambda: recorder.record_resumed(run.setting, state, stop, reference=bases[0])
    )

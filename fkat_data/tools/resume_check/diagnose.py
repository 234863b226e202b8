"""Why a resume is not exact, found out by experiment: what is changed from run to run, and what comes out the same."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fkat_data.tools.resume_check.record import RecordedRun, RunRecorder, Setting
from fkat_data.tools.resume_check.suspects import Suspect, held_still

__all__ = ["Diagnosis", "InexactCause", "diagnose"]


class InexactCause(StrEnum):
    """What makes a resume inexact; the value explains it."""

    OWN_GENERATOR = (
        "the data are not a function of the position: the dataset draws from a generator of its own that is made "
        "without a seed (np.random.default_rng(), random.Random())"
    )
    CLOCK = "the data are not a function of the position: the dataset reads the clock"
    SYSTEM_ENTROPY = (
        "the data are not a function of the position: the dataset draws from the system (os.urandom(), uuid.uuid4())"
    )
    NOT_A_FUNCTION = (
        "the data are not a function of the position: `__getitem__` draws from a generator of its own, or depends on "
        "the time, on uuid or os.urandom, on files that change, or on a global that earlier runs have changed"
    )
    SURVIVING_GLOBAL = (
        "the data depend on a global of the process that outlives the loader: a counter, cache or generator of a "
        "module or a class"
    )
    PROCESS_IDENTITY = (
        "the data differ from process to process: they depend on the order of a set or on hash() of strings, which "
        "each process draws anew, or on the process id"
    )
    PROCESS_STATE = (
        "the data depend on state of the process: a global that only one of them sets, the working folder, the "
        "environment, torch's threads"
    )
    SHARED_BETWEEN_SHARDS = (
        "the dataset carries something over from shard to shard (a buffer, a counter, a cache): what it holds depends "
        "on which shards its worker had before"
    )
    ORDER = "the microbatches are the same in another order: the order of a listing or of a sampler changes"
    SHARDS_CHANGE = "a fresh loader has other shards, or another order of them: a listing or a sampler changes"
    KEPT_STATE = (
        "the dataset or its sampler keeps state between microbatches: a counter, a buffer, a generator of its own that "
        "was seeded once, a shuffle drawn once"
    )
    FAILING_RESUME = (
        "the dataset, its sampler or its `skip` fails when it begins at that place, and not when it gets there"
    )
    UNKNOWN = "there was no time left to look for it"


_REMEDIES: Final[dict[InexactCause, str]] = {
    InexactCause.OWN_GENERATOR: "draw from random, np.random or torch directly: the loader seeds them for each microbatch",
    InexactCause.CLOCK: "derive it from the sample's index, or draw it from random, np.random or torch",
    InexactCause.SYSTEM_ENTROPY: "draw it from random, np.random or torch: the loader seeds them for each microbatch",
    InexactCause.NOT_A_FUNCTION: "draw from random, np.random or torch directly: the loader seeds them for each microbatch",
    InexactCause.SURVIVING_GLOBAL: "keep nothing in modules and classes that decides on the data",
    InexactCause.PROCESS_IDENTITY: "sort what comes out of a set; use hashlib instead of hash()",
    InexactCause.PROCESS_STATE: "pass to the factory whatever decides on the data",
    InexactCause.SHARED_BETWEEN_SHARDS: "make a new dataset for each shard; begin each with nothing in its buffers",
    InexactCause.ORDER: "sort the listing; let the sampler's order be a function of (seed, epoch)",
    InexactCause.SHARDS_CHANGE: "sort the listing; let the sampler's order be a function of (seed, epoch)",
    InexactCause.KEPT_STATE: (
        "let each sample be a function of its index and of what random, np.random and torch draw; a `skip(count)` has "
        "to give exactly what is left"
    ),
    InexactCause.FAILING_RESUME: "the exception's own message says more; multiprocessing=False lets a debugger see it",
    InexactCause.UNKNOWN: "give it more time, or fewer microbatches",
}

_BY_SUSPECT: Final[dict[Suspect, InexactCause]] = {
    Suspect.OWN_GENERATOR: InexactCause.OWN_GENERATOR,
    Suspect.CLOCK: InexactCause.CLOCK,
    Suspect.SYSTEM_ENTROPY: InexactCause.SYSTEM_ENTROPY,
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The likely cause, and what speaks for it.

    Attributes:
        cause: The likely cause.
        findings: What was tried and what came out, a sentence each.
    """

    cause: InexactCause
    findings: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """What would help."""
        return _REMEDIES[self.cause]

    def __str__(self) -> str:
        lines = [f"likely cause: {self.cause}", *(f"  tried: {finding}" for finding in self.findings)]
        return "\n".join([*lines, f"what helps: {self.remedy}"])


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
        bases: Runs that nothing stopped, each in a mode of its own.
        repeat: A second run in the mode of the first, where there is but one mode.
        differing: The resumed run that differs from them; None if they differ among themselves.
        resume: Resumes once more at the stop of that run.

    Raises:
        Exception: What the dataset raises.
    """
    findings: list[str] = []
    cause = (
        _of_fresh_runs(recorder, bases, repeat, findings)
        or _of_the_setting(recorder, bases, differing, findings)
        or _of_the_stop(bases[0], differing, resume, findings)
    )
    return Diagnosis(InexactCause.UNKNOWN if recorder.is_over else cause, tuple(findings))


def _of_fresh_runs(
    recorder: RunRecorder, bases: list[RecordedRun], repeat: RecordedRun | None, findings: list[str]
) -> InexactCause | None:
    do_modes_differ = bases[-1].parting is not None
    pairs: list[tuple[RecordedRun, RecordedRun]] = []
    # In process first: what is stable there, and the same in both modes, is stable in worker processes.
    for base in reversed(bases):
        if do_modes_differ or not pairs or not _are_same(pairs[0]):
            pairs.append((base, repeat or recorder.compared(base.setting, base)))
    for base, again in pairs:
        outcome = "the same" if again.parting is None else f"not the same, from microbatch {again.parting.index} on"
        findings.append(f"two fresh runs without a stop, {base.setting}: {outcome}")
    if len({run.shards for run in [*bases, *(again for _, again in pairs)]}) > 1:
        findings.append("the shards of the first epoch, in their order: not the same")
        return InexactCause.SHARDS_CHANGE
    unstable = [pair for pair in pairs if not _are_same(pair)]
    if not unstable and do_modes_differ:
        findings.append("without a stop, workers and in process: not the same")
        return InexactCause.ORDER if _is_reordered(bases[0], bases[1], findings) else InexactCause.PROCESS_STATE
    if not unstable:
        return None
    return _of_unstable(recorder, pairs, unstable, findings)


def _of_unstable(
    recorder: RunRecorder,
    pairs: list[tuple[RecordedRun, RecordedRun]],
    unstable: list[tuple[RecordedRun, RecordedRun]],
    findings: list[str],
) -> InexactCause:
    is_unstable_in_process = not unstable[0][0].setting.multiprocessing
    if len(unstable) < len(pairs) and is_unstable_in_process:
        return InexactCause.SURVIVING_GLOBAL  # each worker process begins with a fresh one
    suspected = _suspected(recorder, unstable[0][1], findings) if is_unstable_in_process else None
    if suspected is not None:
        return suspected
    if any(_is_reordered(*pair, findings) for pair in unstable):
        return InexactCause.ORDER
    return InexactCause.NOT_A_FUNCTION if len(unstable) == len(pairs) else InexactCause.PROCESS_IDENTITY


def _are_same(pair: tuple[RecordedRun, RecordedRun]) -> bool:
    return pair[1].parting is None


def _suspected(recorder: RunRecorder, unstable: RecordedRun, findings: list[str]) -> InexactCause | None:
    count = min(len(unstable.microbatches), 2 * (unstable.parting.index if unstable.parting else 0) + 20)
    in_process = Setting(multiprocessing=False)
    for suspect in Suspect:
        with held_still(suspect):
            once = recorder.base(in_process, count, share=0.5)
        with held_still(suspect):
            again = recorder.compared(in_process, once)
        if recorder.is_over:
            return None
        agree = again.parting is None
        findings.append(f"held still, {suspect}: {'the same' if agree else 'still not the same'}")
        if agree:
            return _BY_SUSPECT[suspect]
    return None


def _of_the_setting(
    recorder: RunRecorder, bases: list[RecordedRun], differing: RecordedRun | None, findings: list[str]
) -> InexactCause | None:
    if differing is None:
        return None
    again = recorder.compared(differing.setting, bases[0])
    outcome = "the same" if again.parting is None else "not the same"
    findings.append(f"without a stop, {differing.setting}: {outcome}")
    return None if again.parting is None else InexactCause.SHARED_BETWEEN_SHARDS


def _of_the_stop(
    reference: RecordedRun,
    differing: RecordedRun | None,
    resume: Callable[[], RecordedRun] | None,
    findings: list[str],
) -> InexactCause:
    if differing is None or resume is None:
        # The first pair differed, and neither did when it was run again.
        findings.append("the difference did not show again")
        return InexactCause.NOT_A_FUNCTION
    again = resume()
    if again.parting is None:
        findings.append("resumed once more at the same stop: exact this time")
        return InexactCause.NOT_A_FUNCTION
    findings.append("resumed once more at the same stop: it differs again")
    if _is_reordered(reference, differing, findings):
        return InexactCause.ORDER
    return InexactCause.KEPT_STATE


def _is_reordered(reference: RecordedRun, other: RecordedRun, findings: list[str]) -> bool:
    """Return whether the rest of an epoch holds the same microbatches in another order."""
    expected = list(reference.microbatches[other.first :])
    epoch = expected[0].place.epoch
    digests = [
        [delivered.digest for delivered in run if delivered.place.epoch == epoch]
        for run in (expected, other.microbatches)
    ]
    is_reordered = digests[0] != digests[1] and Counter(digests[0]) == Counter(digests[1])
    if is_reordered:
        findings.append(f"the microbatches of epoch {epoch}, in any order: the same")
    return is_reordered

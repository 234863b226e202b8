"""Every error that the library raises, in one tree.

::

    FkatDataError
      ConfigurationError (ValueError)       an argument or a configuration key is invalid
        ValueLimitError                     a sound value of a file exceeds a limit of Python or of a library
      StateMismatchError (ValueError)       a saved state does not fit the object that loads it
      RankMismatchError (RuntimeError)      ranks that must agree disagree
      StaleIteratorError (RuntimeError)     a newer iterator or a loaded state replaced this iterator
      OutstandingError (RuntimeError)       more microbatches are delivered, and not committed, than may be
      WorkerError (RuntimeError)            a worker failed, other than by an exception in user code
        WorkerDiedError                     its process died
        WorkerStalledError                  it sent nothing for too long
        ReplayMismatchError                 its replacement produced different data
      MemoryLimitError (MemoryError)        a microbatch would exceed the shared memory limit
      ShardError                            a shard cannot be read
        ShardNotFoundError (FileNotFoundError)
        ShardCorruptError
        DownloadError                       a file could not be downloaded from its store
      CacheFullError                        the cache's disk is full, even after eviction
      SampleError (ValueError)              a sample cannot be written
      SkippedSamplesError (RuntimeError)    more samples raised than may be left out

An exception in user code is re-raised unchanged, with notes that name the shard and the microbatch.

Every error here can be pickled: it is rebuilt from ``args``, because errors cross processes. Each can also be made from
its message alone, ``type(error)(str(error))``, as programs do that send errors as text: its fields are then None.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fkat_data.errors.wording import made_from_text, shard_name
from fkat_data.runtime.interruption import genuine

_LONGEST_VALUE = 200
# Of SIGKILL, a name that Windows lacks: the system's killer sends it.
_OUT_OF_MEMORY = -9


def _shown(value: object) -> "_Shown":
    if isinstance(value, _Shown):
        return value
    try:
        text = value if isinstance(value, str) and value.startswith("<") else repr(value)
    except genuine(Exception) as error:
        # A broken repr() must not hide the error that shows the value.
        text = f"<{type(value).__name__}, whose repr() raises {type(error).__name__}>"
    return _Shown(text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…")


class FkatDataError(Exception):
    """Base class of every error that the library raises."""


@made_from_text
class ConfigurationError(FkatDataError, ValueError):
    """An argument or a configuration key is invalid. Raised as early as the library can know.

    Args:
        argument: Name of the argument, as the caller wrote it.
        value: The value that the caller passed.
        expected: Description of a valid value.
    """

    def __init__(self, argument: str, value: object, expected: str) -> None:
        self.argument = argument
        self.value: _Shown = _shown(value)
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.argument} = {self.value}: expected {self.expected}"


class ValueLimitError(ConfigurationError):
    """A value in a file is sound, and exceeds a limit of Python or of a library. ``on_sample_error`` can leave it out."""


@made_from_text
class StateMismatchError(FkatDataError, ValueError):
    """A saved state does not fit the object that loads it.

    Args:
        field: Field of the state that differs.
        saved: Value of the field in the state.
        present: Value that the loading object has or expects.
        hint: Likely cause, or what to do about it.
    """

    def __init__(self, field: str, saved: object, present: object, hint: str = "") -> None:
        self.field = field
        self.saved: _Shown = _shown(saved)
        self.present: _Shown = _shown(present)
        self.hint = hint

    def __str__(self) -> str:
        text = f"state field {self.field!r}: saved {self.saved}, expected {self.present}"
        return f"{text}; {self.hint}" if self.hint else text


@made_from_text
@dataclass(eq=False, repr=False)
class RankMismatchError(FkatDataError, RuntimeError):
    """Ranks of one job disagree on a value that must be equal.

    Args:
        field: What they disagree on.
        found: The value of each rank.
    """

    field: str
    found: str

    def __str__(self) -> str:
        return f"ranks disagree on {self.field}: {self.found}"


class StaleIteratorError(FkatDataError, RuntimeError):
    """``next`` was called on an iterator that a newer one, a loaded state or ``close()`` has ended."""


@made_from_text
@dataclass(eq=False, repr=False)
class OutstandingError(FkatDataError, RuntimeError):
    """Microbatches that were delivered, and neither committed nor released, forbid to deliver the next one.

    Args:
        num_outstanding: How many.
        epoch: The epoch of the oldest of them.
        step: Its step.
        limit: What they exceed, in words.
    """

    num_outstanding: int
    epoch: int
    step: int
    limit: str

    def __str__(self) -> str:
        return (
            f"{self.num_outstanding:,} delivered microbatches are outstanding, the oldest at step {self.step} of epoch "
            f"{self.epoch}: {self.limit}. Call commit(ticket) or release(ticket) for some of them first"
        )


class WorkerError(FkatDataError, RuntimeError):
    """Base class of worker failures that no exception in user code explains."""


@made_from_text
@dataclass(eq=False, repr=False)
class WorkerDiedError(WorkerError):
    """A worker's process died.

    Args:
        pid: Process id of the worker.
        exit_code: Exit code as in ``subprocess``: negative for a signal; ``None`` if unknown.
        shard: Shard that the worker was producing.
        epoch: Epoch of that shard.
        microbatch_index: First microbatch of the shard that the trainer has not received.
        last_words: Last lines that the worker wrote to stderr.
        host: Name of the worker's machine.
        num_restarts: Dead workers that were replaced in this epoch before.
    """

    pid: int
    exit_code: int | None
    shard: Any
    epoch: int
    microbatch_index: int
    last_words: str = ""
    host: str = ""
    num_restarts: int = 0

    def __str__(self) -> str:
        text = (
            f"worker {self.pid}{_on(self.host)} {_end(self.exit_code)} while producing microbatch "
            f"{self.microbatch_index} of {shard_name(self.shard, _shown)} in epoch {self.epoch}"
        )
        if self.num_restarts:
            text += f", after {self.num_restarts} restart{'' if self.num_restarts == 1 else 's'} in this epoch"
        if self.exit_code == _OUT_OF_MEMORY:
            text += ". This signal often means that memory ran out"
        return f"{text}. Its last output on stderr:\n{self.last_words}" if self.last_words else text


@made_from_text
@dataclass(eq=False, repr=False)
class WorkerStalledError(WorkerError):
    """A worker sent nothing for ``stall_timeout_s`` while the trainer waited, and was killed.

    Args:
        pid: Process id of the worker.
        waited_s: How long the trainer waited, in seconds.
        shard: Shard that the worker was producing.
        epoch: Epoch of that shard.
        microbatch_index: Microbatch that the trainer waited for.
        stack: Python stacks of the worker at the end of the wait.
        host: Name of the worker's machine.
    """

    pid: int
    waited_s: float
    shard: Any
    epoch: int
    microbatch_index: int
    stack: str
    host: str = ""

    def __str__(self) -> str:
        return (
            f"worker {self.pid}{_on(self.host)} sent nothing for {self.waited_s:.1f} s (stall_timeout_s) while the "
            f"trainer waited for microbatch {self.microbatch_index} of {shard_name(self.shard, _shown)} in epoch "
            f"{self.epoch}. Its Python stacks:\n{self.stack}"
        )


@made_from_text
@dataclass(eq=False, repr=False)
class ReplayMismatchError(WorkerError):
    """The replacement of a dead worker produced different data than the dead worker.

    The dataset is not a function of the position, so the run cannot continue as if the worker had lived.

    Args:
        shard: Shard that was produced again.
        epoch: Epoch of that shard.
        microbatch_index: Microbatch that differed when it was produced again.
    """

    shard: Any
    epoch: int
    microbatch_index: int

    def __str__(self) -> str:
        return (
            f"after a worker's restart, microbatch {self.microbatch_index} of {shard_name(self.shard, _shown)} in epoch "
            f"{self.epoch} differs from the one delivered before: the dataset uses randomness other than the global "
            "generators of python, numpy and torch, or keeps state between microbatches (run `fkat-data verify-resume`)"
        )


def _on(host: str) -> str:
    return f" on {host}" if host else ""


def _end(exit_code: int | None) -> str:
    if exit_code is None:
        return "died"
    if exit_code < 0:
        return f"was killed by signal {-exit_code}{_name_of(-exit_code)}"
    return f"ended with exit code {exit_code}"


def _name_of(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except genuine(ValueError):  # a real-time signal
        return ""


@made_from_text
@dataclass(eq=False, repr=False)
class MemoryLimitError(FkatDataError, MemoryError):
    """The next microbatch would exceed the limit of shared memory.

    Args:
        limit_bytes: Limit of one worker.
        needed_bytes: Size of the next microbatch.
        held_bytes: Memory that is in use and cannot be freed.
        reason: What holds it, and what would help.
    """

    limit_bytes: int
    needed_bytes: int
    held_bytes: int
    reason: str

    def __str__(self) -> str:
        needed = f"needs {self.needed_bytes:,} bytes of shared memory"
        if self.needed_bytes > self.limit_bytes:
            return f"one microbatch {needed}, more than the limit of {self.limit_bytes:,}: {self.reason}"
        in_use = f"but {self.held_bytes:,} of the worker's {self.limit_bytes:,} are in use"
        return f"the next microbatch {needed}, {in_use}: {self.reason}"


@made_from_text
class ShardError(FkatDataError):
    """A shard cannot be read.

    Args:
        shard: Shard, or file of it.
        reason: What was expected and what was found.
    """

    def __init__(self, shard: Any, reason: str) -> None:
        self.shard = shard
        self.reason = reason
        super().__init__(shard, reason)

    def __str__(self) -> str:
        return f"shard {_shown(self.shard)}: {self.reason}"


class ShardNotFoundError(ShardError, FileNotFoundError):
    """A shard does not exist."""


@made_from_text
class ShardCorruptError(ShardError):
    """A shard's content is damaged or inconsistent.

    Args:
        shard: Shard, or file of it.
        reason: What was expected and what was found.
        field: Part of the file that is wrong, such as ``shards[3].samples`` or ``row 7, column 'image'``.
        expected: Description of a valid value.
        found: Value in the file.
    """

    def __init__(
        self, shard: Any, reason: str, field: str | None = None, expected: str | None = None, found: object = None
    ) -> None:
        super().__init__(shard, reason)
        self.field = field
        self.expected = expected
        # Keeps only the text: the value itself may be large, or not picklable.
        self.found: _Shown | None = None if field is None else _shown(found)

    @classmethod
    def of_field(cls, file: object, field: str, expected: str, found: object) -> "ShardCorruptError":
        """Return the error for one field of a file.

        Args:
            file: Path of the file.
            field: Part of the file that is wrong.
            expected: Description of a valid value.
            found: Value in the file.
        """
        return cls(str(file), f"{field} is {_shown(found)}: expected {expected}", field, expected, found)


@made_from_text
class DownloadError(ShardError):
    """A file could not be downloaded: every attempt failed, or one failed in a way that a retry cannot fix.

    Args:
        shard: URL of the file, without secrets.
        causes: For each attempt, what went wrong and how long it took in seconds.
        is_refused: Whether a retry would fail the same way, as after status 403.
    """

    def __init__(self, shard: Any, causes: Iterable[tuple[str, float]], is_refused: bool = False) -> None:
        self.is_refused = is_refused
        self.causes: tuple[tuple[str, float], ...] = tuple((str(text), float(seconds)) for text, seconds in causes)
        attempts = "1 attempt" if len(self.causes) == 1 else f"{len(self.causes)} attempts"
        lines = [f"  {number}. {text} ({spent_s:.1f} s)" for number, (text, spent_s) in enumerate(self.causes, start=1)]
        super().__init__(shard, "\n".join([f"download failed after {attempts}:", *lines]))

    @property
    def num_attempts(self) -> int:
        """Number of attempts made; 0 for an error that was made from its message."""
        return len(self.causes or ())


@made_from_text
@dataclass(eq=False, repr=False)
class CacheFullError(FkatDataError):
    """The cache's disk is full or the user's quota is used up, and evicting files did not help.

    Args:
        path: File that could not be created.
        needed_bytes: Size of the file.
        free_bytes: Free space on that disk.
        reason: Message of the operating system.
    """

    path: str
    needed_bytes: int
    free_bytes: int
    reason: str

    def __str__(self) -> str:
        return (
            f"no space for {self.path}: it needs {self.needed_bytes:,} bytes, {self.free_bytes:,} are free on its "
            f"disk, and evicting files from the cache did not help ({self.reason})"
        )


@made_from_text
class SampleError(FkatDataError, ValueError):
    """A sample cannot be written.

    Args:
        column: Column of the invalid value.
        value: The value that the caller passed.
        expected: Description of a valid value.
    """

    def __init__(self, column: str, value: object, expected: str) -> None:
        self.column = column
        self.value: _Shown = _shown(value)
        self.expected = expected

    def __str__(self) -> str:
        return f"column {self.column!r}, value {self.value}: expected {self.expected}"


@made_from_text
@dataclass(eq=False, repr=False)
class SkippedSamplesError(FkatDataError, RuntimeError):
    """More samples of an epoch raised than ``max_skipped_samples`` lets a loader leave out.

    Args:
        epoch: The epoch.
        num_skipped: Samples of it that were left out on this rank, and on all ranks before their number changed.
        limit: ``max_skipped_samples``.
        last: What the last one of them raised.
    """

    epoch: int
    num_skipped: int
    limit: int
    last: str

    def __str__(self) -> str:
        return (
            f"{self.num_skipped:,} samples of epoch {self.epoch} were left out, and at most {self.limit:,} may be "
            f"(max_skipped_samples). The last: {self.last}"
        )


class _Shown(str):
    """Text of a value in a message; prints without a second pair of quotes."""

    __slots__ = ()

"""Every error that the library raises, in one tree.

::

    FkatDataError
      ConfigurationError (ValueError)       an argument or a configuration that cannot work
      StateMismatchError (ValueError)       a saved state that belongs to another plan
      RankMismatchError (RuntimeError)      ranks that must agree do not
      StaleIteratorError (RuntimeError)     an iterator that a newer one, or a loaded state, has replaced
      WorkerError                           a worker failed in a way that is not a user's own exception
        WorkerDiedError                     its process is gone
        WorkerStalledError                  it was silent for too long
        ReplayMismatchError                 started again, it made other data than before
      MemoryLimitError (MemoryError)        shared memory would exceed the limit
      ShardError                            a shard's data is at fault
        ShardNotFoundError (FileNotFoundError)
        ShardCorruptError
        DownloadError                       a file that its store did not hand over
      CacheFullError                        no room on the disk, whatever is removed from the cache
      SampleError (ValueError)              a sample that cannot be written

A user's own exception is none of these: it arrives as itself, with notes that name shard and microbatch.

Every error here is rebuilt from ``args``, so that it survives a pickle: it crosses processes.
"""

from collections.abc import Iterable
from typing import Any

__all__ = [
    "CacheFullError",
    "ConfigurationError",
    "DownloadError",
    "FkatDataError",
    "MemoryLimitError",
    "RankMismatchError",
    "ReplayMismatchError",
    "SampleError",
    "ShardCorruptError",
    "ShardError",
    "ShardNotFoundError",
    "StaleIteratorError",
    "StateMismatchError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerStalledError",
]

_LONGEST_VALUE = 200


def _shown(value: object) -> str:
    try:
        text = value if isinstance(value, str) and value.startswith("<") else repr(value)
    except Exception as error:  # noqa: BLE001 - a value that cannot be shown must not hide what is wrong with it
        text = f"<{type(value).__name__}, whose repr() raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


class FkatDataError(Exception):
    """Base of every error that the library raises."""


class ConfigurationError(FkatDataError, ValueError):
    """An argument or a configuration that cannot work, found at the earliest moment it can be known.

    Args:
        argument: Name of the argument, as the caller wrote it.
        value: What was given.
        expected: What would do.
    """

    def __init__(self, argument: str, value: object, expected: str) -> None:
        self.argument = argument
        self.value = _Shown(_shown(value)) if not isinstance(value, _Shown) else value
        self.expected = expected
        super().__init__(argument, self.value, expected)

    def __str__(self) -> str:
        return f"{self.argument} = {self.value}: expected {self.expected}"


class StateMismatchError(FkatDataError, ValueError):
    """A saved state that does not belong to the present plan.

    Args:
        field: The field of the state that differs.
        saved: Its value in the state.
        present: The value that this loader has.
        hint: What to do about it.
    """

    def __init__(self, field: str, saved: object, present: object, hint: str = "") -> None:
        self.field = field
        self.saved = _Shown(_shown(saved)) if not isinstance(saved, _Shown) else saved
        self.present = _Shown(_shown(present)) if not isinstance(present, _Shown) else present
        self.hint = hint
        super().__init__(field, self.saved, self.present, hint)

    def __str__(self) -> str:
        text = f"state field {self.field!r}: saved {self.saved}, present {self.present}"
        return f"{text}; {self.hint}" if self.hint else text


class RankMismatchError(FkatDataError, RuntimeError):
    """Ranks of one job that must agree do not.

    Args:
        field: What they disagree on.
        found: Who has which value.
    """

    def __init__(self, field: str, found: str) -> None:
        self.field = field
        self.found = found
        super().__init__(field, found)

    def __str__(self) -> str:
        return f"ranks disagree on {self.field}: {self.found}"


class StaleIteratorError(FkatDataError, RuntimeError):
    """An iterator was asked for more after a newer one, a loaded state or ``close()`` had replaced it."""


class WorkerError(FkatDataError):
    """A worker failed in a way that cannot be told by the user's own exception."""


class WorkerDiedError(WorkerError):
    """A worker's process is gone.

    Args:
        pid: Its process id.
        exit_code: As ``subprocess`` gives it: negative for a signal; ``None`` if it could not be learned.
        shard: The shard it was producing.
        epoch: The epoch of that shard.
        microbatch_index: The first microbatch of the shard that was not received.
        last_words: The last lines that it wrote to stderr.
        host: The machine's name.
        num_restarts: Workers of this epoch that were started in the place of dead ones before.
    """

    def __init__(
        self,
        pid: int,
        exit_code: int | None,
        shard: Any,
        epoch: int,
        microbatch_index: int,
        last_words: str = "",
        host: str = "",
        num_restarts: int = 0,
    ) -> None:
        self.pid = pid
        self.exit_code = exit_code
        self.shard = shard
        self.epoch = epoch
        self.microbatch_index = microbatch_index
        self.last_words = last_words
        self.host = host
        self.num_restarts = num_restarts
        super().__init__(pid, exit_code, shard, epoch, microbatch_index, last_words, host, num_restarts)

    def __str__(self) -> str:
        text = (
            f"worker {self.pid}{_on(self.host)} {_end(self.exit_code)} while producing microbatch "
            f"{self.microbatch_index} of shard {_shown(self.shard)} in epoch {self.epoch}"
        )
        if self.num_restarts:
            text += f", after {self.num_restarts} restarts in this epoch"
        return f"{text}. Its last words:\n{self.last_words}" if self.last_words else text


class WorkerStalledError(WorkerError):
    """A worker was silent for longer than ``stall_timeout_s`` while the trainer waited for it; it was killed.

    Args:
        pid: Its process id.
        waited_s: Seconds that the trainer waited.
        shard: The shard it was producing.
        epoch: The epoch of that shard.
        microbatch_index: The microbatch that was waited for.
        stack: The worker's Python stacks at the end of the wait.
        host: The machine's name.
    """

    def __init__(
        self, pid: int, waited_s: float, shard: Any, epoch: int, microbatch_index: int, stack: str, host: str = ""
    ) -> None:
        self.pid = pid
        self.waited_s = waited_s
        self.shard = shard
        self.epoch = epoch
        self.microbatch_index = microbatch_index
        self.stack = stack
        self.host = host
        super().__init__(pid, waited_s, shard, epoch, microbatch_index, stack, host)

    def __str__(self) -> str:
        return (
            f"worker {self.pid}{_on(self.host)} gave nothing for {self.waited_s:.1f} s (stall_timeout_s): microbatch "
            f"{self.microbatch_index} of shard {_shown(self.shard)} in epoch {self.epoch} was waited for. "
            f"What it was doing:\n{self.stack}"
        )


class ReplayMismatchError(WorkerError):
    """A worker that was started in a dead one's place made other data than the dead one had.

    So what would follow is not what would have followed without the death: the dataset is not a function of the
    position.

    Args:
        shard: The shard.
        epoch: The epoch of that shard.
        microbatch_index: The microbatch that was made twice, and differed.
    """

    def __init__(self, shard: Any, epoch: int, microbatch_index: int) -> None:
        self.shard = shard
        self.epoch = epoch
        self.microbatch_index = microbatch_index
        super().__init__(shard, epoch, microbatch_index)

    def __str__(self) -> str:
        return (
            f"after a worker's restart, microbatch {self.microbatch_index} of shard {_shown(self.shard)} in epoch "
            f"{self.epoch} differs from the one that was delivered: the dataset draws from something besides the "
            "global generators, or keeps state between microbatches (see `fkat-data verify-resume`)"
        )


def _on(host: str) -> str:
    return f" on {host}" if host else ""


def _end(exit_code: int | None) -> str:
    if exit_code is None:
        return "is gone"
    if exit_code < 0:
        return f"was killed by signal {-exit_code}"
    return f"ended with exit code {exit_code}"


class MemoryLimitError(FkatDataError, MemoryError):
    """Shared memory would exceed the limit.

    Args:
        limit_bytes: The limit of one worker.
        needed_bytes: What the next microbatch needs.
        held_bytes: What is held and cannot be given back.
        reason: Who holds it, and what would help.
    """

    def __init__(self, limit_bytes: int, needed_bytes: int, held_bytes: int, reason: str) -> None:
        self.limit_bytes = limit_bytes
        self.needed_bytes = needed_bytes
        self.held_bytes = held_bytes
        self.reason = reason
        super().__init__(limit_bytes, needed_bytes, held_bytes, reason)

    def __str__(self) -> str:
        return (
            f"the next microbatch needs {self.needed_bytes:,} bytes of shared memory, {self.held_bytes:,} of the "
            f"worker's {self.limit_bytes:,} are held: {self.reason}"
        )


class ShardError(FkatDataError):
    """A shard's data is at fault.

    Args:
        shard: The shard.
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


class ShardCorruptError(ShardError):
    """A shard's content contradicts what it says of itself.

    Args:
        shard: The shard, or the file.
        reason: What was expected and what was found.
        field: The part of the file that is wrong, such as ``shards[3].samples`` or ``row 7, column 'image'``.
        expected: What would have been right.
        found: What is there.
    """

    def __init__(
        self, shard: Any, reason: str, field: str | None = None, expected: str | None = None, found: object = None
    ) -> None:
        super().__init__(shard, reason)
        self.field = field
        self.expected = expected
        # Shown at once: the value itself may be large, or not picklable.
        self.found = None if field is None else found if isinstance(found, _Shown) else _Shown(_shown(found))
        self.args = (shard, reason, field, expected, self.found)

    @classmethod
    def of_field(cls, file: object, field: str, expected: str, found: object) -> "ShardCorruptError":
        """Return the error for one field of a file.

        Args:
            file: Path of the file.
            field: What of it is wrong.
            expected: What would have been right.
            found: What is there.
        """
        return cls(str(file), f"{field} is {_shown(found)}: expected {expected}", field, expected, found)


class DownloadError(ShardError):
    """A file did not arrive from its store: each attempt failed, or one failed in a way that another would repeat.

    Args:
        shard: URL of the file, without secrets.
        causes: What went wrong and how many seconds it took, attempt by attempt.
        is_refused: Whether the last failure was one that another attempt would repeat, such as status 403.
    """

    def __init__(self, shard: Any, causes: Iterable[tuple[str, float]], is_refused: bool = False) -> None:
        self.is_refused = is_refused
        self.causes = tuple((str(text), float(seconds)) for text, seconds in causes)
        attempts = "1 attempt" if len(self.causes) == 1 else f"{len(self.causes)} attempts"
        lines = [f"  {number}. {text} ({spent_s:.1f} s)" for number, (text, spent_s) in enumerate(self.causes, start=1)]
        super().__init__(shard, "\n".join([f"not downloaded in {attempts}:", *lines]))
        self.args = (shard, self.causes, is_refused)

    @property
    def num_attempts(self) -> int:
        """Number of attempts that were made."""
        return len(self.causes)


class CacheFullError(FkatDataError):
    """The disk that a cache is on is full, or the user's quota is used up, and removing files did not help.

    Args:
        path: The file that could not be made.
        needed_bytes: What it needs.
        free_bytes: What is free on that disk.
        reason: What the system said.
    """

    def __init__(self, path: str, needed_bytes: int, free_bytes: int, reason: str) -> None:
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        self.reason = reason
        super().__init__(path, needed_bytes, free_bytes, reason)

    def __str__(self) -> str:
        return (
            f"no room for {self.path}: it needs {self.needed_bytes:,} bytes, {self.free_bytes:,} are free on that "
            f"disk, and removing what may be removed from the cache did not help ({self.reason})"
        )


class SampleError(FkatDataError, ValueError):
    """A sample that cannot be written.

    Args:
        column: The column that its value belongs to.
        value: What was given.
        expected: What would do.
    """

    def __init__(self, column: str, value: object, expected: str) -> None:
        self.column = column
        self.value = _Shown(_shown(value)) if not isinstance(value, _Shown) else value
        self.expected = expected
        super().__init__(column, self.value, expected)

    def __str__(self) -> str:
        return f"column {self.column!r}, value {self.value}: expected {self.expected}"


class _Shown(str):
    """A value as it is shown in a message: it prints without a second pair of quotes."""

    __slots__ = ()

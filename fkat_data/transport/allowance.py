"""How far a worker may go, written into memory that it shares with its trainer.

The trainer writes each new allowance there, which costs nothing. A worker that has used its allowance up sleeps, and
says in the same memory from which allowance on it is to be woken, so that one message serves for several microbatches.
"""

import threading

__all__ = ["AllowanceBoard"]

# Places of the numbers: two are the trainer's; two, in another cache line, are the worker's.
_TICKET, _ALLOWANCE, _WANTED, _SLEEP = 0, 1, 8, 9


class AllowanceBoard:
    """One task's allowance at a time, and what a sleeping worker waits for. Its numbers are 0 in the beginning.

    Args:
        numbers: The memory.
    """

    def __init__(self, numbers: "memoryview[int]") -> None:
        self._numbers = numbers
        self._woken_from = 0
        self._num_sleeps = 0
        # To take a lock keeps a processor from reading ahead of what it has written.
        self._fence = threading.Lock()

    def publish(self, ticket: int, allowance: int) -> bool:
        """Set a task's allowance, on the trainer's side; return whether to wake the worker now."""
        numbers = self._numbers
        if numbers[_TICKET] != ticket + 1:
            numbers[_ALLOWANCE] = 0  # the worker never reads the old task's beside the new ticket
            numbers[_TICKET] = ticket + 1
        numbers[_ALLOWANCE] = allowance
        with self._fence:
            pass
        return numbers[_WANTED] <= allowance and self.is_asleep()

    @property
    def is_writer_asleep(self) -> bool:
        """Whether the worker waits for an allowance."""
        return self._numbers[_WANTED] != 0

    def is_asleep(self) -> bool:
        """Return whether the worker sleeps, on the trainer's side; once for each sleep: the caller wakes it."""
        if not self._numbers[_WANTED] or self._numbers[_SLEEP] == self._woken_from:
            return False
        self._woken_from = self._numbers[_SLEEP]
        return True

    def allowance(self, ticket: int) -> int:
        """Return a task's allowance, on the worker's side; 0 if none was set."""
        numbers = self._numbers
        return numbers[_ALLOWANCE] if numbers[_TICKET] == ticket + 1 else 0

    def sleep(self, wanted: int) -> None:
        """Ask to be woken from an allowance on, on the worker's side; look at the allowance once more after that."""
        self._num_sleeps += 1
        self._numbers[_SLEEP] = self._num_sleeps
        self._numbers[_WANTED] = wanted
        with self._fence:
            pass

    def rise(self) -> None:
        """Ask for it no longer, on the worker's side."""
        self._numbers[_WANTED] = 0

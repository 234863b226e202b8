"""The look-ahead where the user sets no number: it grows where that helps, and shrinks where nothing is lost.

The look-ahead is full when as many microbatches are ready as it allows: the workers then have nothing to do.

- If the trainer waits, and the look-ahead was full shortly before, the workers could have made what is missing now: the
  look-ahead doubles.
- If the trainer waits, and it was not full before, the workers are too slow, and no look-ahead helps. It was full once
  among many such waits: the trainer paused, and that does not count.
- Microbatches that lay ready for long, and were not needed, are surplus: the look-ahead shrinks by half of them. If the
  trainer waits soon after, that was a mistake, and the next shrinking comes later. So a rare slow microbatch costs a few
  waits in a whole run, not one each time.
"""

_LEAST = 4
_MOST = 1 << 16
# Less than this is not worth counting, and small microbatches need many ahead to be fast.
_LEAST_BYTES = 4 << 20
_SMALLEST_BYTES = 4 << 10
_SHORTEST_TERM, _LONGEST_TERM = 256, 1 << 16
_SHORTEST_STRIDE = 4
# Full twice, this many waits apart, is a coincidence.
_NEAR = 128
# The weight of the latest size in the mean: one small microbatch says nothing about those after it.
_LATEST = 1 / 8


class LookAhead:
    """The number of microbatches that may be made and not delivered.

    Args:
        num_workers: Workers that make a task together: each needs one in work and one behind it.
    """

    def __init__(self, num_workers: int = 1) -> None:
        self._least = max(_LEAST, 2 * num_workers)
        self.size: int = self._least
        """The number, for now."""
        self._term = _SHORTEST_TERM
        self._has_shrunk = False
        self._begin_term()
        self._was_full = False
        self._floor = self._least
        self._mean_bytes: float | None = None
        self._num_vain = self._num_since_full = 0

    @property
    def stride(self) -> int:
        """Deliveries from one that is worth learning from to the next: it is no part of a microbatch's path."""
        return max(_SHORTEST_STRIDE, self.size // 4)

    def deliver(self, num_ready: int, size_bytes: int) -> None:
        """Learn that a microbatch was delivered without a wait: of each ``stride`` of them, from one.

        Args:
            num_ready: Microbatches that were ready, this one included.
            size_bytes: Its size.
        """
        mean_bytes = size_bytes if self._mean_bytes is None else self._mean_bytes
        self._mean_bytes = mean_bytes + _LATEST * (size_bytes - mean_bytes)
        least = self._floor = max(self._least, int(_LEAST_BYTES / max(self._mean_bytes, _SMALLEST_BYTES)))
        if self.size < least:
            self.size = least
        elif num_ready > self.size - max(1, self.size // 4):
            self._was_full = True
        self._fewest_ready = min(self._fewest_ready, num_ready)
        self._num_left -= 1
        if not self._num_left:
            surplus = self._fewest_ready - 1
            if surplus > 1 and self.size > least:
                self.size = max(least, self.size - surplus // 2)
                self._has_shrunk = True
            self._begin_term()

    def wait(self, *, is_idle_ahead: bool = False) -> None:
        """Learn that the trainer waits.

        Args:
            is_idle_ahead: Whether a worker stands still because later shards are as far ahead as they may be.
        """
        self._num_since_full += 1
        is_pause = self._num_since_full > _NEAR
        if self._was_full:
            self._num_since_full = 0
        if is_idle_ahead or (self._was_full and not is_pause):
            self.size = min(2 * self.size, _MOST)
            if self._has_shrunk:
                self._term = min(2 * self._term, _LONGEST_TERM)
            self._has_shrunk = False
            self._num_vain = 0
        else:
            # The workers are the limit: what it has grown by in a pause of the trainer is of no use.
            self._num_vain += 1
            if self._num_vain >= _SHORTEST_TERM:
                self._num_vain = 0
                self.size = max(min(self.size, self._floor), self.size // 2)
        self._was_full = False
        self._begin_term()

    def _begin_term(self) -> None:
        self._num_left = self._term
        self._fewest_ready = _MOST

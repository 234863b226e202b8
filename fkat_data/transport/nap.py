"""A nap of a reader that waits: a sleep for a moment instead of until the next message, which wakes it each time."""

__all__ = ["Naps"]

# Messages that come faster than this are worth a nap: several have arrived at its end.
_BRISK_S = 150e-6
_NUM_PER_NAP = 4
_LONGEST_NAP_S = 150e-6
# What the kernel adds to a sleep.
_SLACK_S = 55e-6
_SHORTEST_SLEEP_S = 5e-6
# Without naps after one at whose end the writer waited: fewer where that is rare, as beside busy processes.
_FEWEST_WAITS, _MOST_WAITS = 16, 256


class Naps:
    """Learns from the moments at which everything was read how fast messages come."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._num_read = 0
        self._without_naps = 0
        self._num_waits = _FEWEST_WAITS
        self._is_napping = False

    def duration_s(self, now_s: float, num_read: int) -> float:
        """Return how long to sleep before asking for a wake-up; 0: not at all.

        Args:
            now_s: The time: everything that has arrived was read.
            num_read: Messages that were read so far.
        """
        passed_s, num_new = now_s - self._began_s, num_read - self._num_read
        self._began_s, self._num_read = now_s, num_read
        if self._without_naps:
            self._without_naps -= 1
            return 0.0
        if self._is_napping:
            self._num_waits = max(_FEWEST_WAITS, self._num_waits // 2)
        self._is_napping = False
        if passed_s >= _BRISK_S * num_new:
            return 0.0
        self._is_napping = True
        return max(_SHORTEST_SLEEP_S, min(_LONGEST_NAP_S, _NUM_PER_NAP * passed_s / num_new) - _SLACK_S)

    def overslept(self) -> None:
        """Take no naps for some time: the writer waited for the reader at the end of one."""
        self._without_naps, self._is_napping = self._num_waits, False
        self._num_waits = min(2 * self._num_waits, _MOST_WAITS)

"""Calls that wait for one another, on a machine of any load."""

import threading

_TURNS, _TURN_S = 1200, 0.05


class Meeting:
    """Where calls wait until as many are there at the same time; then the next ones meet.

    It counts the turns that a waiting call gets, not seconds: on a busy machine all calls wait for their turns, and one
    that stood still has lost a turn alone.

    Args:
        number: How many meet.
    """

    def __init__(self, number):
        self._number = number
        self._num_arrived = 0
        self._changed = threading.Condition()

    def wait(self):
        """Return once the others are there.

        Raises:
            AssertionError: They do not come.
        """
        with self._changed:
            self._num_arrived += 1
            self._changed.notify_all()
            wanted = -(-self._num_arrived // self._number) * self._number
            for _ in range(_TURNS):
                if self._num_arrived >= wanted:
                    return
                self._changed.wait(_TURN_S)
            raise AssertionError(f"{self._num_arrived} of {wanted} calls came")

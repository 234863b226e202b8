"""Where microbatches are delivered: the mover in use, which the caller may replace."""

from fkat_data.device.host import Mover


class Placement:
    """Holds the mover that takes microbatches to the caller's device.

    Args:
        mover: The first one.
    """

    def __init__(self, mover: Mover) -> None:
        self.mover: Mover = mover
        """Moves the next microbatch."""
        self._copied_before_s = 0.0

    @property
    def copied_s(self) -> float:
        """Seconds in which copies were under way, those by earlier movers included."""
        return self._copied_before_s + self.mover.copied_s

    def use(self, mover: Mover) -> None:
        """Move by another mover from the next microbatch on."""
        self._copied_before_s = self.copied_s
        self.mover = mover

    def release(self) -> None:
        """Wait for the copies under way, and release the memory that they read."""
        self.mover.wait()

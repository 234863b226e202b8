"""The cursor: the one owner of the position. What it says is what was delivered, and nothing else."""

from fkat_data.position import START, Position

__all__ = ["Cursor"]


class Cursor:
    """Where the caller is.

    Attributes:
        position: Everything before it was delivered, nothing from it on.
    """

    def __init__(self) -> None:
        self.position: Position = START
        self._is_loaded = False

    def load(self, position: Position) -> None:
        """Go to a saved position; the next iteration begins there."""
        self.position = position
        self._is_loaded = True

    def start(self) -> Position:
        """Return where an iteration that begins now starts: an epoch that was left early is not taken up again."""
        epoch = self.position.epoch
        if self.position != Position(epoch, 0, 0, 0) and not self._is_loaded:
            self.position = self.position.after_epoch()
        return self.position

    def deliver(self, *, is_last_in_shard: bool, is_last_shard: bool) -> None:
        """Count one microbatch as delivered."""
        self._is_loaded = False
        position = self.position.after_microbatch()
        self.position = position.after_shard(is_last_shard=is_last_shard) if is_last_in_shard else position

    def pass_shard(self, *, is_last_shard: bool) -> None:
        """Count the current shard as delivered: it has nothing (more) to give."""
        self.position = self.position.after_shard(is_last_shard=is_last_shard)

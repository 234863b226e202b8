"""The cursor: the only owner of the position, which counts delivered microbatches."""

from fkat_data.position import START, Position

__all__ = ["Cursor"]


class Cursor:
    """Tracks the caller's position.

    Attributes:
        position: Position of the next microbatch; all before it were delivered.
    """

    def __init__(self) -> None:
        self.position: Position = START
        self._is_loaded = False

    def load(self, position: Position) -> None:
        """Go to a saved position; the next iteration begins there."""
        self.position = position
        self._is_loaded = True

    def start(self) -> Position:
        """Start an iteration and return its first position. An epoch that was left early is skipped."""
        epoch = self.position.epoch
        if self.position != Position(epoch, 0, 0, 0) and not self._is_loaded:
            self.position = self.position.after_epoch()
        return self.position

    def deliver(self, *, is_last_in_shard: bool, is_last_shard: bool) -> None:
        """Count one microbatch as delivered."""
        self._is_loaded = False
        epoch, shard, microbatch, step = self.position
        position = Position(epoch, shard, microbatch + 1, step + 1)
        self.position = position.after_shard(is_last_shard=is_last_shard) if is_last_in_shard else position

    def pass_epoch(self) -> None:
        """Count the rest of the epoch as delivered."""
        self.position = self.position.after_epoch()

    def pass_shard(self, *, is_last_shard: bool) -> None:
        """Count the current shard as delivered, because it has no more microbatches."""
        self.position = self.position.after_shard(is_last_shard=is_last_shard)

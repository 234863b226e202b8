"""A writer's progress bar."""

from typing import Any

from fkat_data.requirement import required

__all__ = ["Progress"]


class Progress:
    """A progress bar of tqdm, which can be off.

    Args:
        is_shown: Whether to show the bar.

    Raises:
        ConfigurationError: The bar needs tqdm, which is not installed.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self._bar: Any = required("tqdm", "streaming").tqdm(unit=" samples") if is_shown else None
        self._num_shards = 0

    def advance(self, num_samples: int, num_shards: int) -> None:
        """Show how many samples and shards are written."""
        if self._bar is None:
            return
        if num_shards != self._num_shards:
            self._num_shards = num_shards
            self._bar.set_postfix(shards=num_shards, refresh=False)
        self._bar.update(num_samples - self._bar.n)

    def close(self) -> None:
        """Stop the bar, and leave its line on the terminal."""
        if self._bar is not None:
            self._bar.close()

"""Lightning's limits of an epoch, computed again when one begins: it computes them once, and epochs may differ in length."""

import math
from collections.abc import Callable
from typing import Any

from fkat_data.interruption import genuine
from fkat_data.lightning.feed_position import is_ours


class EpochLimits:
    """Keeps a Trainer's limits those of the epoch under way.

    Args:
        trainer: The Trainer.
        count: Returns the rounds of the iteration that has begun; raises TypeError where they are not known.
    """

    def __init__(self, trainer: Any, count: Callable[[], int]) -> None:
        self._trainer = trainer
        self._count = count

    def of(self, loaders: list[Any], limits: list[Any]) -> list[Any]:
        """Return the most microbatches to take of each loader in the epoch that begins.

        Args:
            loaders: The Trainer's.
            limits: Those of an earlier epoch, which stay for loaders of others and where a length is not known.
        """
        return [self._limit(loader, limit) for loader, limit in zip(loaders, limits, strict=True)]

    def begin(self) -> None:
        """Tell the Trainer how long the epoch is that has begun, and where in it to validate."""
        trainer = self._trainer
        try:
            num_rounds = self._count()
        except genuine(TypeError):
            return
        trainer.fit_loop.max_batches = num_rounds
        if isinstance(trainer.val_check_interval, float) and isinstance(getattr(trainer, "val_check_batch", None), int):
            trainer.val_check_batch = max(1, int(num_rounds * trainer.val_check_interval))

    def _limit(self, loader: Any, limit: Any) -> Any:
        if not is_ours(loader) or math.isinf(limit):
            return limit
        try:
            length = len(loader)  # type: ignore[arg-type]  # where it has none, that is a TypeError
        except genuine(TypeError):
            return limit
        share = self._trainer.limit_train_batches
        return min(length, share) if isinstance(share, int) else max(1, int(length * share))

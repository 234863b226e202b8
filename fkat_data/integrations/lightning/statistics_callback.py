"""A callback that tells a Trainer's loggers what its loaders do."""

import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fkat_data.integrations.lightning.framework import Flavoured
from fkat_data.observe.statistics import LoaderStatistics

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    Callback = object

_logger = logging.getLogger(__name__)

_NAMES = ("waited_share", "waited_s", "delivered", "produce_s_per_microbatch", "queue_depth")
_PERCENTILE = re.compile(r"(^|_)p\d+(_|$)")


class StatisticsCallback(Flavoured, Callback):
    """Logs the share of the time that training waited for each loader, and what limits it.

    Numbers go to the Trainer's loggers every ``log_every_n_steps`` steps, of the steps since the last time. At the end
    of each epoch, the verdict is a line of the log at level INFO, and a text where the logger takes texts. On rank 0,
    as Lightning's loggers; for loaders that have ``statistics()``.

    Args:
        prefix: Comes before the names: ``loader/waited_share``. Of several loaders, each has its number besides:
            ``loader/1/waited_share``.
    """

    base_name = "Callback"

    def __init__(self, prefix: str = "loader") -> None:
        super().__init__()
        self._prefix = prefix
        self._before: dict[str, LoaderStatistics] = {}
        self._begun: dict[str, LoaderStatistics] = {}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self._begun = dict(self._statistics(trainer))
        self._before = dict(self._begun)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the numbers since the last time, every ``log_every_n_steps`` steps."""
        if (batch_idx + 1) % max(1, trainer.log_every_n_steps) or not trainer.loggers:
            return
        metrics: dict[str, float] = {}
        for name, present in self._statistics(trainer):
            since = _since(present, self._before.get(name))
            self._before[name] = present
            numbers = since.as_dict()
            chosen = [key for key in numbers if key in _NAMES or _PERCENTILE.search(key)]
            metrics |= {f"{name}/{key}": numbers[key] for key in chosen}
        if metrics:
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the verdict on the epoch."""
        for name, present in self._statistics(trainer):
            text = str(_since(present, self._begun.get(name)).verdict)
            if trainer.is_global_zero:
                _logger.info("%s, epoch %d: %s", name, trainer.current_epoch, text)
            for logger in trainer.loggers:
                add_text = getattr(logger.experiment, "add_text", None)
                if callable(add_text):
                    add_text(f"{name}/verdict", text, trainer.global_step)

    def _statistics(self, trainer: Any) -> Iterator[tuple[str, LoaderStatistics]]:
        combined = trainer.fit_loop._combined_loader  # noqa: SLF001 - trainer.train_dataloader has them nested
        loaders: list[Any] = [] if combined is None else combined.flattened
        for index, loader in enumerate(loaders):
            statistics = getattr(loader, "statistics", None)
            if callable(statistics):
                found = statistics()
                if isinstance(found, LoaderStatistics):
                    yield (self._prefix if len(loaders) == 1 else f"{self._prefix}/{index}"), found


def _since(present: LoaderStatistics, before: LoaderStatistics | None) -> LoaderStatistics:
    return present if before is None else present.since(before)

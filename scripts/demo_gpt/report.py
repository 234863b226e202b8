"""Show a run's progress: a progress bar, and a summary at the end."""

import time
from pathlib import Path

from tqdm import tqdm

from fkat_data import ShardedDataLoader


class Report:
    """Show a run's loss, its speed, and the share of time that it waited for data.

    Args:
        loader: The loader that delivers the data.
        step: The number of finished steps.
        steps: The number of steps at the end of the run.
        is_shown: Whether to show the bar; True on one rank only.
    """

    def __init__(self, loader: ShardedDataLoader, step: int, steps: int, *, is_shown: bool) -> None:
        self._loader = loader
        self._first_step = step + 1
        self._start_s = time.perf_counter()
        self._num_tokens = 0
        self._loss = float("nan")
        self._first_wait_s: float | None = None
        self._bar = tqdm(
            initial=step, total=steps, unit="step", dynamic_ncols=True, mininterval=0.5, disable=not is_shown
        )

    def after_step(self, loss: float, num_tokens: int) -> None:
        """Show a step's loss.

        Args:
            loss: The mean over the ranks.
            num_tokens: The number of tokens in the step, on all ranks.
        """
        self._num_tokens += num_tokens
        self._loss = loss
        if self._first_wait_s is None:
            self._first_wait_s = self._loader.statistics().waited_s
        self._bar.set_postfix_str(f"loss {loss:.3f}, {self._speed()}", refresh=False)
        self._bar.update()

    def summary(self, step: int, checkpoint: Path | None) -> str:
        """Close the bar, and return a summary of what this process did.

        Args:
            step: The last step.
            checkpoint: The latest checkpoint.
        """
        speed = self._speed()
        self._bar.close()
        if self._first_wait_s is None:
            return f"nothing to do: all {step} steps are done, checkpoint {checkpoint}"
        waited_s = self._loader.statistics().waited_s
        return (
            f"done: steps {self._first_step} to {step}, now {self._loader.step} microbatches into epoch "
            f"{self._loader.epoch}, {self._num_tokens:,} tokens, loss {self._loss:.3f}, {speed} ({waited_s:.2f} s, "
            f"of which {self._first_wait_s:.2f} s for the first microbatch), checkpoint {checkpoint}"
        )

    def _speed(self) -> str:
        elapsed_s = time.perf_counter() - self._start_s
        waited_share = self._loader.statistics().waited_s / elapsed_s
        return f"{self._num_tokens / elapsed_s:,.0f} tokens/s, waited for data {waited_share:.1%}"

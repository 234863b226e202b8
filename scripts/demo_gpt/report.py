"""What a person sees of a run: a progress bar, and a last line."""

import time

from tqdm import tqdm

from fkat_data import ShardedDataLoader


class Report:
    """Shows how a run goes: its loss, its speed, and the share of the time that it waited for data.

    Args:
        loader: The loader that is waited for.
        step: Steps that the run has behind it.
        steps: The step where it ends.
        is_shown: False on all ranks but one.
    """

    def __init__(self, loader: ShardedDataLoader, step: int, steps: int, *, is_shown: bool) -> None:
        self._loader = loader
        self._start_s = time.perf_counter()
        self._num_tokens = 0
        self._waited_at_first_s = 0.0
        self._bar = tqdm(
            initial=step, total=steps, unit="step", dynamic_ncols=True, mininterval=0.5, disable=not is_shown
        )

    def after_step(self, loss: float, num_tokens: int) -> None:
        """Show a step's loss.

        Args:
            loss: The mean over the ranks.
            num_tokens: Tokens of the step, over all ranks.
        """
        self._num_tokens += num_tokens
        if not self._waited_at_first_s:
            self._waited_at_first_s = self._loader.statistics().waited_s
        self._bar.set_postfix_str(f"loss {loss:.3f}, {self._speed()}", refresh=False)
        self._bar.update()

    def summary(self) -> str:
        """End the bar, and return what this process has done."""
        speed = self._speed()
        self._bar.close()
        waited_s = self._loader.statistics().waited_s
        return f"{self._num_tokens:,} tokens, {speed} ({waited_s:.2f} s, {self._waited_at_first_s:.2f} s of it at the start)"

    def _speed(self) -> str:
        elapsed_s = time.perf_counter() - self._start_s
        waited_share = self._loader.statistics().waited_s / elapsed_s
        return f"{self._num_tokens / elapsed_s:,.0f} tokens/s, waited for data {waited_share:.1%}"

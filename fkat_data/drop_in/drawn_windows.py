"""Windows of the order that a sampler of the user's gives: it is iterated here, some windows ahead of the workers."""

from collections.abc import Callable, Mapping, Sized
from typing import Any

from torch.utils.data import BatchSampler

from fkat_data.drop_in.drawn_plan import DrawnPlan
from fkat_data.drop_in.window_plan import WindowOrder
from fkat_data.errors import ConfigurationError

_BEGUN, _ORDERS = "samplers_begun", "window_orders"


class DrawnWindows(WindowOrder):
    """The order of a sampler. Each rank draws all of it, and reads its own windows.

    Args:
        sampler: The user's.
        window_size: Samples of a window.
        seed: The loader's.
    """

    def __init__(self, sampler: Sized, window_size: int, seed: int) -> None:
        self._sampler = sampler
        self._window_size = window_size
        batches: Any = BatchSampler(sampler, window_size, drop_last=False)  # type: ignore[arg-type]  # iterable, as checked
        self._plan = DrawnPlan(batches, seed, 0, is_ahead=True)
        self._saved: Mapping[str, Any] | None = None
        # The epoch whose end this rank has come to, and its windows.
        self._ended: tuple[int, int] | None = None

    @property
    def has_states(self) -> bool:
        """Whether the order depends on states of samplers, and so on the epochs before."""
        return self._plan.has_states

    def renew(self, epoch: int, step: int) -> None:
        """Iterate the sampler again when the next iteration begins."""
        self._go_to_end()
        self._ended = None
        self._plan.renew(epoch, step)

    def terms(self, epoch: int, saved: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the number of samples, and the samplers' states when the epoch began."""
        if saved is not None and saved is not self._saved:
            self._saved, self._ended = saved, None
            self._plan.load_sampler_state(epoch, {**saved[_BEGUN], "orders": saved[_ORDERS]})
        return {"num_samples": len(self._sampler), **self.drawn(epoch, 0)}

    def drawn(self, epoch: int, num_windows: int) -> dict[str, Any]:
        """Return the samplers' states when the epoch began, and a digest of what they gave up to a window."""
        if self._ended is not None and self._ended[0] != epoch:
            self._go_to_end()
        begun = self._plan.state_at(epoch, num_windows)
        orders = begun.pop("orders", [])
        count, order = begun.pop("step", 0), begun.pop("order", 0)
        return {_BEGUN: begun, _ORDERS: [[count, order, 0]] if count and order else orders}

    def samples(self, epoch: int, terms: Mapping[str, Any]) -> Callable[[int], list[int]]:
        """Return what gives the samples of a window.

        It raises ``StateMismatchError`` where the sampler gives another order than when the state was saved, and
        ``ConfigurationError`` where it gives more or fewer samples than its ``len`` says.
        """
        num_samples: int = terms["num_samples"]

        def samples_of(number: int) -> list[int]:
            found: list[int] = self._plan.batch_at(epoch, number) or []
            num_before = number * self._window_size
            expected = min(self._window_size, num_samples - num_before)
            if len(found) != expected:
                raise self._wrong_length(num_samples, num_before + len(found))
            return found

        return samples_of

    def finish(self, epoch: int, terms: Mapping[str, Any]) -> None:
        """Iterate the sampler to its end, so that what it draws from is where the next epoch begins on every rank."""
        self._ended = epoch, -(-terms["num_samples"] // self._window_size)
        if self._go_to_end() is not None:
            raise self._wrong_length(terms["num_samples"], "more")

    def _go_to_end(self) -> object:
        """Draw the rest of an epoch that has ended: an earlier window, asked for since, is drawn from the beginning."""
        return None if self._ended is None else self._plan.batch_at(*self._ended)

    def _wrong_length(self, num_samples: int, found: object) -> ConfigurationError:
        return ConfigurationError("sampler", f"<{found} samples>", f"{num_samples}, as its len() says")

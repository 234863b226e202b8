"""Map-style datasets: one inner, whose workers make the microbatches of an epoch together."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fkat_data.drop_in.drawn_plan import DrawnPlan
from fkat_data.drop_in.inner_loader import DataLoaderIterator
from fkat_data.drop_in.numbered_plan import NumberedPlan
from fkat_data.drop_in.saved_state import state_at_epoch
from fkat_data.iteration import Iterations
from fkat_data.loader.sharded import ShardedDataLoader
from fkat_data.observe.statistics import LoaderStatistics

__all__ = ["MapSource"]


class MapSource:
    """Makes the microbatches of a map-style dataset.

    Args:
        inner: The loader of the plan's shards.
        plan: The order.
        seed: The inner loader's.
        dp_rank: The inner loader's.
        state: Where to begin, as ``state`` returned it; None: at the first epoch's start.

    Raises:
        StateMismatchError: The state is damaged.
    """

    def __init__(
        self,
        inner: ShardedDataLoader,
        plan: NumberedPlan | DrawnPlan,
        seed: int,
        dp_rank: int,
        state: Mapping[str, Any] | None,
    ) -> None:
        self._inner = inner
        self._plan = plan
        self._iterations = Iterations("loader")
        if state is not None:
            place = {"version": 1, "epoch": state["epoch"], "index": -1, "step": state["step"]}
            place["microbatch"] = plan.first_microbatch(state)
            fingerprint = {"seed": seed, "dp_rank": dp_rank}
            inner.load_state_dict({**place, "fingerprint": fingerprint, "sampler": dict(state["sampler"])})

    @property
    def epoch(self) -> int:
        """The epoch of the next microbatch."""
        return self._inner.epoch

    @property
    def step(self) -> int:
        """Microbatches of that epoch that were delivered before it."""
        return self._inner.step

    def __len__(self) -> int:
        """Return the microbatches of an epoch.

        Raises:
            TypeError: The sampler has no length.
        """
        return self._plan.num_batches(self.epoch)

    def begin(self, change: Callable[[Any], Any] | None = None) -> Iterator[Any]:
        """Begin an epoch, or the rest of a loaded one."""
        self._iterations.begin()
        self._plan.renew(self.epoch, self.step)
        iterator = iter(self._inner)
        if change is None:
            return iterator
        return DataLoaderIterator(lambda: change(self._inner.take()), self._inner, self._iterations, self)

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered; change nothing where nothing of it was delivered."""
        if self.step:
            self._iterations.begin()
            self._inner.end_epoch()

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered: the next call delivers it again."""
        return self._inner.take_back()

    def state(self) -> dict[str, Any]:
        """Return the position as plain values."""
        place = self._inner.local_state_dict()
        epoch, step = place["epoch"], place["step"]
        return {"epoch": epoch, "step": step, "sampler": self._plan.state_at(epoch, step)}

    def epoch_again(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the start of a state's epoch, in the same order."""
        return state_at_epoch(state, state["epoch"])

    def statistics(self) -> LoaderStatistics:
        """Return what was done so far."""
        return self._inner.statistics()

    def close(self) -> None:
        """End the workers."""
        self._iterations.begin()
        self._inner.close()

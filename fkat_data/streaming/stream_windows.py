"""The windows of a stream's epochs: parts of its order, each within what one node reads."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any, cast

import numpy as np

from fkat_data.drop_in.window_plan import WindowOrder
from fkat_data.drop_in.window_states import Spread
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.reading.stream import check_saved, saved_commits
from fkat_data.worker.windows import Window


class StreamWindows(WindowOrder):
    """The order of a stream, for a loader with a window function.

    Seed and canonical nodes are those of a loaded state, in later epochs as well, as in the dataset's own epochs.

    Args:
        dataset: The ``StreamingDataset``.
        window_size: Samples of a window.
        is_read_here: Whether this process reads the samples; if not, their shards are only fetched.
    """

    def __init__(self, dataset: Any, window_size: int, *, is_read_here: bool) -> None:
        self._dataset = dataset
        self._window_size = window_size
        self._is_read_here = is_read_here
        self._seed: int | None = None
        self._num_parts: int | None = None

    def terms(self, epoch: int, saved: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the windows of an epoch depend on."""
        dataset = self._dataset
        if saved is not None:
            check_saved(dataset.catalog.commits, saved)
            self._seed, self._num_parts = saved["shuffle_seed"], Spread.saved(saved["spread"]).num_parts
        settled = dataset.epochs.settled(ResumePoint(epoch, 0, self._num_parts, self._seed))
        sizes = tuple(int(shares.epoch_size) for shares in dataset.epochs.phases(epoch))
        world = dataset.epochs.sizes()
        spread = Spread(sizes, cast("int", settled.num_canonical_nodes), world.num_nodes, world.ranks_per_node)
        if saved is not None:
            spread = Spread.saved(saved["spread"])  # the nodes that began the epoch decide how it is dealt out
        commits = saved_commits(dataset.catalog.commits)
        return {
            "num_samples": sum(sizes),
            "shuffle": dataset.epochs.settings.shuffle,
            "shuffle_seed": cast("int", settled.shuffle_seed),
            "spread": spread.plain(),
            **({"commits": commits} if commits else {}),
        }

    def samples(self, epoch: int, terms: Mapping[str, Any]) -> Callable[[int], list[int]]:
        """Return what gives the numbers of a window's samples."""
        spread = Spread.saved(terms["spread"])
        orders = self._dataset.epochs.ordered(epoch, terms["shuffle_seed"], spread.num_parts)
        firsts = [0, *accumulate(spread.sizes)]
        starts, stops = spread.windows(self._window_size)

        def samples_of(number: int) -> list[int]:
            start, stop = int(starts[number]), int(stops[number])
            phase = bisect_right(firsts, start) - 1
            return orders[phase].sample_ids(start - firsts[phase], stop - firsts[phase]).tolist()

        return samples_of

    def followed(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Yield windows, while the shards of those behind them are fetched."""
        return self._dataset.follow(windows, _ids_of, is_opened=self._is_read_here)


def _ids_of(window: Window) -> Any:
    return np.array(window.indices, np.int64)

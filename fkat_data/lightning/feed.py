"""What stands in for Lightning's ``CombinedLoader``: the same loaders, at the places that are right."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, cast

from fkat_data.interruption import genuine
from fkat_data.lightning.feed_position import FeedPosition, FeedState, Rounds, is_ours
from fkat_data.types import ResumableLoader, Stateful

_logger = logging.getLogger(__name__)


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


class FirstPlaces:
    """The first places of loaders, in one call of a Trainer."""

    def __init__(self) -> None:
        # By identity; the loaders are kept so that no other gets the number of one of them.
        self._places: dict[int, tuple[Any, Any]] = {}

    def note(self, loaders: Iterable[Any]) -> None:
        """Note where the loaders of this library stand that are new here."""
        for loader in filter(is_ours, loaders):
            if id(loader) not in self._places:
                self._places[id(loader)] = loader, loader.local_state_dict()

    def go_back(self, loaders: Iterable[Any] | None = None) -> None:
        """Bring these loaders back to their first places; None: all of them."""
        chosen = None if loaders is None else {id(loader) for loader in loaders}
        for number, (loader, place) in self._places.items():
            if place is not None and (chosen is None or number in chosen):
                loader.load_state_dict(place)


class TrainFeed:
    """Comes before ``CombinedLoader`` in the class of a Trainer's training loaders."""

    position: FeedPosition
    epoch_limits: EpochLimits
    first_places: FirstPlaces
    epoch: Callable[[], int]
    saved: FeedState | None = None
    is_made_again: bool = False
    flattened: list[Any]
    limits: list[Any] | None
    _iterator: Any
    _mode: str

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch of Lightning's, or the rest of one."""
        self.first_places.note(self.flattened)
        if self.is_made_again and self._iterator is None and not self.position.is_restored:
            _warn_of_first_epochs(self.flattened, self.epoch())
        ended = self.position.begin(self.flattened)
        for loader in filter(is_ours, self.flattened):
            _set_epoch(loader, self.epoch())
        if self.limits is not None:
            self.limits = self.epoch_limits.of(self.flattened, self.limits)
        cast("Any", super()).__iter__()
        is_in_rounds = self._mode != "sequential"  # which Lightning refuses by itself
        if is_in_rounds:
            self._iterator = Rounds(self._iterator, self._mode, self.flattened, ended)
        self.position.follow(self._iterator if is_in_rounds else None, ended)
        self.epoch_limits.begin()
        return self  # pyright: ignore[reportReturnType] - CombinedLoader has __next__

    def __next__(self) -> Any:
        """Return a microbatch of every loader."""
        self.position.fetch()
        try:
            found = cast("Any", super()).__next__()
        except StopIteration:
            self.position.end()
            raise
        self.position.succeed()
        return found

    def __len__(self) -> int:
        """Return the rounds in an epoch.

        Raises:
            TypeError: They are not known, or nothing has begun.
        """
        if self._iterator is None:
            raise TypeError("the number of rounds is not known before the first iteration")
        return cast("Any", super()).__len__()

    def _state_dicts(self) -> list[Any]:
        """Return what Lightning saves: for a user who resumes without the callback."""
        self.saved = self.position.merged_state()
        states = zip(self.flattened, self.saved.loaders, strict=True)
        return [state for loader, state in states if isinstance(loader, Stateful)]

    def take_saved(self) -> FeedState:
        """Return the state of all ranks: what Lightning has just saved, without asking the other ranks again."""
        saved, self.saved = self.saved, None
        return self.position.merged_state() if saved is None else saved

    def _load_state_dicts(self, states: list[Any]) -> None:
        """Load what Lightning saved, unless the loaders go to a better state when the iteration begins."""
        if not self.position.is_restored:
            cast("Any", super())._load_state_dicts(states)  # noqa: SLF001 - CombinedLoader's


class EvaluationFeed:
    """Comes before ``CombinedLoader`` in the class of loaders for validation, test and prediction.

    Each evaluation begins at the start of the epoch that the first one was of, so that all see the same, sanity checks
    and evaluations that were cut short included.
    """

    flattened: list[Any]
    first_places: FirstPlaces
    starts: list[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begin an evaluation."""
        self.first_places.note(self.flattened)
        if self.starts is None:
            self.starts = [_start_of_epoch(loader) if is_ours(loader) else None for loader in self.flattened]
        self.rewind()
        cast("Any", super()).__iter__()
        return self  # pyright: ignore[reportReturnType] - CombinedLoader has __next__

    def rewind(self) -> None:
        """Bring the loaders back to where the first evaluation has begun."""
        for loader, start in zip(self.flattened, self.starts or (), strict=False):
            if start is not None:
                loader.load_state_dict(start)


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader's samplers the epoch before they are iterated: after a restart, Lightning tells them too late."""
    sampler = getattr(loader, "sampler", None)
    for each in (sampler, getattr(getattr(loader, "batch_sampler", None), "sampler", None)):
        tell = getattr(each, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def _warn_of_first_epochs(loaders: list[Any], epoch: int) -> None:
    for loader in filter(is_ours, loaders):
        state = loader.local_state_dict() or {}
        # One without a seed draws another.
        if state.get("epoch") == 0 and getattr(loader, "seed", 0) is not None:
            _logger.warning(
                "epoch %d of the Trainer begins with a %s that was made again, which begins with its own first epoch: all "
                "epochs have the same order and the same random draws. Return the same loader each time, as "
                "fkat_data.lightning.DataModule does",
                epoch,
                type(loader).__name__,
            )


def _start_of_epoch(loader: ResumableLoader) -> dict[str, Any] | None:
    loader.end_epoch()
    return loader.local_state_dict()


def fed(loader: Any, feed: type[Any]) -> Any:
    """Return a copy of a ``CombinedLoader`` that is a feed as well."""
    cls: Any = _feed_class(feed, cast("Any", type(loader)))
    copy = object.__new__(cls)
    copy.__dict__.update(loader.__dict__)
    return copy


@cache
def _feed_class(feed: type[Any], cls: type[Any]) -> type[Any]:
    return cls if issubclass(cls, feed) else type(cls.__name__, (feed, cls), {"__module__": cls.__module__})

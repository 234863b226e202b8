"""The replacement of Lightning's ``CombinedLoader``: the same loaders, at the positions that are right.

Lightning fetches before it trains: one microbatch always, two where it does not know the length. So the loaders' own
position, what was delivered, is ahead of what a checkpoint's weights have seen.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeGuard, cast

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.plan.state import unsealed
from fkat_data.runtime.distributed import gather
from fkat_data.runtime.interruption import genuine
from fkat_data.types import ResumableLoader, Stateful, TicketedLoader, tell_epoch, with_present_weights

_logger = logging.getLogger(__name__)


class Rounds:
    """One epoch of a ``CombinedLoader``, instead of the iterator that it makes.

    Lightning's own iterator cannot go on in the middle of an epoch: which loaders have ended is in no state. In the
    mode ``max_size_cycle`` it begins the next epoch of a loader before it knows that the others end as well, and drops
    what it got. This one looks at all of them first.

    Args:
        iterator: Lightning's iterator, which has begun every loader and counts the length.
        mode: ``"min_size"``, ``"max_size_cycle"`` or ``"max_size"``.
        loaders: The loaders, to begin them again.
        ended: Which loaders have ended in this epoch already.

    Attributes:
        ended: Which loaders have ended in this epoch.
    """

    def __init__(self, iterator: Any, mode: str, loaders: Sequence[Iterable[Any]], ended: Sequence[bool]) -> None:
        self._iterator = iterator
        self._iterators: list[Any] = list(iterator.iterators)
        self._mode = mode
        self._loaders = loaders
        self._num_rounds = 0
        self.ended = list(ended)

    def __next__(self) -> tuple[list[Any], int, int]:
        """Return a microbatch of every loader, the number of the round, and 0.

        Raises:
            StopIteration: The epoch has ended, as the mode says.
        """
        taken = [] if self._is_over else [self._take(index) for index in range(len(self._loaders))]
        if self._is_over:
            raise StopIteration
        found = [one[0] if one else self._begin_again(index) for index, one in enumerate(taken)]
        self._num_rounds += 1
        return found, self._num_rounds - 1, 0

    def __len__(self) -> int:
        return len(self._iterator)

    def reset(self) -> None:
        """End the iteration, as Lightning does after training."""
        self._iterator.reset()
        self._iterators = []

    @property
    def _is_over(self) -> bool:
        return any(self.ended) if self._mode == "min_size" else all(self.ended)

    def _take(self, index: int) -> tuple[Any] | None:
        """Return the next microbatch of a loader; None where it has none in this round."""
        if self.ended[index] and self._mode != "max_size_cycle":
            return None
        if self._is_over:
            return None
        try:
            return (next(self._iterators[index]),)
        except genuine(StopIteration):
            self.ended[index] = True
            return None

    def _begin_again(self, index: int) -> Any:
        if self._mode == "max_size":
            return None
        self._iterators[index] = iter(self._loaders[index])
        return next(self._iterators[index])


# The microbatch in training, the one after it, and one to spare.
_MOST_FETCHED_AHEAD = 3


def is_ours(loader: object) -> TypeGuard[ResumableLoader]:
    """Return whether a loader has the states of this library."""
    return isinstance(loader, ResumableLoader)


@dataclass(frozen=True)
class FeedState:
    """The states that a Trainer's loaders go to.

    Attributes:
        loaders: Each loader's state; None for one without.
        ended: Which loaders have ended in this epoch of Lightning's; empty: none.
        is_over: Whether Lightning begins an epoch with them, instead of going on in one.
        is_lightnings: Whether Lightning saved them: then ``loaders`` has entries for the loaders with states alone.
    """

    loaders: Sequence[Any]
    ended: Sequence[bool] = field(default=())
    is_over: bool = False
    is_lightnings: bool = False


class FeedPosition:
    """The position of a Trainer's loaders: which of their microbatches were trained on.

    Args:
        num_trained: Returns the microbatches that the Trainer has trained on in all.
        fetches_ahead: Returns whether the Trainer fetches one microbatch for each step; False for a
            ``training_step(dataloader_iter)``, which fetches for itself.
        repeat: Called with the loaders where another epoch begins; brings them to the microbatches that each epoch has,
            for ``overfit_batches``. None: epochs differ.
    """

    def __init__(
        self,
        num_trained: Callable[[], int],
        fetches_ahead: Callable[[], bool],
        repeat: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        self._num_trained = num_trained
        self._fetches_ahead = fetches_ahead
        # As of the last fetch: a Trainer has no fetcher any more when a run is over, and may save a checkpoint then.
        self._is_fetched_ahead = False
        self._repeat = repeat
        self._loaders: Sequence[Any] = ()
        self._rounds: Rounds | None = None
        self._epochs: list[Any] = []
        # What a checkpoint says, until something is trained on.
        self._restored: FeedState | None = None
        self._start: FeedState | None = None
        self._has_ended = False
        self._trained_before = 0
        self._num_fetched = 0
        self._fetches: deque[tuple[int, FeedState]] = deque(maxlen=_MOST_FETCHED_AHEAD)
        self.is_stale = False
        """Whether a state was restored after the iteration under way had begun."""

    def restore(self, state: FeedState) -> None:
        """Have the next iterations begin at a state, until something is trained on."""
        self._restored = state
        self.is_stale = True

    def begin_again(self) -> None:
        """Forget what was fetched and trained on: the loaders are back where they were before."""
        self._restored = self._start = None
        self._has_ended = False
        self._num_fetched = 0
        self._fetches.clear()
        self.is_stale = True

    @property
    def is_restored(self) -> bool:
        """Whether iterations begin at a checkpoint's state."""
        return self._restored is not None

    def begin_training(self) -> None:
        """Count from here what is trained on: a checkpoint has set Lightning's own counts."""
        self._trained_before = self._num_trained()

    def train(self) -> None:
        """Forget the state that was restored: something is trained on."""
        self._restored = None

    def end(self) -> None:
        """Let the next iteration begin another epoch: this one has nothing left, even if nothing was trained on."""
        self._restored = self._start = None
        self._fetches.pop()  # the fetch that found the end
        self._has_ended = True

    def begin(self, loaders: Sequence[Any]) -> list[bool]:
        """Bring the loaders to where the next iteration begins; return which of them have ended in its epoch.

        Lightning begins iterations that it never trains on. What they have fetched, the next one fetches again.

        Raises:
            StateMismatchError: The restored state is of other loaders.
            ConfigurationError: The caller commits the microbatches of one.
        """
        if any(isinstance(loader, TicketedLoader) and loader.has_tickets for loader in loaders):
            raise ConfigurationError("commit", "manual", "'delivery', with Lightning, which takes microbatches ahead")
        self._loaders = loaders
        trained = self._num_trained()
        state: FeedState | None = None
        if self._restored is not None:
            state = self._restored
        elif self._start is not None and trained == self._trained_before:
            state = self._with_weights(self._start)
        ended = [False] * len(loaders)
        if self._has_ended or (state is None and self._num_fetched):
            # One that Lightning did not read to its end still stands in the epoch that is over, whose length it tells.
            for loader in filter(is_ours, loaders):
                loader.end_epoch()
            self._has_ended = False
        if state is not None:
            self._go_to(state)
        if self._repeat is not None and (state is None or state.is_over):
            self._repeat(loaders)
        if state is not None:
            ended = ended if state.is_over or not state.ended else list(state.ended)
        self.is_stale = False
        self._trained_before = trained
        self._num_fetched = 0
        self._fetches.clear()
        return ended

    def follow(self, rounds: Rounds | None, ended: Sequence[bool]) -> None:
        """Look at the iteration that has begun."""
        self._rounds = rounds
        self._epochs = [getattr(loader, "epoch", None) for loader in self._loaders]
        self._start = FeedState(self._states(), list(ended))

    def fetch(self) -> None:
        """Note the position before a fetch: one that is interrupted may have moved the loaders."""
        self._is_fetched_ahead = self._fetches_ahead()
        if not self._fetches or self._fetches[-1][0] != self._num_fetched:
            self._fetches.append((self._num_fetched, self._present()))

    def succeed(self) -> None:
        """Count the fetch."""
        self._num_fetched += 1

    def state(self) -> FeedState:
        """Return this rank's state: all that was trained on is delivered, and nothing else."""
        if self._is_fetched_ahead:
            trained = self._num_trained() - self._trained_before
            for index, state in self._fetches:
                if index == trained:
                    return self._with_weights(state)
        return self._present()

    def _with_weights(self, state: FeedState) -> FeedState:
        """Return an earlier state of the loaders, with the weights of mixtures that the program has set since."""
        loaders = [
            None if saved is None else with_present_weights(loader, saved)
            for loader, saved in zip(self._loaders, state.loaders, strict=True)
        ]
        return replace(state, loaders=loaders)

    def merged_state(self) -> FeedState:
        """Return the state of all ranks, which every rank must ask for."""
        own = self.state()
        of_ranks = gather(list(own.loaders)) if any(map(is_ours, self._loaders)) else [own.loaders]
        merged: list[Any] = []
        for index, loader in enumerate(self._loaders):
            if is_ours(loader):
                states = [states[index] for states in of_ranks]
                merged.append(None if states[0] is None else loader.merge_state_dicts(states))
            else:
                merged.append(loader.state_dict() if isinstance(loader, Stateful) else None)
        return FeedState(merged, own.ended)

    def _present(self) -> FeedState:
        # A loader that has delivered its last microbatch may be in its next epoch before it says so.
        moved = [
            getattr(loader, "epoch", None) != epoch for loader, epoch in zip(self._loaders, self._epochs, strict=True)
        ]
        said = moved if self._rounds is None else self._rounds.ended
        return FeedState(self._states(), [a or b for a, b in zip(said, moved, strict=True)])

    def _states(self) -> list[Any]:
        return [loader.local_state_dict() if is_ours(loader) else None for loader in self._loaders]

    def _go_to(self, state: FeedState) -> None:
        loaders = list(self._loaders)
        if state.is_lightnings:
            loaders = [loader for loader in loaders if isinstance(loader, Stateful)]
        if len(loaders) != len(state.loaders):
            hint = "train with the loaders that the checkpoint was saved with"
            raise StateMismatchError("loaders", len(state.loaders), len(loaders), hint)
        for loader, saved in zip(loaders, state.loaders, strict=True):
            if saved is None:
                continue
            if is_ours(loader):
                loader.load_state_dict(saved)
                if state.is_over:
                    loader.end_epoch()
            elif isinstance(loader, Stateful) and not state.is_over:
                loader.load_state_dict(saved)


class InitialStates:
    """The states of loaders before their first iteration in one call of a Trainer."""

    def __init__(self) -> None:
        # By identity; the loaders are kept so that no other gets the number of one of them.
        self._states: dict[int, tuple[Any, Any]] = {}

    def note(self, loaders: Iterable[Any]) -> None:
        """Note the states of the loaders of this library that are new here."""
        for loader in filter(is_ours, loaders):
            if id(loader) not in self._states:
                self._states[id(loader)] = loader, loader.local_state_dict()

    def go_back(self, loaders: Iterable[Any] | None = None) -> None:
        """Bring these loaders back to their initial states; None: all of them."""
        chosen = None if loaders is None else {id(loader) for loader in loaders}
        for number, (loader, state) in self._states.items():
            if state is not None and (chosen is None or number in chosen):
                loader.load_state_dict(state)


class TrainFeed:
    """A mixin that comes before ``CombinedLoader`` in the class of a Trainer's training loaders."""

    position: FeedPosition
    trainer: Any
    initial_states: InitialStates
    epoch: Callable[[], int]
    saved: FeedState | None = None
    is_made_again: bool = False
    flattened: list[Any]
    limits: list[Any] | None
    _iterator: Any
    _mode: str

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch of Lightning's, or the rest of one."""
        self.initial_states.note(self.flattened)
        if self.is_made_again and self._iterator is None and not self.position.is_restored:
            _warn_of_first_epochs(self.flattened, self.epoch())
        ended = self.position.begin(self.flattened)
        for loader in filter(is_ours, self.flattened):
            _set_epoch(loader, self.epoch())
        if self.limits is not None:
            self.limits = [self._limit(*each) for each in zip(self.flattened, self.limits, strict=True)]
        cast("Any", super()).__iter__()
        is_in_rounds = self._mode != "sequential"  # which Lightning refuses by itself
        if is_in_rounds:
            self._iterator = Rounds(self._iterator, self._mode, self.flattened, ended)
        self.position.follow(self._iterator if is_in_rounds else None, ended)
        self._tell_length()
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

    def _limit(self, loader: Any, limit: Any) -> Any:
        """Return the most microbatches of a loader in the epoch that begins; of an earlier one where that is not known."""
        if not is_ours(loader) or math.isinf(limit):
            return limit
        try:
            length = len(cast("Any", loader))
        except genuine(TypeError):
            return limit
        share = self.trainer.limit_train_batches
        return min(length, share) if isinstance(share, int) else max(1, int(length * share))

    def _tell_length(self) -> None:
        """Tell the Trainer how long the epoch is that has begun, and where in it to validate."""
        trainer = self.trainer
        try:
            num_rounds = len(self)
        except genuine(TypeError):
            return
        trainer.fit_loop.max_batches = num_rounds
        if isinstance(trainer.val_check_interval, float) and isinstance(getattr(trainer, "val_check_batch", None), int):
            trainer.val_check_batch = max(1, int(num_rounds * trainer.val_check_interval))

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
    """A mixin that comes before ``CombinedLoader`` in the class of loaders for validation, test and prediction.

    Each evaluation begins at the start of the epoch that the first one was of, so that all see the same, sanity checks
    and evaluations that were cut short included.
    """

    flattened: list[Any]
    initial_states: InitialStates
    starts: list[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begin an evaluation."""
        self.initial_states.note(self.flattened)
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
    batch_sampler = getattr(loader, "batch_sampler", None)
    tell_epoch((getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)), epoch)


def _warn_of_first_epochs(loaders: list[Any], epoch: int) -> None:
    for loader in filter(is_ours, loaders):
        state: dict[str, Any] = unsealed(loader.local_state_dict()) or {}
        # One without a seed draws another.
        if state.get("epoch") == 0 and getattr(loader, "seed", 0) is not None:
            _logger.warning(
                "epoch %d of the Trainer begins with a new %s, which begins with its own first epoch: all "
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

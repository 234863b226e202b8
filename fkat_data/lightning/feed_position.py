"""Where the loaders of a Trainer stand: before the first microbatch that was not trained on.

Lightning fetches before it trains: one microbatch always, two where it does not know the length. So the loaders' own
position, what was delivered, is ahead of what a checkpoint's weights have seen.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from fkat_data.distributed import gather
from fkat_data.errors import StateMismatchError
from fkat_data.interruption import genuine
from fkat_data.types import ResumableLoader, Stateful


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
    """What a Trainer's loaders go to.

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
    """Tracks what of the loaders' microbatches was trained on.

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
        """
        self._loaders = loaders
        trained = self._num_trained()
        state: FeedState | None = None
        if self._restored is not None:
            state = self._restored
        elif self._start is not None and trained == self._trained_before:
            state = self._start
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
        """Note the place before a fetch: one that is interrupted may have moved the loaders."""
        if not self._fetches or self._fetches[-1][0] != self._num_fetched:
            self._fetches.append((self._num_fetched, self._present()))

    def succeed(self) -> None:
        """Count the fetch."""
        self._num_fetched += 1

    def state(self) -> FeedState:
        """Return this rank's state: all that was trained on is delivered, and nothing else."""
        if self._fetches_ahead():
            trained = self._num_trained() - self._trained_before
            for index, state in self._fetches:
                if index == trained:
                    return state
        return self._present()

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

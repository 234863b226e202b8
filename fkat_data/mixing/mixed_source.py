"""One source of a mixture of loaders: its current pass, and its position in a state.

A pass is one iteration over the loader. A loader with ``state_dict`` and ``load_state_dict`` is saved and restored by
them. Any other iterable is iterated again, up to the saved position.
"""

import copy
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, cast, runtime_checkable

from fkat_data.errors import StateMismatchError, arguments
from fkat_data.errors.arguments import copied_state
from fkat_data.errors.sample_errors import early_end
from fkat_data.observe.counters import Seen
from fkat_data.plan.state import unsealed
from fkat_data.runtime.distributed import rank_and_world_size
from fkat_data.runtime.interruption import genuine
from fkat_data.types import AcceptingLoader, Microbatch, Stateful


@runtime_checkable
class _Counted(Protocol):
    """A loader that reports its epoch, and the microbatches delivered in it.

    Such a loader enters the next epoch when it delivers the last microbatch. Its state is then the start of the next
    epoch, and the next iteration yields that epoch.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def step(self) -> int: ...


class MixedSource:
    """A loader of a mixture, iterated pass by pass, and its position.

    Args:
        name: Name of the source in the mixture.
        loader: Any iterable that can be iterated more than once.

    Attributes:
        taken: Microbatches taken from the current pass.
        delivered: Microbatches taken in the mixture's current epoch.
        seen: What was taken since the mixture was made.
    """

    def __init__(self, name: str, loader: Iterable[Microbatch]) -> None:
        self.name = name
        self.loader = loader
        self.taken: int = 0
        self.delivered: int = 0
        self.seen = Seen()
        self._iterator: Iterator[Microbatch] | None = None
        self._has_ended = False
        self._epoch: int | None = None  # of the pass, after its first microbatch, if the loader reports epochs
        self._length: int | None = None  # of a pass, once it was asked for; -1: the loader does not say
        self._loaded: Mapping[str, Any] | None = None  # the loaded state, until a microbatch is taken
        self._accept: Collection[str] = ()  # what may differ in it
        # What the loader has delivered, and an interrupted call has not.
        self._fetched: deque[Microbatch] = deque()
        # Microbatches of the pass behind the length that a loader without a state has said.
        self._beyond: deque[Microbatch] = deque()
        self._failure: Exception | None = None
        # Whether the iteration over the loader has gone on with the next pass, of which nothing was taken yet.
        self._is_ahead = False

    @property
    def is_begun(self) -> bool:
        """Whether a pass is under way."""
        return self._iterator is not None

    @property
    def is_used(self) -> bool:
        """Whether a pass was begun or loaded."""
        return self.is_begun or self._has_ended or self.taken > 0 or self._loaded is not None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has before it loads a position."""
        return {**vars(self), **vars(MixedSource(self.name, self.loader))}

    def __copy__(self) -> "MixedSource":
        return MixedSource(self.name, copy.copy(self.loader))

    @property
    def is_over(self) -> bool:
        """Whether the pass is known to be over: its last microbatch was taken."""
        if self._has_ended:
            return True
        if self._beyond or self._failure is not None or not self.taken:
            return False
        if isinstance(self.loader, Stateful):
            return self._is_in_next_epoch() and not _ends_with_other_ranks(self.loader)
        return self._iterator is not None and self._has_taken_all() and not self._reads_beyond(self._iterator)

    def begin(self) -> None:
        """Begin a pass."""
        if not self._is_ahead:
            self._iterator = self._iterated()
        self._is_ahead = False
        self.seen = self.seen._replace(passes=self.seen.passes + 1)
        self._epoch = self._length = None
        self._has_ended = False
        self.taken = 0

    def go_on(self) -> None:
        """Continue the pass of a loaded state, unless that pass has ended."""
        if self._loaded is None or self._iterator is not None or (self._has_ended and self.taken):
            return
        self._has_ended = False
        self._iterator = self._iterated()
        self.seen = self.seen._replace(passes=self.seen.passes + 1)
        if not isinstance(self.loader, Stateful):
            for _ in islice(self._iterator, self.taken):
                pass

    def _iterated(self) -> Iterator[Microbatch]:
        try:
            return iter(self.loader)
        except genuine(StopIteration) as error:
            raise early_end(f"iter() of source {self.name!r}", "pass") from error

    def take(self) -> Microbatch:
        """Return the pass's next microbatch.

        Raises:
            StopIteration: The pass has ended.
            BaseException: Any exception of the loader.
        """
        microbatch = self._next()
        if self.taken == 0 and isinstance(self.loader, _Counted):
            self._epoch = _epoch_delivered(self.loader)
        self.taken += 1
        self.delivered += 1
        self.seen = self.seen._replace(delivered=self.seen.delivered + 1)
        return microbatch

    def stop(self) -> None:
        """End the iteration over the loader; the position stays unchanged."""
        self._iterator, self._is_ahead = None, False

    def give_up(self) -> None:
        """Discard the current pass, so that the next one starts from the beginning."""
        self.stop()
        self._fetched.clear()
        self._beyond.clear()
        self._failure = None

    def snapshot(self) -> tuple[Any, ...]:
        """Return what ``restore`` needs to undo all that follows, but what the loader itself has delivered."""
        passing = self._iterator, self._has_ended, self._epoch, self._loaded, self._is_ahead
        return self.taken, self.delivered, self.seen, passing

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Undo what an interrupted call has done."""
        self.taken, self.delivered, self.seen, passing = snapshot
        self._iterator, self._has_ended, self._epoch, self._loaded, self._is_ahead = passing
        if self._fetched and callable(getattr(self.loader, "take_back", None)):
            self.take_back()
            self._fetched.clear()

    def has_given_since(self, snapshot: tuple[Any, ...]) -> bool:
        """Return whether a microbatch was taken since a snapshot."""
        return self.seen.delivered != snapshot[2].delivered

    def take_back(self) -> bool:
        """Have the loader give its last microbatch again; ``restore`` undoes the rest.

        Returns:
            False if it cannot: nothing has changed then.
        """
        take_back = getattr(self.loader, "take_back", None)
        return callable(take_back) and bool(take_back())

    def release(self) -> None:
        """Forget the last microbatch: the caller has it."""
        self._fetched.clear()

    def end_pass(self) -> None:
        """Have a loader that can end its epoch begin the next one."""
        end_epoch = getattr(self.loader, "end_epoch", None)
        if callable(end_epoch):
            end_epoch()

    def forget_pass(self) -> None:
        """Leave the present pass: a state says from here on that the next one begins at its start."""
        self.give_up()
        self.taken, self._has_ended, self._epoch, self._loaded = 0, False, None, None
        if isinstance(self.loader, Stateful) and not callable(getattr(self.loader, "end_epoch", None)):
            self.begin()  # only an iteration moves its state on

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the loader's own state if it has one."""
        return self._position("state_dict")

    def local_state_dict(self) -> dict[str, Any]:
        """Return what ``state_dict`` does, but of the loader's state this rank's part alone, if it has one."""
        return self._position("local_state_dict" if hasattr(self.loader, "local_state_dict") else "state_dict")

    def merged(self, local_state_dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what ``state_dict`` would return, from every rank's ``local_state_dict`` in the order of ranks."""
        merge = getattr(self.loader, "merge_state_dicts", None)
        states = [state_dict["state"] for state_dict in local_state_dicts]
        state = merge(states) if callable(merge) else states[0]
        return {**local_state_dicts[0], "state": state}

    def _position(self, method: str) -> dict[str, Any]:
        state = copied_state(getattr(self.loader, method)()) if isinstance(self.loader, Stateful) else None
        is_past = self._is_in_next_epoch()
        if isinstance(state, Mapping) and self._epoch is not None:
            # Ranks of windows end a pass together: one that has more left has ended with the others.
            of_ranks: Sequence[Mapping[str, Any]] = unsealed(state).get("all_rank_states", ())
            of_windows = [each for each in of_ranks if "num_ranks" in each and "window" in each["sampler"]]
            is_past = is_past or any(each["epoch"] > self._epoch for each in of_windows)
        return {
            "delivered": self.delivered,
            "taken": self.taken,
            "epoch": self._epoch,
            "has_ended": self._has_ended or is_past,
            "state": state,
        }

    def check(self, saved: object) -> None:
        """Check that ``saved`` is a state of a source like this one.

        Raises:
            StateMismatchError: ``saved`` is not such a state.
        """
        field = f"sources[{self.name!r}]"
        if not isinstance(saved, Mapping):
            raise StateMismatchError(field, saved, "<the state of a source>")
        state_dict = cast("Mapping[str, Any]", saved)
        for name in ("delivered", "taken", "epoch", "has_ended", "state"):
            if name not in state_dict:
                hint = "this is not a state of a mixture"
                raise StateMismatchError(f"{field}[{name!r}]", "<missing>", "<a value>", hint)
        for name in ("delivered", "taken"):
            arguments.saved_integer(f"{field}[{name!r}]", state_dict[name], minimum=0)
        is_stateful = isinstance(self.loader, Stateful)
        if is_stateful != (state_dict["state"] is not None):
            expected = "<a state of the loader>" if is_stateful else "<none: the loader has no state_dict()>"
            raise StateMismatchError(f"{field}['state']", state_dict["state"], expected)

    @property
    def acceptable_fields(self) -> tuple[str, ...]:
        """The fields of its loader's state that may be accepted where they differ."""
        return self.loader.acceptable_fields if isinstance(self.loader, AcceptingLoader) else ()

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = ()) -> None:
        """Go to the position of a state that ``check`` has accepted.

        Args:
            state_dict: The state.
            accept: What may differ in the states of all sources' loaders.

        Raises:
            StateMismatchError: The loader rejects its own part of the state.
        """
        self._accept = {*accept} & {*self.acceptable_fields}
        self._load(state_dict["state"])
        self.give_up()
        self.delivered, self.taken = int(state_dict["delivered"]), int(state_dict["taken"])
        self._epoch = state_dict["epoch"]
        self._has_ended = bool(state_dict["has_ended"])
        self._loaded = state_dict

    def _load(self, state: Any) -> None:
        if self._accept:
            cast("AcceptingLoader", self.loader).load_state_dict(copied_state(state), accept=self._accept)
        elif isinstance(self.loader, Stateful):
            self.loader.load_state_dict(copied_state(state))

    def _is_in_next_epoch(self) -> bool:
        return isinstance(self.loader, _Counted) and self._epoch is not None and self.loader.epoch != self._epoch

    def _has_taken_all(self) -> bool:
        """Return whether a loader's length says that it has no other microbatch."""
        if self._length is None:
            try:
                self._length = len(cast("Any", self.loader))
            except genuine(TypeError):
                self._length = -1
        return self.taken == self._length

    def _reads_beyond(self, iterator: Iterator[Microbatch]) -> bool:
        """Return whether there is another microbatch nevertheless, or an error, which is kept for the next call."""
        try:
            self._beyond.extend(islice(iterator, 1))
        except genuine(Exception) as error:
            self._failure = error
        return bool(self._beyond) or self._failure is not None

    def _next(self) -> Microbatch:
        if self._iterator is None or self._has_ended:
            raise StopIteration
        if not self._fetched and self._beyond:
            self._fetched, self._beyond = self._beyond, deque()
        if not self._fetched and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self._fetched:
            # One call without an instruction of Python between what the loader counts and what is kept here.
            self._fetched.extend(islice(self._iterator, 1))
        if not self._fetched:
            if self._loaded is not None and not self.taken:
                # The loaded state was the end of the previous pass, so this pass has yet to begin.
                self._loaded = None
                self.begin()
                return self._next()
            self._iterator = None
            self._has_ended = True
            raise StopIteration
        microbatch = self._fetched[0]
        loaded, self._loaded = self._loaded, None
        if loaded is not None and self._epoch is not None and _epoch_delivered(self.loader) != self._epoch:
            # The state was saved when only empty shards were left, so the loader went on to its next epoch.
            if not self.take_back():
                self._load(loaded["state"])
                self._iterator = self._iterated()
            self._fetched.clear()
            self._has_ended = self._is_ahead = True
            raise StopIteration
        return microbatch


def _ends_with_other_ranks(loader: Any) -> bool:
    """Return whether only the next call, in which ranks ask one another, shows that an epoch is over."""
    return bool(getattr(loader, "has_windows", False)) and rank_and_world_size()[1] > 1


def _epoch_delivered(loader: Any) -> int:
    """Return the epoch of the loader's last delivered microbatch."""
    return loader.epoch if loader.step else loader.epoch - 1

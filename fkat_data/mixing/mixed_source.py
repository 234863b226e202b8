"""One source of a mixture of loaders: its pass under way, and its place in a state.

A pass is what one ``iter()`` of the loader gives. A source with ``state_dict`` and ``load_state_dict`` is saved and
set by them; any other iterable is iterated again, up to its place.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, cast, runtime_checkable

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.types import Microbatch, Stateful

__all__ = ["MixedSource"]


@runtime_checkable
class _Counted(Protocol):
    """A loader that says where it is: the epoch of its next microbatch, and those delivered in that epoch before it.

    Such a loader knows that an epoch is over when it delivers the last microbatch: its state then is the start of the
    next epoch, and an iteration that begins there gives that epoch, not the nothing that is left of the old one.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def step(self) -> int: ...


class MixedSource:
    """A loader, pass by pass.

    Args:
        name: Its name in the mixture.
        loader: Any iterable that can be iterated again and again.

    Attributes:
        taken: Microbatches that the pass has given.
        delivered: Microbatches that it has given in the mixture's epoch.
    """

    def __init__(self, name: str, loader: Iterable[Microbatch]) -> None:
        self.name = name
        self.loader = loader
        self.taken = 0
        self.delivered = 0
        self._iterator: Iterator[Microbatch] | None = None
        self._has_ended = False
        self._epoch: int | None = None  # of the pass, for a loader that counts them, once it has given something
        self._loaded: Mapping[str, Any] | None = None  # the place that was loaded, until something is taken
        # A microbatch of the next pass that came in the place of nothing, and the loader's state before it.
        self._held: tuple[Microbatch, Any] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a pass is under way."""
        return self._iterator is not None

    def begin(self) -> None:
        """Begin a pass."""
        if self._held is None:  # otherwise it has begun by itself
            self._iterator = iter(self.loader)
        self._epoch = None
        self._has_ended = False
        self.taken = 0

    def go_on(self) -> None:
        """Take up the pass that a loaded place is in, unless nothing is left of it."""
        if self._loaded is None or self._iterator is not None or (self._has_ended and self.taken):
            return
        self._has_ended = False
        self._iterator = iter(self.loader)
        if not isinstance(self.loader, Stateful):
            for _ in islice(self._iterator, self.taken):
                pass

    def take(self) -> Microbatch:
        """Return the pass's next microbatch.

        Raises:
            StopIteration: Nothing is left of it.
            BaseException: Whatever the loader raises.
        """
        if self._held is not None and not self._has_ended:
            microbatch, self._held = self._held[0], None
        else:
            microbatch = self._next()
        if self.taken == 0 and isinstance(self.loader, _Counted):
            self._epoch = _epoch_delivered(self.loader)
        self.taken += 1
        self.delivered += 1
        return microbatch

    def stop(self) -> None:
        """End the iteration of the loader; the place stays what it is."""
        self._iterator = None

    def give_up(self) -> None:
        """Forget the pass: the next one begins anew."""
        self._iterator = self._held = None

    def state_dict(self) -> dict[str, Any]:
        """Return the place, with the loader's own state where it has one."""
        if self._held is not None:
            state = self._held[1]
        else:
            state = self.loader.state_dict() if isinstance(self.loader, Stateful) else None
        is_past = isinstance(self.loader, _Counted) and self._epoch is not None and self.loader.epoch != self._epoch
        return {
            "delivered": self.delivered,
            "taken": self.taken,
            "epoch": self._epoch,
            "has_ended": self._has_ended or is_past,
            "state": state,
        }

    def check(self, place: object) -> None:
        """Raise if ``place`` is no place of a source like this one.

        Raises:
            StateMismatchError: It is none.
        """
        field = f"sources[{self.name!r}]"
        if not isinstance(place, Mapping):
            raise StateMismatchError(field, place, "<a source's place>")
        state_dict = cast("Mapping[str, Any]", place)
        for name in ("delivered", "taken", "epoch", "has_ended", "state"):
            if name not in state_dict:
                raise StateMismatchError(f"{field}[{name!r}]", "<missing>", "<a value>", "it is no state of a mixture")
        for name in ("delivered", "taken"):
            try:
                arguments.integer(name, state_dict[name], minimum=0)
            except ConfigurationError as error:
                hint = f"it has to be {error.expected}"
                raise StateMismatchError(f"{field}[{name!r}]", state_dict[name], getattr(self, name), hint) from None
        is_stateful = isinstance(self.loader, Stateful)
        if is_stateful != (state_dict["state"] is not None):
            present = "a loader with" if is_stateful else "a loader without"
            raise StateMismatchError(f"{field}['state']", state_dict["state"], f"<{present} a state>")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a place that ``check`` let pass.

        Raises:
            StateMismatchError: The loader's own, if its state belongs to another one.
        """
        if isinstance(self.loader, Stateful):
            self.loader.load_state_dict(state_dict["state"])
        self.give_up()
        self.delivered, self.taken = int(state_dict["delivered"]), int(state_dict["taken"])
        self._epoch = state_dict["epoch"]
        self._has_ended = bool(state_dict["has_ended"])
        self._loaded = state_dict

    def _next(self) -> Microbatch:
        if self._iterator is None or self._has_ended:
            raise StopIteration
        try:
            microbatch = next(self._iterator)
        except StopIteration:
            if self._loaded is not None and not self.taken:
                # The loaded state is the end of the pass before this one: that end is not this pass.
                self._loaded = None
                self.begin()
                return self._next()
            self._iterator = None
            self._has_ended = True
            raise
        loaded, self._loaded = self._loaded, None
        if loaded is not None and self._epoch is not None and _epoch_delivered(self.loader) != self._epoch:
            # The place was saved where only empty shards were left, and the loader went on into its next epoch.
            self._held = (microbatch, loaded["state"])
            self._has_ended = True
            raise StopIteration
        return microbatch


def _epoch_delivered(loader: Any) -> int:
    """Return the epoch of the microbatch that the loader delivered last."""
    return loader.epoch if loader.step else loader.epoch - 1

"""One iteration after the other over a loader, and how far each has come for the caller.

What is raised in the caller's thread, by Ctrl-C or a signal's handler, may be raised between any two instructions. So
the position moves in one instruction, the last one of the call that returns the microbatch: an interrupted call has
delivered nothing, and the next one begins at the same position.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import torch

from fkat_data.errors import StaleIteratorError
from fkat_data.errors.tracebacks import hide_own_frames
from fkat_data.errors.wording import counted
from fkat_data.plan.position import START, Position
from fkat_data.runtime.interruption import is_interruption
from fkat_data.types import Microbatch

logger = logging.getLogger(__name__)

# More than this for one update are an epoch that the program cuts short on purpose.
_MOST_ACCUMULATED = 64


_is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # has no public name


class HandOver(Protocol):
    """Counts a microbatch as delivered."""

    def hand_over(self, microbatch: Microbatch) -> Microbatch:
        """Count a microbatch, and return it: the last thing that a call does."""
        ...


class Cursor:
    """The only owner of the caller's position."""

    def __init__(self) -> None:
        self.position: Position = START
        """Position of the next microbatch; all before it were delivered."""
        # Where a load has put it, by identity: as long as nothing was delivered, an iteration begins there.
        self._loaded: tuple[Position, ...] = ()
        self._next: Position = START
        # The position before the last microbatch, and where the caller is as long as it can be taken back.
        self._last: tuple[Position, ...] = ()

    @property
    def before_last(self) -> Position | None:
        """The position of the last microbatch that was delivered; None: none was."""
        return self._last[0] if self._last else None

    def load(self, position: Position) -> None:
        """Go to a saved position; the next iteration begins there."""
        self._loaded = (position,)
        self.position = position

    @property
    def is_loaded(self) -> bool:
        """Whether a load has put the position where it is: nothing was delivered since."""
        return any(position is self.position for position in self._loaded)

    def first(self) -> Position:
        """Return where an iteration begins that starts now.

        That is the present position if no microbatch of the epoch was delivered, or a load has set it. Else the caller
        has left the epoch after a microbatch, and the next epoch begins.
        """
        position = self.position
        # After a load, another rank may have had microbatches of the epoch.
        return position if position.step == 0 or self.is_loaded else position.after_epoch()

    def start(self, position: Position) -> None:
        """Start an iteration at its first position."""
        self._last = self._last[:1]
        self.position = position

    def advance(self, position: Position) -> None:
        """Have ``hand_over`` make this position the caller's: the one after the next microbatch."""
        self._next = position

    def hand_over(self, microbatch: Microbatch) -> Microbatch:
        """Count a microbatch as delivered, and return it: the last thing that a call does."""
        before = self.position
        self._last = before, self._next
        try:
            self.position = self._next
            return microbatch  # noqa: TRY300 - a tracing debugger may raise here, after the count
        except BaseException:
            self.position = before
            raise

    def take_back(self) -> bool:
        """Count the last microbatch as not delivered; return False if a load or an iteration came since."""
        if not self._can_take_back:
            return False
        self.position = self._last[0]
        return True

    @property
    def _can_take_back(self) -> bool:
        return any(self.position is each for each in self._last[1:])

    def pass_epoch(self) -> None:
        """Count the rest of the epoch as delivered."""
        self.position = self.position.after_epoch()

    def pass_task(self, position: Position) -> None:
        """Count the current task as delivered, because it has no more microbatches; the position after it is this."""
        if self.is_loaded:
            self._loaded = (self.position, position)
        if self._can_take_back:
            self._last = (self._last[0], self.position, position)
        self.position = position


class Iterations:
    """A counter of a loader's iterations.

    Args:
        loader_name: What messages call the loader.
    """

    def __init__(self, loader_name: str) -> None:
        self._loader_name = loader_name
        self.newest: int = 0
        """The number of the newest iteration."""
        self.is_interrupted: bool = False
        """Whether an interruption came out of the newest call of its iterator."""
        # Where the newest loop has left its epoch, and whether the log says already that all loops do.
        self._left: tuple[int, int] = (-1, 0)
        self._is_repetition_logged = False
        # By identity: the exception itself would keep the objects of its frames alive.
        self._last_shown = id(_last_shown())

    def begin(self) -> None:
        """End the iteration under way, and number the next one."""
        self.newest += 1
        self.is_interrupted = False
        self._last_shown = id(_last_shown())

    def leave(self, epoch: int, step: int) -> None:
        """Log that a loop begins the next epoch, and so leaves out the rest of this one: a warning after an interruption.

        Where one loop after the other takes as many microbatches, of which accumulated gradients may be made, it is one
        warning for all.

        Args:
            epoch: The epoch.
            step: How many of its microbatches were delivered.
        """
        shown = _last_shown()
        # A notebook, and an interactive interpreter, show what came out of the body of a loop.
        is_interrupted = self.is_interrupted or (
            shown is not None and id(shown) != self._last_shown and is_interruption(shown)
        )
        before, self._left = self._left, (epoch, step)
        if before == (epoch - 1, step) and step <= _MOST_ACCUMULATED and not is_interrupted:
            if not self._is_repetition_logged:
                self._is_repetition_logged = True
                logger.warning(
                    "epochs %d and %d were left after %s each: every loop over a loader, and each islice(loader, %d), begins "
                    "an epoch, and leaves out the rest of the one before. To accumulate gradients, take microbatches of one "
                    "iterator: iterator = iter(loader), then islice(iterator, %d) for each update",
                    *(epoch - 1, epoch, counted(step, "microbatch"), step, step),
                )
            return
        logger.log(
            logging.WARNING if is_interrupted else logging.INFO,
            "epoch %d was %s after %s: its other microbatches are left out, and epoch %d begins. To go on in an epoch, keep "
            "its iterator, or call loader.load_state_dict(loader.state_dict()) before the next loop; to leave the rest out "
            "on purpose, loader.end_epoch()",
            epoch,
            "interrupted" if is_interrupted else "left",
            counted(step, "microbatch"),
            epoch + 1,
        )

    def check(self, number: int) -> None:
        """Return if this iteration is still the newest: a stop must look neither like an end nor like a fault.

        Raises:
            StaleIteratorError: A newer one has begun, or the loader was stopped.
        """
        if number != self.newest:
            raise StaleIteratorError(
                f"this iterator has ended: the {self._loader_name} began a newer iteration, loaded a state, or was closed"
            ) from None


def _last_shown() -> BaseException | None:
    """Return the exception that an interactive interpreter has shown last."""
    return getattr(sys, "last_value", None)


class EpochIterator(Iterator[Microbatch]):
    """One epoch of a loader.

    Args:
        take: Returns the next microbatch, or raises StopIteration at the epoch's end.
        cursor: Counts it.
        iterations: The loader's iterations, of which this is the newest.
        loader: Kept alive for as long as this iterator is: a loader that dies ends its workers.
    """

    def __init__(
        self, take: Callable[[], Microbatch], cursor: HandOver, iterations: Iterations, loader: object
    ) -> None:
        self._take = take
        self._cursor = cursor
        self._iterations = iterations
        self._number = iterations.newest
        self._loader = loader
        self._is_over = False

    @property
    def _range_name(self) -> str:
        """What ``torch.profiler`` shows for a call of ``__next__``: its tools look for the beginning and the end."""
        return f"enumerate(DataLoader)#{type(self._loader).__name__}.__next__"

    def _take_in_range(self) -> Microbatch:
        with torch.profiler.record_function(self._range_name):
            return self._take()

    @property
    def is_under_way(self) -> bool:
        """Whether it has neither come to its end nor been replaced."""
        return not self._is_over and self._number == self._iterations.newest

    def __reduce__(self) -> Any:
        raise TypeError(
            f"an iterator of a {type(self._loader).__name__} cannot be pickled or copied: it is of one process"
        )

    def __next__(self) -> Microbatch:
        if self._is_over:
            raise StopIteration
        if self._number != self._iterations.newest:
            self._iterations.check(self._number)
        try:
            # To ask costs a hundredth of what a range does.
            microbatch = self._take_in_range() if _is_profiled() else self._take()
        except StopIteration:
            self._iterations.check(self._number)  # another thread may have closed the loader while this one waited
            self._is_over = True
            raise
        except BaseException as error:
            if is_interruption(error):
                self._iterations.is_interrupted = True
            else:
                self._iterations.check(self._number)
            hide_own_frames(error)
            raise
        self._iterations.is_interrupted = False
        return self._cursor.hand_over(microbatch)


class Closing:
    """A loader that ``with`` blocks and trainers close."""

    def close(self) -> None:
        """End what runs for the loader; any number of calls."""
        raise NotImplementedError

    def teardown(self, *args: Any) -> None:
        """Close the loader; the name that some trainers call."""
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """Close the loader; the name that some trainers call."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

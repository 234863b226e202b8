"""A loader of this library in the shape of torch's ``DataLoader``, for loops that accelerate drives."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fkat_data.accelerated import accelerated, mover_to, rest_or_next, with_end
from fkat_data.arguments import STATE_VERSION, saved_version
from fkat_data.distributed import gather
from fkat_data.errors import FkatDataError, StateMismatchError
from fkat_data.types import ResumableLoader


class Course:
    """Iterates over a loader, and knows the place after each microbatch that the loop has received.

    Args:
        loader: Any loader of this library.

    Attributes:
        loader: The same.
        step: Microbatches of the epoch that the loop has received.
        num_stand_ins: Empty batches for the next ``skip_first_batches`` to step over.
    """

    def __init__(self, loader: ResumableLoader) -> None:
        self.loader: Any = loader
        self.step = 0
        self.num_stand_ins = 0
        self._loaded_step: int | None = None
        self._place: Any = None
        # The place that ``mark`` asked for, and the step; None until a microbatch comes after it.
        self._marked: tuple[Any, int] | None = None
        self._is_to_mark = False

    def microbatches(self, move: Callable[[Any], Any] | None = None) -> Iterator[tuple[Any, bool]]:
        """Begin an epoch, or the rest of one; yield each microbatch, moved, and whether it is the last."""
        may_be_over, self.num_stand_ins = self._loaded_step == 0, 0
        self._set_epoch()
        self.step, self._loaded_step = self._loaded_step or 0, None
        num_workers = getattr(self.loader, "num_workers", 0)
        placed = rest_or_next(self._placed, may_be_over=may_be_over, num_workers=num_workers)
        for (microbatch, place), is_last in with_end(placed):
            moved = microbatch if move is None else move(microbatch)
            # Samplers begin the next epoch by another set_epoch(): behind the last one, the place is there.
            is_next = is_last and bool(samplers_of(self.loader))
            reached = self._reached() if is_next else place
            if self._is_to_mark:
                self._marked, self._is_to_mark = (self._place, self.step), False
            # Last of all: if something before is interrupted, the loop does not have this microbatch.
            self._place, self.step = reached, 0 if is_last else self.step + 1
            yield moved, is_last

    def mark(self) -> None:
        """Remember the place before the next microbatch."""
        self._marked, self._is_to_mark = None, True

    def state_dict(self, *, is_at_mark: bool = False) -> dict[str, Any]:
        """Return the place after the last microbatch that each rank's loop has received. A collective.

        Args:
            is_at_mark: Return the place before the first microbatch that came after ``mark``.

        Raises:
            FkatDataError: The loader has no state for this place.
        """
        place, step = self._place, self.step
        if is_at_mark and self._marked is not None:
            place, step = self._marked
        if place is None:
            place = self._reached()
        if isinstance(place, FkatDataError):
            raise place
        return {"version": STATE_VERSION, "step": step, "loader": self.loader.merge_state_dicts(gather(place))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved place: the next iteration begins there.

        Raises:
            StateMismatchError: It is no such state, or belongs to another plan.
        """
        if not isinstance(state_dict, Mapping) or not {"version", "step", "loader"} <= set(state_dict):
            raise StateMismatchError("loader", "<missing>", "<a state that fkat_data.huggingface saved>")
        saved_version(state_dict, STATE_VERSION)
        self.loader.load_state_dict(state_dict["loader"])
        self.step = self._loaded_step = self.num_stand_ins = state_dict["step"]
        self._place = self._marked = None

    def _placed(self) -> Iterator[tuple[Any, Any]]:
        """Begin an iteration; yield each microbatch, and the loader's place after it."""
        iterator = iter(self.loader)
        self._place = self._reached()
        return ((microbatch, self._reached()) for microbatch in iterator)

    def _set_epoch(self) -> None:
        """Set the epoch of samplers and dataset, as loops do for a ``DataLoader``: to the loader's own."""
        samplers = samplers_of(self.loader)
        for each in (*samplers, self.loader.dataset) if samplers else ():
            if callable(getattr(each, "set_epoch", None)):
                is_left_early = self._loaded_step is None and self.loader.step > 0
                each.set_epoch(self.loader.epoch + is_left_early)

    def _reached(self) -> Any:
        """Return the loader's own place; or why there is none, for a caller that asks."""
        try:
            return self.loader.local_state_dict()
        except FkatDataError as error:
            return error


def samplers_of(loader: Any) -> list[Any]:
    """Return the samplers that a ``fkat_data.DataLoader`` was made with; of other loaders, nothing."""
    if not isinstance(loader, DataLoader) or not hasattr(cast("Any", loader), "deal_out"):
        return []
    batch_sampler = cast("Any", loader).batch_sampler
    samplers = [cast("Any", loader).sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]
    return [sampler for sampler in samplers if sampler is not None]


class LoaderFace(DataLoader[Any]):
    """Iterates over a loader as accelerate wants it, and leaves its microbatches as they are.

    - accelerate asks whether a batch is the epoch's last: one more microbatch is taken ahead. The state does not count
      it.
    - After a load, scripts and trainers step over the batches that they had before
      (``accelerator.skip_first_batches``). The loader is there already, so they get empty batches to step over.

    Args:
        loader: Any loader of this library.
        device: Where accelerate wants the microbatches; None: they stay where they are.
        non_blocking: Whether copies to the device are asynchronous.
    """

    #: Of accelerate: not to be dealt out to the ranks once more, should somebody prepare it.
    _is_accelerate_prepared = True

    def __init__(self, loader: Any, device: torch.device | None = None, *, non_blocking: bool = False) -> None:
        self.course = Course(loader)
        """Where the loop is; an iterator holds it, too."""
        if device is not None and callable(getattr(loader, "set_device", None)):
            loader.set_device(device)
            device = None
        self._rest = _SkippableRest(self.course, device, non_blocking=non_blocking)
        # A generator of its own: an iteration that steps over batches draws no number from the trainer's.
        super().__init__(self._rest, batch_size=None, collate_fn=_unchanged, generator=torch.Generator())

    @property
    def loader(self) -> Any:
        """The loader; one microbatch ahead of the loop during an epoch."""
        return self.course.loader

    @property
    def step(self) -> int:
        """Microbatches of the epoch that the loop has received."""
        return self.course.step

    def __iter__(self) -> Any:
        """Begin an epoch, or the rest of one after ``load_state_dict``."""
        return self._rest.microbatches()

    def __len__(self) -> int:
        """Return the microbatches of an epoch.

        Raises:
            TypeError: That is not known.
        """
        return len(self.loader)

    def stand_in_for(self, num_skipped: int) -> None:
        """Give the next ``skip_first_batches`` this many empty batches; without this, those before the loaded place."""
        self.course.num_stand_ins = num_skipped

    def mark(self) -> None:
        """Remember the place before the next microbatch."""
        self.course.mark()

    def state_dict(self, *, is_at_mark: bool = False) -> dict[str, Any]:
        """Return the place after the last microbatch that the loop has received; collective if the loader's is.

        Args:
            is_at_mark: Return the place before the first microbatch that came after ``mark``.
        """
        return self.course.state_dict(is_at_mark=is_at_mark)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved place: the next iteration begins there.

        Raises:
            StateMismatchError: It is no such state, or belongs to another plan; nothing has changed then.
        """
        self.course.load_state_dict(state_dict)


class _SkippableRest(IterableDataset[Any]):
    """What accelerate's ``skip_first_batches`` iterates: an empty batch for each that it drops, then the loader's."""

    def __init__(self, course: Course, device: torch.device | None, *, non_blocking: bool) -> None:
        self._course = course
        self._device = device
        self._non_blocking = non_blocking

    def microbatches(self) -> Iterator[Any]:
        """Begin an epoch, or the rest of one."""
        move = mover_to(self._device, non_blocking=self._non_blocking)
        num_in_last_round = getattr(self._course.loader, "num_in_last_round", None)
        return accelerated(self._course.microbatches(move), None, num_in_last_round() if num_in_last_round else 0)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._course.num_stand_ins):
            yield {}
        yield from self.microbatches()


def is_own_loader(value: object) -> bool:
    """Return whether a value is a loader of this library: it gives a rank its part, and has an exact state."""
    if isinstance(value, (torch.nn.Module, Dataset, Sampler)) or not isinstance(value, ResumableLoader):
        return False
    return any(base.__module__.partition(".")[0] == "fkat_data" for base in type(value).__mro__)


def _unchanged(microbatch: Any) -> Any:
    return microbatch

"""A loader of this library in the shape of torch's ``DataLoader``, for loops that accelerate drives."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fkat_data.accelerated import accelerated, mover_to
from fkat_data.huggingface.course import Course
from fkat_data.types import ResumableLoader


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

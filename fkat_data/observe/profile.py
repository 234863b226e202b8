"""Named ranges: what the loader reports to the user's profiler and to torch's.

A user's profiler is any object with ``start(name)`` and ``stop(name)``. In a worker it works on a copy of its own:
where it has a ``filename``, the worker's number is added, and at the worker's end ``describe()`` or ``summary()`` is
called where the object has one. ``torch.profiler`` sees the same names while it records.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from fkat_data.runtime.interruption import suppress
from fkat_data.types import Profiler

logger: logging.Logger = logging.getLogger(__name__)

_NOTHING: AbstractContextManager[None] = nullcontext()


class TrainerProfile:
    """The trainer's ranges: ``wait``, ``decode`` and ``move``.

    Args:
        profiler: The user's; None: only torch's.
        loader_name: The loader's class, with which their names begin.
    """

    def __init__(self, profiler: Profiler | None, loader_name: str) -> None:
        self._profiler = profiler
        self._loader_name = loader_name
        self.is_active: Callable[[], bool] = torch.autograd._profiler_enabled if profiler is None else _always  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # has no public name
        """Returns whether a profiler listens. Asked several times for each microbatch: torch's own function is fast."""

    def range(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which the named action runs; costs next to nothing while no profiler listens."""
        return self._range(f"{self._loader_name}.{name}") if self.is_active() else _NOTHING

    @contextmanager
    def _range(self, action: str) -> Generator[None]:
        with torch.profiler.record_function(action):
            if self._profiler is not None:
                self._profiler.start(action)
            try:
                yield
            finally:
                if self._profiler is not None:
                    self._profiler.stop(action)


class WorkerProfile:
    """A worker's ranges: ``build``, ``produce`` and ``encode``, one at a time.

    Args:
        profiler: The user's, or None; this process's own copy.
        worker_index: The worker's number, for the names of files; None in the trainer's own process.
        loader_name: The loader's class, with which their names begin.
    """

    def __init__(self, profiler: Profiler | None, worker_index: int | None, loader_name: str) -> None:
        self._profiler = profiler
        self._loader_name = loader_name
        self._action = ""
        if profiler is not None and worker_index is not None:
            _use_own_file(profiler, worker_index)

    @property
    def is_active(self) -> bool:
        """Whether a profiler listens."""
        return self._profiler is not None

    def enter_stage(self, name: str) -> None:
        """Begin the named action; "" ends the one before."""
        if self._profiler is None:
            return
        if self._action:
            self._profiler.stop(self._action)
        self._action = f"{self._loader_name}.{name}" if name else ""
        if self._action:
            self._profiler.start(self._action)

    def finish(self) -> None:
        """Have the profiler write what it has to say."""
        self.enter_stage("")
        describe = getattr(self._profiler, "describe", None)
        summary = getattr(self._profiler, "summary", None)
        if callable(describe):
            describe()
        elif callable(summary):
            logger.info("%s", summary())


def _always() -> bool:
    return True


def _use_own_file(profiler: Any, worker_index: int) -> None:
    filename = getattr(profiler, "filename", None)
    if isinstance(filename, (str, Path)) and filename:
        path = Path(filename)
        with suppress(AttributeError):  # a read-only property: the profiler names its files itself
            profiler.filename = type(filename)(path.with_name(f"{path.stem}-worker{worker_index}{path.suffix}"))

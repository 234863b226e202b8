"""The trainer's side of the importer: the process that has imported what shipments name, kept for loaders to come.

A program has one for each directory that it imports from. Modules that a fork may not go on with, or that end the process
which imports them, are imported by each loader's parent for itself.
"""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import call_in_forks
from fkat_data.worker.process.forkserver import IDLE_MS
from fkat_data.worker.process.handle import Child, ServerProcess, ask_for
from fkat_data.worker.process.inherited_environment import (
    ImporterDescriptors,
    ImporterRequest,
    ParentRequest,
    Request,
    Surroundings,
    import_paths,
)
from fkat_data.worker.process.parent_process import ServingProcess
from fkat_data.worker.process.process_title import process_title

logger: logging.Logger = logging.getLogger(__name__)

_MOST_IMPORTERS = 2
_LONGEST_IMPORT_S = 5.0


class ImporterProcess(ServingProcess):
    """An importer, from the trainer's side.

    Args:
        template: What it is a fork of.
        origin: Where it imports from.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, template: ServerProcess, origin: tuple[object, ...]) -> None:
        self.origin: tuple[object, ...] = origin
        """Where it imports from."""
        self.template: ServerProcess = template
        """What it is a fork of."""
        # The modules of parents that are not born yet, and when they were asked for.
        self._asked: deque[tuple[frozenset[str], float]] = deque()
        request = ImporterRequest(process_title("importer"), Surroundings.now(), IDLE_MS)

        def start(control: int, lifeline: int, stderr: int) -> Child:
            return ask_for(request, lambda birth: ImporterDescriptors(birth, control, lifeline, stderr), template)

        super().__init__(start, template)

    def request(self, request: Request, descriptors: Sequence[int]) -> None:
        """Ask for a process, without waiting for it.

        Raises:
            OSError: The process is gone, or has too many requests to read.
        """
        super().request(request, descriptors)
        if isinstance(request, ParentRequest):
            self._asked.append((request.modules, time.monotonic()))

    def has_started(self, *, is_forked: bool, why_alone: str) -> None:
        """Record that a parent was started: where it imports for itself, the modules do not allow forks."""
        super().has_started(is_forked=is_forked, why_alone=why_alone)
        try:
            modules, _ = self._asked.popleft()
        except genuine(IndexError):
            return
        if why_alone:
            _registry.unfit |= modules
            logger.info("%s", why_alone)

    def is_behind(self) -> bool:
        """Return whether a parent that was asked for is not born after seconds."""
        return bool(self._asked) and self._asked[0][1] + _LONGEST_IMPORT_S < time.monotonic()

    def asked_modules(self) -> frozenset[str]:
        """Return the modules of the parents that were asked for and are not born."""
        return frozenset[str]().union(*(modules for modules, _ in list(self._asked)))


class _Registry:
    """The importers of this process."""

    def __init__(self) -> None:
        # A handler of a signal may need one in the middle of a call.
        self._lock = threading.RLock()
        self.importers: list[ImporterProcess] = []
        """The one used last is at the end."""
        # Those that end with the last of their children.
        self._leaving: list[ImporterProcess] = []
        self.unfit: frozenset[str] = frozenset()
        """Modules that each parent imports for itself."""

    def find(self, template: ServerProcess, modules: frozenset[str]) -> ServerProcess:
        with self._lock:
            if not modules or modules & self.unfit:
                return template
            self._end_left()
            origin = _origin()
            for importer in list(self.importers):
                if not importer.is_serving():
                    self._remove(importer)
                elif importer.origin == origin and importer.template is template:
                    return template if importer.is_behind() else importer
            if modules & self.unfit:  # as one that has just ended shows
                return template
            try:
                importer = ImporterProcess(template, origin)
            except genuine(OSError):
                return template
            self.importers.append(importer)
            for oldest in self.importers[:-_MOST_IMPORTERS]:
                self._leave(oldest)
            return importer

    def _remove(self, importer: ImporterProcess) -> None:
        if importer.child.is_dead():  # it has not only retired
            self.unfit |= importer.asked_modules()
        self._leave(importer)

    def _leave(self, importer: ImporterProcess) -> None:
        self._leaving.append(importer)
        self.importers.remove(importer)
        importer.dismiss()

    def _end_left(self) -> None:
        for importer in list(self._leaving):
            if importer.child.is_dead():
                importer.end()
                self._leaving.remove(importer)

    def forget(self) -> None:
        """In a forked child: leave the importers to the parent, whose other threads may have the lock."""
        self._lock = threading.RLock()
        self.importers.clear()
        self._leaving.clear()

    def end(self) -> None:
        with self._lock:
            for importers in (self.importers, self._leaving):
                while importers:
                    importers[-1].end()
                    importers.pop()


_registry = _Registry()


def find_importer(template: ServerProcess, modules: frozenset[str]) -> ServerProcess:
    """Return the process that a loader's parent is to be forked from.

    Args:
        template: The template, which it is where there is nothing to import, or nothing that may be.
        modules: The modules that the loader's shipment names.
    """
    return _registry.find(template, modules)


def end_importers() -> None:
    """End the importers of this process, whose loaders are closed."""
    _registry.end()


def _origin() -> tuple[object, ...]:
    try:
        folder = os.stat(".")  # noqa: PTH116 - a directory that may have no name any more
        folder_identity: object = folder.st_dev, folder.st_ino
    except genuine(OSError):
        folder_identity = None
    return import_paths(), list(sys.argv), folder_identity


call_in_forks(_registry.forget)

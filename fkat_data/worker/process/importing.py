"""What an importer does: it imports the modules that a loader's shipment names before it forks the loader's parent."""

import contextlib
import gc
import importlib
import mmap
import os
import pickle
import sys
from collections.abc import Generator

from fkat_data.storage.file_identity import FileIdentity
from fkat_data.worker.process.fork_safety import OpenThings
from fkat_data.worker.process.inherited_environment import ParentDescriptors, ParentRequest


class Importer:
    """Imports modules once for all loaders, and says when a fork may not go on with them."""

    def __init__(self) -> None:
        self.why: str = ""
        """Why what was imported does not allow forks; empty: it does, but a source has changed since."""
        self._is_over = False
        self._known: set[str] = set()
        self._own_modules = frozenset(sys.modules)
        self._sources: dict[str, FileIdentity | None] = {}

    def admits(self, request: object, descriptors: object) -> bool:
        """Return whether this process may be forked for a request, after the modules that it names were imported."""
        if isinstance(request, ParentRequest) and isinstance(descriptors, ParentDescriptors) and not self._is_over:
            if any(_identity_of(path) != before for path, before in self._sources.items()):
                self._is_over = True
            elif not request.modules <= self._known:
                self._import(request.modules, descriptors)
        return not self._is_over

    def _import(self, modules: frozenset[str], descriptors: ParentDescriptors) -> None:
        importlib.invalidate_caches()
        before = OpenThings()
        with _as_in_program(descriptors):
            for name in sorted(modules - self._known):
                # A parent meets the same error where the program would, and an exit is the parent's.
                with contextlib.suppress(BaseException):
                    importlib.import_module(name)
        self._known |= modules
        self.why = before.why_unfit()
        self._is_over = bool(self.why)
        if self.why:
            self.why = f"importing {', '.join(sorted(modules))} has effects that forks cannot share: {self.why}"
        found = [sys.modules.get(name) for name in sys.modules.keys() - self._own_modules]
        paths = {path for module in found if isinstance(path := getattr(module, "__file__", None), str)}
        self._sources.update((path, _identity_of(path)) for path in paths - self._sources.keys())
        # What is there now stays: a collection of garbage in a fork would write to its pages, and so copy them.
        gc.collect()
        gc.freeze()


@contextlib.contextmanager
def _as_in_program(descriptors: ParentDescriptors) -> Generator[None]:
    """Be where the program is, with its arguments and its stdout."""
    with mmap.mmap(descriptors.settings, 0, access=mmap.ACCESS_READ) as settings:
        sys.path[:], sys.argv = pickle.load(settings)
    with contextlib.suppress(OSError):
        os.fchdir(descriptors.folder)
    if descriptors.stdout is not None:
        os.dup2(descriptors.stdout, 1)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or without a reader
                stream.flush()
        leave_places()


def leave_places() -> None:
    """Be in the root directory, and print to nowhere.

    A process that lives as long as the trainer must not keep a file system busy, nor the reader of a pipe waiting.
    """
    os.chdir("/")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _identity_of(path: str) -> FileIdentity | None:
    """Return what tells whether a file has changed; None: it is gone."""
    try:
        return FileIdentity.of_path(path)
    except (OSError, ValueError):
        return None

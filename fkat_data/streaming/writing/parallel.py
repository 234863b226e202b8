"""Writing a dataset in parallel, in many processes or on many machines."""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.files.index import INDEX_NAME
from fkat_data.runtime.background import AnyExecutor, results_of
from fkat_data.runtime.registry import Registrations
from fkat_data.streaming.writing.destination import cleared_for_parts
from fkat_data.streaming.writing.directories import (
    Directory,
    LocalDirectory,
    RemoteDirectory,
    directory_of,
    is_attempt,
    parts_in,
    remove_attempt,
)
from fkat_data.streaming.writing.merge import IndexLocation, merge_index
from fkat_data.streaming.writing.writer import ShardWriter

# An executor may run a call again while the first attempt is still alive, such as on a machine that the network has
# lost for a while. So each attempt writes to a folder of its own, and only the attempt whose name the executor
# returns becomes part of the dataset. The writer of the whole index removes all other
# attempts' folders afterwards, and an attempt that finds the index when it ends removes its own.


@dataclass(frozen=True)
class PartFolders:
    """The folders below the directory of a dataset. Picklable.

    Attributes:
        local: The local path of the directory, or None.
        remote: Its remote path or URL, or None.
        storage_options: The options of fsspec's file system for the URL.
    """

    local: str | None
    remote: str | None
    storage_options: Mapping[str, Any] | None

    @property
    def shown(self) -> str:
        """The directory without secrets, for messages."""
        directory = self._directories()[-1]
        return directory.shown if isinstance(directory, RemoteDirectory) else str(directory.root)

    def attempt(self, number: int) -> str:
        """Return the name of a new folder for an attempt to write an item. No other attempt has it."""
        return f"{number:06}.attempt-{secrets.token_hex(4)}"

    def location(self, name: str) -> IndexLocation:
        """Return a folder as a writer's ``out``."""
        sides = [f"{side.rstrip('/')}/{name}" for side in (self.local, self.remote) if side is not None]
        return sides[0] if len(sides) == 1 else (sides[0], sides[1])

    def is_whole(self) -> bool:
        """Return whether the index of the whole is written.

        Raises:
            Exception: The store does not say. This is its file system's error.
        """
        try:
            # Network file systems answer from memory whether a file exists, but not when it is opened.
            self._directories()[-1].read(INDEX_NAME)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove the folder of an attempt.

        Raises:
            Exception: A file cannot be removed. This is the file system's error.
        """
        for directory in self._directories():
            remove_attempt(directory, name)

    def settle(self, name: str) -> str:
        """Give the folder of an attempt the name of its item, if folders can be renamed; return its name.

        In a store, renaming is copying. There, the folder keeps its name, as it does beside files of others.

        Raises:
            OSError: The folder cannot be renamed.
        """
        item = name.partition(".")[0]
        roots = [
            None if isinstance(directory, RemoteDirectory) else directory.root for directory in self._directories()
        ]
        if any(root is None or (root / item).exists() for root in roots):
            return name
        for root in roots:
            if root is not None and (root / name).exists():
                (root / name).rename(root / item)
        return item

    def remove_others(self, kept: Collection[str]) -> None:
        """Remove the folders of all attempts but these.

        Raises:
            Exception: A file cannot be removed. This is the file system's error.
        """
        for directory in self._directories():
            for name in parts_in(directory):
                if is_attempt(name) and name not in kept:
                    remove_attempt(directory, name)

    def _directories(self) -> list[Directory]:
        """Return the local side and the remote one, which decides about the whole."""
        directories: list[Directory] = []
        if self.local is not None:
            directories.append(LocalDirectory(Path(self.local)))
        if self.remote is not None:
            directories.append(directory_of(RemoteDirectory(self.remote, "out", self.storage_options)))
        return directories


_Item = TypeVar("_Item")


def write_parallel(
    make_writer: Callable[..., ShardWriter],
    samples_of: Callable[[_Item], Iterable[Mapping[str, Any]]],
    items: Iterable[_Item],
    *,
    out: IndexLocation,
    executor: AnyExecutor,
    keep_local: bool = False,
    exist_ok: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the samples of many items, each in its own call, and one index for all of them.

    Item *i* becomes the directory ``out/00000i`` of shards, in a store ``out/00000i.attempt-…``. Samples follow the order of
    the items. The index is written last, after all calls have succeeded.

    An executor may run a call again when a worker is lost, also beside a first attempt that is still alive. Each
    attempt writes to a folder of its own. The attempt that the executor reports counts; the others are removed.

    Args:
        make_writer: Called as ``make_writer(out=…, keep_local=…, exist_ok=…)``, such as
            ``functools.partial(MDSWriter, columns=…)``. If the executor uses processes or machines, this function,
            ``samples_of`` and the items must be picklable.
        samples_of: Function from an item to its samples, such as the rows of a file.
        items: The items to write. All are consumed up front, so keep them small, such as file names.
        out: See ``ShardWriter``. Every worker must have access to a local directory.
        executor: The executor of the calls: any object with a ``submit`` as of ``concurrent.futures.Executor``.
        keep_local: See ``ShardWriter``.
        exist_ok: Whether to replace an existing dataset. Its index is removed first, then its files and those of every
            earlier item, also if there were more.
        storage_options: See ``ShardWriter``. If given, ``make_writer`` is called with them, too.
        progress: Called with the number of samples so far, each time the next item in the order is written.

    Returns:
        Number of samples written.

    Raises:
        ConfigurationError: ``items`` is empty, ``out`` is invalid, or another writer is writing to it.
        FileExistsError: ``out`` already has an index, or an item of an earlier run, and ``exist_ok`` is false; or
            another writer has written an index there meanwhile.
        Exception: A call failed. This is the error of the first one in the order of the items. Calls that have not
            started are cancelled.
    """
    (local, remote), lock = cleared_for_parts(out, exist_ok=exist_ok, storage_options=storage_options)
    settings: dict[str, Any] = {"keep_local": keep_local, "exist_ok": exist_ok}
    if storage_options is not None:
        settings["storage_options"] = storage_options
    folders = PartFolders(local, remote, storage_options)
    with lock:
        calls = (
            (item, _write_item, (Registrations(), make_writer, samples_of, item, folders, number, settings))
            for number, item in enumerate(items)
        )
        num_written = 0

        def count(attempt: _Attempt) -> None:
            nonlocal num_written
            num_written += attempt.num_samples
            if progress is not None:
                progress(num_written)

        attempts: list[_Attempt] = results_of(executor, calls, "writing", count)
        if not attempts:
            raise ConfigurationError("items", attempts, "at least one item")
        if folders.is_whole():
            raise FileExistsError(
                f"another writer has written a dataset to {folders.shown!r} meanwhile: write it again"
            )
        names = [folders.settle(attempt.folder) for attempt in attempts]
        parts = [folders.location(name) for name in names]
        num_samples = merge_index(parts, out, keep_local=keep_local, storage_options=storage_options)
        folders.remove_others(names)
        return num_samples


class _Attempt(NamedTuple):
    """The result of a call: the parts that it has written."""

    folder: str
    num_samples: int


def _write_item(
    registrations: Registrations,
    make_writer: Callable[..., ShardWriter],
    samples_of: Callable[[_Item], Iterable[Mapping[str, Any]]],
    item: _Item,
    folders: PartFolders,
    number: int,
    settings: Mapping[str, Any],
) -> _Attempt:
    """Write an item into a folder of its own."""
    del registrations  # it has done its work when it was unpickled
    name = folders.attempt(number)
    with make_writer(out=folders.location(name), **settings) as writer:
        for sample in samples_of(item):
            try:
                writer.write(sample)
            except SampleError as error:
                error.add_note(f"sample {writer.num_samples} (from 0) of the item")
                raise
    if folders.is_whole():
        # Another attempt was faster, and this one is alone with what it has written.
        folders.remove(name)
    return _Attempt(name, writer.num_samples)

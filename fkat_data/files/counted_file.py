"""The number of samples in a file: counted once, and cached in the user's directory of caches until the file changes."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from fkat_data.runtime.background import in_parallel
from fkat_data.runtime.interruption import genuine
from fkat_data.storage.file_identity import FileIdentity
from fkat_data.storage.location import file_system_of, is_chain, load_cached, path_of, save_cached, user_cache_file

_logger = logging.getLogger(__name__)

_VERSION = 2
#: Files that are counted at a time.
_NUM_THREADS = 16
#: A file that was changed this recently may change again and look the same: clocks of file systems are coarse.
_JUST_CHANGED_S = 2.0


class CountedFile(NamedTuple):
    """A file whose samples can be counted without a dataset.

    Attributes:
        path: A local path, or a URI that fsspec supports.
        kind: What is counted in it, and how.
        storage_options: Options for fsspec, for a file that is not local.
        count_samples: Counts its samples.
    """

    path: str
    kind: str
    storage_options: Mapping[str, Any]
    count_samples: Callable[[], int]

    @property
    def folder(self) -> str:
        """The file's path or URI."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The key of its count among those of its folder."""
        return f"{self.kind} {self.path.rpartition('/')[2]}"

    def version(self) -> str:
        """Return what changes when the file changes; an empty text where that is not known."""
        try:
            path = None if is_chain(self.path) else path_of(self.path)
            if path is None:
                file_system, name = file_system_of(self.path, self.storage_options)
                return FileIdentity.of_store(file_system.info(name)).text
            found = path.stat()
        except genuine(Exception):  # a file that is not there, or a store that fails: counting says what is wrong
            return ""
        return "" if time.time() - found.st_mtime < _JUST_CHANGED_S else FileIdentity.of_status(found).text


def counted_files_of(dataset_generator: Any, shard: Any) -> list[CountedFile] | None:
    """Return the files whose samples, together, are a shard's dataset; None: only the dataset itself knows its length.

    Args:
        dataset_generator: Called with the shard, it returns the dataset. One that has ``counted_files`` is asked; a
            class must define it itself, because a subclass may have other samples.
        shard: The shard.

    Raises:
        ConfigurationError: The generator's arguments are invalid.
    """
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}
    if isinstance(dataset_generator, partial):
        bound = cast("partial[Any]", dataset_generator)
        dataset_generator, arguments, options = bound.func, bound.args, bound.keywords
    if isinstance(dataset_generator, type) and "counted_files" not in vars(dataset_generator):
        return None
    counted_files = getattr(dataset_generator, "counted_files", None)
    return None if counted_files is None else counted_files(*arguments, shard, **options)


def counts_of(files: Sequence[CountedFile]) -> list[int | None]:
    """Return the numbers of samples: those that are cached, and the others counted in threads.

    A file that cannot be counted has None: opening it raises the error.
    """
    cached = {folder: _cached(folder) for folder in {file.folder for file in files}}
    counted: dict[str, dict[str, tuple[str, int]]] = {}

    def count(file: CountedFile) -> int | None:
        version = file.version()
        known = cached[file.folder].get(file.name)
        if version and known is not None and known[0] == version:
            return known[1]
        try:
            number = file.count_samples()
        except genuine(Exception) as error:  # the error comes where the file is opened
            _logger.debug("%s is not counted: %s", file.path, error)
            return None
        if version and file.version() == version:
            counted.setdefault(file.folder, {})[file.name] = version, number
        return number

    try:
        return in_parallel(count, files, _NUM_THREADS)
    finally:
        # After an interruption, threads may still count. Of two processes that save at once, one may lose its counts.
        for folder in list(counted):
            save_cached(
                user_cache_file("counts", folder), _VERSION, {**_cached(folder), **counted[folder]}, folder=folder
            )


def _cached(folder: str) -> dict[str, tuple[str, int]]:
    _, counts = load_cached(user_cache_file("counts", folder), _VERSION) or ({}, {})
    return {name: (version, number) for name, (version, number) in counts.items()}

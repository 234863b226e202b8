"""Writing a dataset in parallel, in many processes or on many machines."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.executor import AnyExecutor, results_of
from fkat_data.registry import Registrations
from fkat_data.streaming.writing.destination import cleared_for_parts
from fkat_data.streaming.writing.merge import IndexLocation, merge_index
from fkat_data.streaming.writing.part_folders import PartFolders
from fkat_data.streaming.writing.writer import ShardWriter

__all__ = ["write_parallel"]

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
        attempts: list[_Attempt] = results_of(
            executor, calls, "writing", None if progress is None else _Sum(progress).add
        )
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
    """What a call has written."""

    folder: str
    num_samples: int


class _Sum:
    """Reports how many samples the attempts have written together."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._num_samples = 0

    def add(self, attempt: _Attempt) -> None:
        self._num_samples += attempt.num_samples
        self._progress(self._num_samples)


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

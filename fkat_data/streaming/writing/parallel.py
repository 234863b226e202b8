"""Writing a dataset in parallel, in many processes or on many machines."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.streaming.writing.destination import cleared_for_parts
from fkat_data.streaming.writing.merge import IndexLocation, merge_index
from fkat_data.streaming.writing.writer import ShardWriter

__all__ = ["AnyExecutor", "AnyFuture", "write_parallel"]

_Item = TypeVar("_Item")

_LONGEST_ITEM = 200


class AnyFuture(Protocol):
    """The result of a submitted call: ``concurrent.futures.Future``, or another library's future."""

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        ...

    def cancel(self) -> Any:
        """Cancel the call if it has not started."""
        ...


class AnyExecutor(Protocol):
    """Any ``concurrent.futures.Executor``, including those of Dask, Ray and MPI."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> AnyFuture:
        """Schedule a call, and return its future."""
        ...


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
) -> int:
    """Write the samples of many items, each in its own call, and one index for all of them.

    Item *i* becomes the directory ``out/00000i`` of shards. Samples follow the order of the items. The index is
    written last, after all calls have succeeded.

    Args:
        make_writer: Called as ``make_writer(out=…, keep_local=…, exist_ok=…)``, such as
            ``functools.partial(MDSWriter, columns=…)``. If the executor uses processes or machines, this function,
            ``samples_of`` and the items must be picklable.
        samples_of: Function from an item to its samples, such as the rows of a file.
        items: The items to write. All are consumed up front, so keep them small, such as file names.
        out: See ``ShardWriter``. Every worker must have access to a local directory.
        executor: The executor of the calls.
        keep_local: See ``ShardWriter``.
        exist_ok: Whether to replace an existing dataset. Its index is removed first, then its files and those of every
            earlier item, also if there were more.
        storage_options: See ``ShardWriter``. If given, ``make_writer`` is called with them, too.

    Returns:
        Number of samples written.

    Raises:
        ConfigurationError: ``items`` is empty, ``out`` is invalid, or another writer is writing to it.
        FileExistsError: ``out`` already has an index, or an item of an earlier run, and ``exist_ok`` is false.
        Exception: A call failed. This is the error of the first one in the order of the items. Calls that have not
            started are cancelled.
    """
    (local, remote), lock = cleared_for_parts(out, exist_ok=exist_ok, storage_options=storage_options)
    settings: dict[str, Any] = {"keep_local": keep_local, "exist_ok": exist_ok}
    if storage_options is not None:
        settings["storage_options"] = storage_options
    names: list[str] = []
    shown: list[str] = []
    futures: list[AnyFuture] = []
    with lock:
        try:
            for number, item in enumerate(items):
                names.append(f"{number:06}")
                shown.append(f"{item!r}"[:_LONGEST_ITEM])
                item_out = _below(local, remote, names[-1])
                futures.append(executor.submit(_write_item, make_writer, samples_of, item, item_out, settings))
            for number, future in enumerate(futures):
                _wait(future, f"{number} (from 0), {shown[number]}")
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        if not names:
            raise ConfigurationError("items", names, "at least one item")
        parts = [_below(local, remote, name) for name in names]
        return merge_index(parts, out, keep_local=keep_local, storage_options=storage_options)


def _wait(future: AnyFuture, item: str) -> None:
    try:
        future.result()
    except (Exception, CancelledError) as error:
        error.add_note(f"while writing item {item}")
        raise


def _below(local: str | None, remote: str | None, name: str) -> IndexLocation:
    sides = [f"{side.rstrip('/')}/{name}" for side in (local, remote) if side is not None]
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _write_item(
    make_writer: Callable[..., ShardWriter],
    samples_of: Callable[[_Item], Iterable[Mapping[str, Any]]],
    item: _Item,
    out: IndexLocation,
    settings: Mapping[str, Any],
) -> None:
    with make_writer(out=out, **settings) as writer:
        for sample in samples_of(item):
            try:
                writer.write(sample)
            except SampleError as error:
                error.add_note(f"sample {writer.num_samples} (from 0) of the item")
                raise

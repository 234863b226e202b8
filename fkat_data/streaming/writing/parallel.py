"""Writing a dataset in parallel, in many processes or on many machines."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.streaming.writing.destination import local_and_remote, remove_index
from fkat_data.streaming.writing.merge import IndexLocation, merge_index
from fkat_data.streaming.writing.writer import ShardWriter

__all__ = ["AnyExecutor", "AnyFuture", "write_parallel"]

_Item = TypeVar("_Item")


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
        exist_ok: Whether to replace an existing dataset. Its index is removed first; each item replaces its own files.

    Returns:
        Number of samples written.

    Raises:
        ConfigurationError: ``items`` is empty, or ``out`` is invalid.
        FileExistsError: ``out`` already has an index, and ``exist_ok`` is false.
        Exception: A call failed. This is the error of the first one in the order of the items. Calls that have not
            started are cancelled.
    """
    local, remote = local_and_remote("out", out)
    remove_index(local, remote, exist_ok=exist_ok)
    settings = {"keep_local": keep_local, "exist_ok": exist_ok}
    names: list[str] = []
    futures: list[AnyFuture] = []
    try:
        for number, item in enumerate(items):
            names.append(f"{number:06}")
            item_out = _below(local, remote, names[-1])
            futures.append(executor.submit(_write_item, make_writer, samples_of, item, item_out, settings))
        for number, future in enumerate(futures):
            _wait(future, number)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    if not names:
        raise ConfigurationError("items", names, "at least one item")
    return merge_index([_below(local, remote, name) for name in names], out, keep_local=keep_local)


def _wait(future: AnyFuture, number: int) -> None:
    try:
        future.result()
    except (Exception, CancelledError) as error:
        error.add_note(f"while writing item {number} (from 0)")
        raise


def _below(local: str | None, remote: str | None, name: str) -> IndexLocation:
    sides = [f"{side.rstrip('/')}/{name}" for side in (local, remote) if side is not None]
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _write_item(
    make_writer: Callable[..., ShardWriter],
    samples_of: Callable[[_Item], Iterable[Mapping[str, Any]]],
    item: _Item,
    out: IndexLocation,
    settings: Mapping[str, bool],
) -> None:
    with make_writer(out=out, **settings) as writer:
        for sample in samples_of(item):
            try:
                writer.write(sample)
            except SampleError as error:
                error.add_note(f"sample {writer.num_samples} (from 0) of the item")
                raise

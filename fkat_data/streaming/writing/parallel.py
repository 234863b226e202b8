"""Writing one dataset from many processes or machines."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

from fkat_data.errors import ConfigurationError, SampleError
from fkat_data.streaming.writing.destination import places_of, remove_index
from fkat_data.streaming.writing.merge import IndexLocation, merge_index
from fkat_data.streaming.writing.writer import ShardWriter

__all__ = ["AnyExecutor", "AnyFuture", "write_parallel"]

_Item = TypeVar("_Item")


class AnyFuture(Protocol):
    """What an executor gives for a call: ``concurrent.futures.Future``, or another library's."""

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        ...

    def cancel(self) -> Any:
        """Give the call up if it has not begun."""
        ...


class AnyExecutor(Protocol):
    """What runs calls: any ``concurrent.futures.Executor``, those of Dask, Ray and MPI included."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> AnyFuture:
        """Run a call some time, somewhere."""
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
    """Write the samples of many items, each item by a call of its own, and one index for all of them.

    Item *i* makes the directory ``out/00000i`` of shards; the samples' order is that of the items. The index of the
    whole is written last: without it, if any call failed, there is no whole.

    Args:
        make_writer: Called as ``make_writer(out=…, keep_local=…, exist_ok=…)``; mostly ``functools.partial(MDSWriter, columns=…)``.
            With processes or machines, it and what follows must be picklable.
        samples_of: From an item to its samples, such as the rows of a file.
        items: What there is to do. They are taken at once; make them small, such as file names.
        out: As writers take it. A local directory must be one that every worker sees.
        executor: Runs the calls.
        keep_local: As in ``ShardWriter``.
        exist_ok: Whether a dataset that is there may be replaced: its index goes first, then what each item replaces.

    Returns:
        Number of samples written.

    Raises:
        ConfigurationError: There are no items, or ``out`` is no place.
        FileExistsError: There is an index already, and ``exist_ok`` is false.
        Exception: What a call raised, the first of them in the items' order; calls that have not begun are given up.
    """
    local, remote = places_of("out", out)
    remove_index(local, remote, exist_ok=exist_ok)
    settings = {"keep_local": keep_local, "exist_ok": exist_ok}
    names: list[str] = []
    futures: list[AnyFuture] = []
    try:
        for number, item in enumerate(items):
            names.append(f"{number:06}")
            place = _below(local, remote, names[-1])
            futures.append(executor.submit(_write_item, make_writer, samples_of, item, place, settings))
        for number, future in enumerate(futures):
            _wait(future, number)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    if not names:
        raise ConfigurationError("items", names, "at least one")
    return merge_index([_below(local, remote, name) for name in names], out, keep_local=keep_local)


def _wait(future: AnyFuture, number: int) -> None:
    try:
        future.result()
    except (Exception, CancelledError) as error:
        error.add_note(f"while item {number} (from 0) was written")
        raise


def _below(local: str | None, remote: str | None, name: str) -> IndexLocation:
    sides = [f"{side.rstrip('/')}/{name}" for side in (local, remote) if side is not None]
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _write_item(
    make_writer: Callable[..., ShardWriter],
    samples_of: Callable[[_Item], Iterable[Mapping[str, Any]]],
    item: _Item,
    place: IndexLocation,
    settings: Mapping[str, bool],
) -> None:
    with make_writer(out=place, **settings) as writer:
        for sample in samples_of(item):
            try:
                writer.write(sample)
            except SampleError as error:
                error.add_note(f"sample {writer.num_samples} (from 0) of the item")
                raise

"""Microbatches of rows that a user's function makes of windows of samples.

A window's worker reads its samples and calls the function, while other workers do so with the windows behind it. Then it
takes the rows that the windows before have left over, and says at once what it leaves itself: the next window's worker
begins to collate. So a microbatch is collated where its last row was made, and no worker makes a window twice.
"""

import copy
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any, NamedTuple, TypeAlias, cast

from torch.utils import data as torch_data

from fkat_data.errors import CacheFullError, ConfigurationError, DownloadError, StateMismatchError, ValueLimitError
from fkat_data.errors.sample_errors import early_end, note_misfit, note_source_locations
from fkat_data.errors.wording import add_note, notes_of
from fkat_data.runtime.interruption import genuine, is_interruption
from fkat_data.seeding import ShardRng, microbatch_seed, undoing_draws
from fkat_data.transport.codec import dumps, loads
from fkat_data.types import stream_source_of
from fkat_data.worker.fetch import call_collate, gives_items_together, items_in_turn
from fkat_data.worker.messages import ShardTrailer, WithPlanUpdate, content_of
from fkat_data.worker.microbatch_source import Opening, SequentialSource, ShardProduct

WindowFunction: TypeAlias = Callable[[list[Any]], list[Any]]
"""Makes rows of a window's samples: as many as it likes, none too."""

_MOST_SHOWN = 5
_DATA: Any = torch_data  # whose functions leave their types open


class Window(NamedTuple):
    """Samples that follow on one another in an epoch's order, as a worker gets them.

    Attributes:
        epoch: The epoch.
        number: The window's, in the order of the whole epoch, whatever the number of ranks.
        indices: Those of its samples.
        first_row: Rows of it that were delivered before.
        is_last: Whether no other window of this rank follows in the epoch.
        left_out: Offsets of the samples that were left out when those rows were made.
        is_begun: Whether rows of it may have been delivered before, though it gives them all again.
    """

    epoch: int
    number: int
    indices: list[int]
    first_row: int
    is_last: bool
    left_out: tuple[int, ...] = ()
    is_begun: bool = False

    @property
    def in_words(self) -> str:
        """What messages call it."""
        shown = ", ".join(map(str, self.indices[:_MOST_SHOWN]))
        return f"window {self.number} (samples {shown}{', …' if len(self.indices) > _MOST_SHOWN else ''})"

    def __repr__(self) -> str:
        return f"<{self.in_words}>"


class _Row(NamedTuple):
    """A row, and the window and the offset in it that it came from."""

    window: int
    offset: int
    value: Any


class Skipped(NamedTuple):
    """A sample that was left out.

    Attributes:
        offset: Its offset in the window.
        number: The sample's index.
        reason: What it raised, with the file, row or key that the dataset has it from.
    """

    offset: int
    number: Any
    reason: str


# They are of the machine, the store or the dataset.
_NOT_THE_SAMPLES = (CacheFullError, ConfigurationError, DownloadError, MemoryError, StateMismatchError)


class _Skipping:
    """A dataset that gives a ``Skipped`` for a sample that raises, by its offset and index.

    Samples that were left out when the window was made before are read again, since they may draw before they raise, and
    left out again.

    Args:
        dataset: The user's.
        left_out: Offsets of those that were left out before.
        skips: Whether another one that raises is left out.
    """

    def __init__(self, dataset: Any, left_out: tuple[int, ...], *, skips: bool) -> None:
        self._dataset = dataset
        self._source = stream_source_of(dataset)
        self._left_out = left_out
        self._skips = skips

    def __getitem__(self, item: tuple[int, Any]) -> Any:
        offset, index = item
        is_left_out = offset in self._left_out
        undo = undoing_draws() if is_left_out else None
        try:
            sample = self._dataset[index] if self._source is None else self._source.samples([index])[0]
        except genuine(Exception) as error:
            is_other = isinstance(error, _NOT_THE_SAMPLES) and not isinstance(error, ValueLimitError)
            if not is_left_out and (not self._skips or is_other):
                raise
            note_source_locations(error, self._dataset, [index])
            return Skipped(offset, index, "; ".join([f"{type(error).__name__}: {error}", *notes_of(error)]))
        if undo is None:
            return sample
        undo()  # it can be read now: what it draws now, it may not have drawn
        return Skipped(offset, index, "")


class CollateSpec(NamedTuple):
    """Functions and sizes by which samples become rows, and rows microbatches.

    Attributes:
        functions: Called one on what the other has returned; none: the samples are the rows.
        collate_fn: The user's, or torch's.
        batch_size: Rows of a microbatch; None: each row is one.
        drop_last: Whether a smaller last microbatch, of an epoch or of a shard, is left out.
    """

    functions: Sequence[WindowFunction]
    collate_fn: Callable[[Any], Any]
    batch_size: int | None
    drop_last: bool


class WindowProduct(ShardProduct):
    """The microbatches that end in a window.

    Args:
        window: The window.
        dataset: The user's.
        spec: What becomes of its samples.
        seed: The loader's.
        skips: Whether a sample that raises is left out.
    """

    def __init__(self, window: Window, dataset: Any, spec: CollateSpec, *, seed: int, skips: bool) -> None:
        self._skips = skips
        self.skipped: list[Skipped] = []
        """The samples that were left out, once the window is read; of those before a resume, none."""
        self._window = window
        self._dataset = dataset
        self._spec = spec
        self._seed = seed

    def microbatch_source(self, opening: Opening) -> SequentialSource:
        """Return the source of ``batches``."""
        take, give = opening.take_leftover_rows, opening.give_leftover_rows
        assert take is not None  # noqa: S101 - workers have both
        assert give is not None  # noqa: S101 - as above
        return SequentialSource(lambda _: (0, self.batches(take, give, opening.collate)), opening.rng)

    def batches(
        self,
        take_leftover_rows: Callable[[], bytes],
        give_leftover_rows: Callable[[bytes], None],
        collate: Callable[[Any], Any] | None,
    ) -> Iterator[WithPlanUpdate | ShardTrailer]:
        """Yield the microbatches, each with an update: see ``read_update``.

        Where no microbatch ends in the window, what was left out of it comes alone: see ``read_skipped``.

        Args:
            take_leftover_rows: Waits for the rows that the windows before have left over.
            give_leftover_rows: Gets the rows that are left over for the next window, before the first microbatch.
            collate: Does what torch's ``default_collate`` does.

        Raises:
            Exception: The user's.
            ConfigurationError: A function has not returned a list.
        """
        window, batch_size = self._window, self._spec.batch_size
        self._rng(window.number).seed_opening()
        rows = called_in_turn(self._spec.functions, self._samples(), window.in_words)
        num_rows = len(rows)
        own = [_Row(window.number, index, rows[index]) for index in range(min(window.first_row, num_rows), num_rows)]
        if batch_size is None:
            for row in own:
                num_behind = num_rows - row.offset - 1
                yield WithPlanUpdate(
                    self._collated(row.value, row, None), self._update(row.offset + 1, num_rows, num_behind)
                )
            if not own:
                yield from self._trailer()
            return
        leftover_rows = take_leftover_rows()
        left = [*map(_Row._make, loads(leftover_rows)), *own] if leftover_rows else own
        num_whole = len(left) // batch_size * batch_size
        rest = left[num_whole:]
        if not window.is_last:
            give_leftover_rows(dumps([tuple(row) for row in rest]) if rest else b"")
        elif rest and not self._spec.drop_last:
            num_whole = len(left)
        for first in range(0, num_whole, batch_size):
            batch = left[first : first + batch_size]
            update = self._update(batch[-1].offset + 1, num_rows, -(-(num_whole - first) // batch_size) - 1)
            yield WithPlanUpdate(self._collated([row.value for row in batch], batch[0], collate), update)
        if not num_whole:
            yield from self._trailer()

    def _trailer(self) -> Iterator[ShardTrailer]:
        """Yield what says which samples were left out."""
        if self.skipped:
            yield ShardTrailer(dumps(self.skipped))

    def _samples(self) -> list[Any]:
        dataset, window = self._dataset, self._window
        indices, left_out = window.indices, window.left_out
        # Rows that were delivered are counted: none before them may be left out now.
        skips = self._skips and not (window.first_row or window.is_begun)
        skipping = _Skipping(dataset, left_out, skips=skips), [*enumerate(indices)]
        try:
            if left_out and not skips:
                return [each for each in items_in_turn(*skipping) if not isinstance(each, Skipped)]
            source = stream_source_of(dataset)
            if source is not None and not left_out:
                return source.samples(indices)
            if gives_items_together(dataset) and not left_out:
                return [*dataset.__getitems__(indices)]
            if not skips:
                return items_in_turn(dataset, indices)
        except Exception as error:
            if not skips and isinstance(error, StopIteration) and not is_interruption(error):
                raise early_end("the dataset") from error
            if not skips or is_interruption(error):
                note_source_locations(error, dataset, indices)
                if self._skips and not skips:
                    add_note(
                        error, f"not left out: rows of {window.in_words} were delivered with it, before the resume"
                    )
                raise
            self._rng(window.number).seed_opening()
        found = items_in_turn(*skipping)
        self.skipped = [each for each in found if isinstance(each, Skipped) and each.offset not in left_out]
        return [each for each in found if not isinstance(each, Skipped)]

    def _collated(self, rows: Any, first: _Row, collate: Callable[[Any], Any] | None) -> Any:
        self._rng(first.window).seed_microbatch(first.offset)
        default = collate if self._spec.collate_fn is _DATA.default_collate else None
        try:
            return call_collate(self._spec.collate_fn, rows) if default is None else default(rows)
        except Exception as error:
            if default is not None:
                note_misfit(error, rows)
            source = stream_source_of(self._dataset)
            if isinstance(error, KeyError) and source is not None:
                source.note_columns(error)
            raise

    def _update(self, num_rows: int, num_all: int, num_behind: int) -> bytes:
        update = _UPDATE.pack(-1 if num_rows == num_all else num_rows, num_behind)
        return update + dumps(self.skipped) if self.skipped else update

    def _rng(self, window: int) -> ShardRng:
        # Of no rank: with another number of ranks, a window draws the same.
        return ShardRng.of(self._seed, 0, self._window.epoch, window)


class ShardWindows(ShardProduct):
    """What a factory with a window function returns for a shard: the microbatches of the rows of its windows.

    A resume within the shard makes the windows before its position again: how many rows they have is not known otherwise.
    Without functions it is, and nothing is read again.

    Args:
        dataset: The shard's.
        order: The indices of its samples; None: its own order, or that of an iterable dataset.
        spec: What becomes of its samples.
        window_size: Samples of a window.
        max_skipped: Samples of an epoch that may be left out because they raise; None: none may.

    Raises:
        ConfigurationError: Samples of an iterable dataset shall be left out.
    """

    def __init__(
        self, dataset: Any, order: Iterable[Any] | None, spec: CollateSpec, window_size: int, max_skipped: int | None
    ) -> None:
        self.dataset: Any = dataset
        """The shard's, which a state may ask for its files."""
        self._is_iterable = isinstance(dataset, _DATA.IterableDataset) or not hasattr(dataset, "__getitem__")
        if max_skipped is not None and self._is_iterable:
            expected = "'raise', with an iterable dataset: its iteration ends where it raises"
            raise ConfigurationError("on_sample_error", "skip", expected)
        self._order = order
        self._spec = spec
        self._window_size = window_size
        self._max_skipped = max_skipped
        self._left_out: tuple[int, ...] = ()
        self._seed: int = microbatch_seed() or 0  # under which the shard is opened
        self._drawn: list[list[Any]] | None = None

    def _draw_order(self) -> None:
        """Draw the indices of all windows: threads, which make the rows, do not seed the global generators."""
        if self._order is not None and not self._is_iterable:
            iterator = iter(self._order)
            numbers = count()
            self._drawn = [*iter(lambda: self._read(iterator, next(numbers)), [])]

    def without(self, offsets: tuple[int, ...]) -> "ShardWindows":
        """Return the same, which leaves out these samples, by their offsets in the shard's order."""
        found = copy.copy(self)
        vars(found)["_left_out"] = offsets
        return found

    def microbatch_source(self, opening: Opening) -> SequentialSource:
        """Return the source of the microbatches.

        Samples that were left out are said with the next microbatch, or behind the last one: see ``read_left_out``. A
        window whose rows were delivered leaves out no others than it did then.
        """

        def begin(first: int) -> tuple[int, Iterator[Any]]:
            if opening.is_threaded:
                self._draw_order()
            begun = 0 if self._spec.functions else first
            return begun, self._made(begun, first, opening.collate)

        return SequentialSource(begin, opening.rng)

    def __iter__(self) -> Iterator[Any]:
        """Yield the microbatches.

        Raises:
            Exception: The user's.
            ConfigurationError: A function has not returned a list.
        """
        return (content_of(made) for made in self._made(0, 0, None) if type(made) is not ShardTrailer)

    def _made(self, begin: int, num_delivered: int, collate: Callable[[Any], Any] | None) -> Iterator[Any]:
        leftover_rows, unsaid, index = [b""], list[Skipped](), begin
        num_left = begin * (self._spec.batch_size or 1)
        for window, dataset in self._windows():
            num_rows = len(window.indices) - len(window.left_out) if num_left else 0
            if num_left and num_rows <= num_left:
                num_left -= num_rows
                continue
            product = WindowProduct(
                window._replace(first_row=num_left, is_begun=index < num_delivered),
                dataset,
                self._spec,
                seed=self._seed,
                skips=self._max_skipped is not None,
            )
            num_left = 0
            for number, made in enumerate(product.batches(leftover_rows.pop, leftover_rows.append, collate)):
                if not number:
                    first = window.number * self._window_size
                    unsaid += [each._replace(offset=first + each.offset) for each in product.skipped]
                if isinstance(made, WithPlanUpdate):
                    yield self._saying(made.microbatch, unsaid) if unsaid else made.microbatch
                    unsaid.clear()
                    index += 1
        if unsaid:
            yield ShardTrailer(dumps((self._max_skipped, unsaid)))

    def _saying(self, microbatch: Any, skipped: Sequence[Skipped]) -> WithPlanUpdate:
        return WithPlanUpdate(
            microbatch, dumps((self._max_skipped, [*skipped])), tuple(each.offset for each in skipped)
        )

    def _windows(self) -> Iterator[tuple[Window, Any]]:
        whole: Any = self.dataset
        source: Any = whole if self._is_iterable else range(len(whole)) if self._order is None else self._order
        iterator: Iterator[Any] = iter(source)
        following = self._read(iterator, 0)
        for number in count():
            present, following = following, self._read(iterator, number + 1)
            if not present:
                return
            # The samples of an iterable dataset are there: what is left is to call the functions.
            read: Any = present if self._is_iterable else whole
            indices: list[Any] = list(range(len(present))) if self._is_iterable else present
            first = number * self._window_size
            left_out = tuple(offset - first for offset in self._left_out if first <= offset < first + len(present))
            yield Window(0, number, indices, 0, is_last=not following, left_out=left_out), read

    def _read(self, iterator: Iterator[Any], number: int) -> list[Any]:
        if self._drawn is not None:
            return self._drawn[number] if number < len(self._drawn) else []
        ShardRng.of(self._seed, 0, 0, number).seed_batch_order(0)
        return [*islice(iterator, self._window_size)]


def called_in_turn(functions: Sequence[WindowFunction], samples: list[Any], window: str) -> list[Any]:
    """Return the rows that functions make of samples, each of what the one before has returned.

    Args:
        functions: The functions.
        samples: The window's.
        window: What a note on an error calls the window.

    Raises:
        Exception: A function's.
        ConfigurationError: A function has not returned a list.
    """
    rows = samples
    for function in functions:
        try:
            rows = function(rows)
            if not isinstance(rows, list):
                found = f"{_name_of(function)}, which returned a {type(rows).__name__}"
                raise ConfigurationError("window_fn", found, "a function that returns a list of rows")
        except Exception as error:
            where = f"in window_fn, {_name_of(function)}, of {window}"
            if isinstance(error, StopIteration) and not is_interruption(error):
                stopped = early_end("window_fn")
                add_note(stopped, where)
                raise stopped from error
            add_note(error, where)
            raise
    return rows


_UPDATE = struct.Struct("<qQ")


def read_update(update: bytes) -> tuple[int, int, list[Skipped]]:
    """Return how far a microbatch goes in a window.

    Returns:
        The rows of the window up to its end, -1 for all; the window's microbatches behind it; and the samples that were
        left out of the window.
    """
    num_rows, num_behind = _UPDATE.unpack_from(update)
    return num_rows, num_behind, read_skipped(update[_UPDATE.size :])


def read_skipped(trailer: bytes) -> list[Skipped]:
    """Return the samples that were left out of a window."""
    return [*map(Skipped._make, loads(trailer))] if trailer else []


def read_left_out(said: bytes) -> tuple[int, list[Skipped]]:
    """Return how many samples of an epoch may be left out of shards, and which were since the microbatch before."""
    most, skipped = loads(said)
    return most, [*map(Skipped._make, skipped)]


def window_functions_of(window_fn: object) -> tuple[WindowFunction, ...]:
    """Return the functions of a ``window_fn``, in the order of their calls; None has none.

    Raises:
        ConfigurationError: It is neither a function nor a list of functions.
    """
    functions: Any = () if window_fn is None else (window_fn,) if callable(window_fn) else window_fn
    is_list = isinstance(functions, (list, tuple)) and all(map(callable, cast("list[Any]", functions)))
    if is_list and (functions or window_fn is None):
        return tuple(cast("list[WindowFunction]", functions))
    raise ConfigurationError("window_fn", window_fn, "a function of a list of samples, or a list of functions")


def _name_of(function: Any) -> str:
    inner = getattr(function, "func", function)  # of a functools.partial
    return getattr(inner, "__qualname__", None) or type(inner).__qualname__


def version_of(functions: Sequence[object]) -> str:
    """Return what a state says of window functions: their own ``version``, or their qualified names."""
    return ", ".join(_version_of(function) for function in functions)


def _version_of(function: Any) -> str:
    version = getattr(function, "version", None)
    if version is not None:
        return str(version)
    inner = getattr(function, "func", function)
    return f"{getattr(inner, '__module__', None) or type(inner).__module__}.{_name_of(function)}"

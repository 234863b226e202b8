"""The plan of a loader with a window function: an epoch's order is cut into windows, which are dealt out to ranks.

A window is a task. How many rows it has shows when it is made, so a position is a window and a row of it: the first that
was not delivered. Where the number of ranks changes, windows that no rank has begun are dealt out again, and those that
were begun go on at their rows. A state says it so, in the field ``sampler``::

    {"num_samples": 5000, "shuffle": True, "window": 3, "row": 17, "begun": [[8, 17], [9, 0]], "layers": [[4, 5]]}

Where samples were left out of a window that was begun, ``left_out``, and a third entry in ``begun``, has their offsets
in it, so that its rows are the same when it is made again. Of a stream, it says as well how windows lie in the
canonical nodes' parts of the order, and what the order follows from.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from fkat_data.errors import ConfigurationError, SkippedSamplesError, StateMismatchError
from fkat_data.errors.wording import counted
from fkat_data.loaders.computed_plan import EpochShuffle, SampleOrder, is_computed
from fkat_data.loaders.loader_plan import IndexPlan, Provenance, plain_indices
from fkat_data.loaders.loader_state import LoaderState
from fkat_data.loaders.rank_share import RankShare
from fkat_data.loaders.reshards import distributed_sampler_of
from fkat_data.loaders.sampler_plan import SamplerPlan
from fkat_data.loaders.sampler_states import FirstBatch
from fkat_data.loaders.shortest_rank import ShortestRankOfJob, TakeUntilShortestRank
from fkat_data.loaders.window_states import DealtWindows, WindowPosition, dealt_windows, window_position_in
from fkat_data.plan.position import Position, ResumeState, Task, TaskOrigin
from fkat_data.types import stream_source_of
from fkat_data.worker.windows import Skipped, Window, read_skipped, read_update, window_functions_of

_logger = logging.getLogger(__name__)

# Frameworks ask for the position of a batch or two ago, and a microbatch or two are on their way to the device.
_MOST_KEPT = 64
# More than there are tasks in work.
_MOST_PLANNED = 256
_BEGUN, _ORDERS = "samplers_begun", "window_orders"
_WINDOWED = "with window_fn or on_sample_error='skip'"


class WindowOrder(ABC):
    """The order that windows are cut from."""

    @property
    def has_states(self) -> bool:
        """Whether the order depends on the epochs before."""
        return False

    def renew(self, epoch: int, step: int) -> None:
        """Begin again when the next iteration begins; the caller has ``step`` microbatches of the epoch."""

    @abstractmethod
    def order_fields(self, epoch: int, saved: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the windows of an epoch depend on, as the field ``sampler`` of a state says it.

        Args:
            epoch: The epoch.
            saved: What a state says, which was taken within this epoch; None: there is none.
        """

    def drawn(self, epoch: int, num_windows: int) -> dict[str, Any]:
        """Return what a state says besides, where ``num_windows`` windows of the epoch were begun."""
        return {}

    @abstractmethod
    def samples(self, epoch: int, order_fields: Mapping[str, Any]) -> Callable[[int], list[int]]:
        """Return what gives the samples of an epoch's window, by its number.

        Raises:
            StateMismatchError: The fields are a state's, of other data.
        """

    def followed(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Yield windows that this rank will read, while what those behind them need is fetched."""
        return windows

    def finish(self, epoch: int, order_fields: Mapping[str, Any]) -> None:
        """Come to the epoch's end. Any number of calls."""


class SampledWindows(WindowOrder):
    """The order of a dataset with indices.

    Args:
        sampler: ``EpochShuffle`` or torch's ``SequentialSampler``; its length is read when an epoch begins.
        window_size: Samples of a window.
        seed: The loader's.
        begun_lengths: Samples in each epoch that was begun before files were appended.
    """

    def __init__(self, sampler: Any, window_size: int, seed: int, begun_lengths: Mapping[int, int]) -> None:
        self._begun_lengths = begun_lengths
        self._sampler = sampler
        self._window_size = window_size
        self._seed = seed
        if isinstance(sampler, EpochShuffle):
            sampler.seed = seed

    def order_fields(self, epoch: int, saved: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the number of samples, and whether they are shuffled."""
        num_samples = self._begun_lengths.get(epoch, len(self._sampler))
        return {"num_samples": num_samples, "shuffle": isinstance(self._sampler, EpochShuffle)}

    def samples(self, epoch: int, order_fields: Mapping[str, Any]) -> Callable[[int], list[int]]:
        """Return what gives the indices of a window."""
        shuffle: tuple[int, int] | None = None
        if isinstance(self._sampler, EpochShuffle):
            self._sampler.epoch, shuffle = epoch, (self._seed, epoch)
        return SampleOrder(order_fields["num_samples"], self._window_size, drop_last=False, shuffle=shuffle).batch


class DrawnWindows(WindowOrder):
    """The order of a sampler of the user's. Each rank draws all of it, some windows ahead, and reads its own.

    Args:
        sampler: The user's.
        window_size: Samples of a window.
        seed: The loader's.
        known: Of the loader's first iteration.
    """

    def __init__(self, sampler: Sized, window_size: int, seed: int, known: FirstBatch) -> None:
        self._sampler = sampler
        self._window_size = window_size
        batches: Any = BatchSampler(sampler, window_size, drop_last=False)  # type: ignore[arg-type]  # iterable, as checked
        self._plan = SamplerPlan(batches, seed, 0, most_ahead=1, known=known)
        self._saved: Mapping[str, Any] | None = None
        # The epoch whose end this rank has come to, and its windows.
        self._ended: tuple[int, int] | None = None

    @property
    def has_states(self) -> bool:
        """Whether the order depends on states of samplers, and so on the epochs before."""
        return self._plan.has_states

    def renew(self, epoch: int, step: int) -> None:
        """Iterate the sampler again when the next iteration begins."""
        self._go_to_end()
        if step and self._ended is not None and self._ended[0] == epoch:
            step = self._ended[1]  # the plan's steps are windows, all of which are drawn
        self._ended = None
        self._plan.renew(epoch, step)

    def order_fields(self, epoch: int, saved: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the number of samples, and the samplers' states when the epoch began."""
        if saved is not None and saved is not self._saved:
            self._saved, self._ended = saved, None
            self._plan.load_plan_state(epoch, {**saved[_BEGUN], "orders": saved[_ORDERS]})
        return {"num_samples": len(self._sampler), **self.drawn(epoch, 0)}

    def drawn(self, epoch: int, num_windows: int) -> dict[str, Any]:
        """Return the samplers' states when the epoch began, and a digest of what they gave up to a window."""
        if self._ended is not None and self._ended[0] != epoch:
            self._go_to_end()
        begun = self._plan.state_at(epoch, num_windows)
        begun.pop("within", None)
        orders = begun.pop("orders", [])
        count, order = begun.pop("step", 0), begun.pop("order", 0)
        return {_BEGUN: begun, _ORDERS: [[count, order]] if count and order else orders}

    def samples(self, epoch: int, order_fields: Mapping[str, Any]) -> Callable[[int], list[int]]:
        """Return what gives the samples of a window.

        It raises ``StateMismatchError`` where the sampler gives another order than when the state was saved, and
        ``ConfigurationError`` where it gives more or fewer samples than its ``len`` says.
        """
        num_samples: int = order_fields["num_samples"]
        if self._ended is not None and self._ended[0] < epoch:
            # An iteration that had nothing left of a resumed epoch goes on here, and the sampler with it.
            self._go_to_end()
            self._ended = None

        def samples_of(number: int) -> list[int]:
            found: list[int] = self._plan.batch_at(epoch, number) or []
            num_before = number * self._window_size
            expected = min(self._window_size, num_samples - num_before)
            if len(found) != expected:
                raise self._wrong_length(num_samples, num_before + len(found))
            return found

        return samples_of

    def finish(self, epoch: int, order_fields: Mapping[str, Any]) -> None:
        """Iterate the sampler to its end, so that what it draws from is where the next epoch begins on every rank."""
        self._ended = epoch, -(-order_fields["num_samples"] // self._window_size)
        if self._go_to_end() is not None:
            raise self._wrong_length(order_fields["num_samples"], "more")

    def _go_to_end(self) -> object:
        """Draw the rest of an epoch that has ended: an earlier window, asked for since, is drawn from the beginning."""
        return None if self._ended is None else self._plan.batch_at(*self._ended)

    def _wrong_length(self, num_samples: int, found: object) -> ConfigurationError:
        return ConfigurationError("sampler", f"<{found} samples>", f"{num_samples}, as its len() says")


class WindowPlan(IndexPlan):
    """The plan of epochs whose tasks are windows.

    Args:
        order: What they are cut from.
        window_size: Samples of a window.
        share: What this rank gets of the windows; None: there is one rank.
        shortest_rank: By what ranks end an epoch together.
        is_batched: Whether rows of several windows form a microbatch.
        max_skipped: Samples of an epoch that may be left out; None: none is.
    """

    has_several_tasks = has_undivided_tasks = True
    in_words = "a dataset whose windows become rows, with window_fn or on_sample_error"

    def __init__(
        self,
        order: WindowOrder,
        window_size: int,
        share: RankShare | None,
        shortest_rank: ShortestRankOfJob,
        *,
        is_batched: bool,
        max_skipped: int | None = None,
    ) -> None:
        self._max_skipped = max_skipped
        # By epoch and window: offsets of samples that were left out, here and before a resume; and how many were here.
        self._left_out: dict[tuple[int, int], tuple[int, ...]] = {}
        self._skipped: dict[tuple[int, int], int] = {}
        self._order = order
        self._window_size = window_size
        self._share = share
        self.has_leftover_rows = is_batched
        self._order_fields: Mapping[str, Any] = {}
        self._windows = DealtWindows(0, None)
        # Those from some window on, one after the other, and the newest of them.
        self._followed: Iterator[Window] = iter(())
        self._num_followed = 0
        self._kept: dict[int, Window] = {}
        # Where the tasks in work begin; positions behind microbatches, by epoch and step.
        self._begin = WindowPosition(0, 0)
        self._window_positions: dict[tuple[int, int], WindowPosition] = {}
        self._num_handed_out = 0
        # Microbatches of the same window behind one, by the step after it.
        self._num_behind: dict[int, int] = {}
        self._shortest_rank = shortest_rank

    @property
    def has_states(self) -> bool:
        """Whether the order depends on states of samplers, and so on the epochs before."""
        return self._order.has_states

    def renew(self, epoch: int, step: int) -> None:
        """Read the number of samples again when the next iteration begins."""
        if step:
            self._finish(epoch)
        self._order.renew(epoch, step)
        self._epoch = -1

    def leave(self, position: Position) -> None:
        """Come to the end of an epoch that is left."""
        self._finish(position.epoch)

    def _finish(self, epoch: int) -> None:
        """Bring the order to the end of an epoch, where it is on every rank, however few windows this one has read."""
        if epoch == self._epoch:
            self._order.finish(epoch, self._order_fields)

    def begin_at(self, position: Position) -> Position:
        """Return where tasks begin for a position: with the window of the first row that was not delivered."""
        self._go_to(position.epoch)
        self._begin = self._window_position(position)
        self._kept.clear()
        self._window_positions[position.epoch, position.step] = self._begin
        self._num_handed_out = position.step
        return Position(position.epoch, self._begin.window, 0, position.step)

    def payload(self, epoch: int, index: int) -> Window | None:
        """Return the window at an index of this rank's, or None past the epoch's end.

        Raises:
            ConfigurationError: There are fewer windows than ranks.
            StateMismatchError: The dataset has another length than when the state of this epoch was saved.
        """
        self._go_to(epoch)
        if index >= len(self._windows):
            self._finish(epoch)
            return None
        if index not in self._kept:
            if index != self._num_followed or not self._kept:
                self._num_followed, self._followed = index, self._order.followed(self._windows_from(index))
                self._kept.clear()
            # Where this call is interrupted, the next one begins again.
            kept, self._kept = self._kept, {}
            kept[index] = next(self._followed)
            kept.pop(index - _MOST_PLANNED, None)
            self._num_followed, self._kept = index + 1, kept
        return self._kept[index]

    def _windows_from(self, first: int) -> Iterator[Window]:
        samples_of = self._order.samples(self._epoch, self._order_fields)
        for index in range(first, len(self._windows)):
            number, first_row, left_out = self._windows[index]
            if index == self._begin.window and self._begin.row > first_row:
                first_row, left_out = self._begin.row, self._begin.left_out
            if left_out:
                self._left_out[self._epoch, index] = left_out
            is_last = index + 1 == len(self._windows)
            yield Window(self._epoch, number, samples_of(number), first_row, is_last, left_out)

    def origin(self, epoch: int, index: int) -> TaskOrigin:
        """Return what says where random streams come from: a window's are those of its number, on every rank."""
        self._go_to(epoch)
        return TaskOrigin(0, self._windows[index][0], 0)

    def tasks_of(self, task: Task, position: Position) -> tuple[Task, ...]:
        """Return the windows whose rows a microbatch has: the last of them makes it."""
        at = self._window_position(position)
        windows = [self.payload(task.epoch, index) for index in range(at.window, task.task_index + 1)]
        begun = windows[0]
        if begun is not None and at.row > begun.first_row:
            windows[0] = begun._replace(first_row=at.row, left_out=at.left_out)
        return tuple(
            task._replace(task_index=index, payload=window, origin=self.origin(task.epoch, index), first_microbatch=0)
            for index, window in enumerate(windows, at.window)
        )

    def saved_payload(self, payload: Window, number: int) -> list[Any]:
        """Return a window as plain values."""
        return [*map(plain_indices, payload)]

    def loaded_payload(self, saved: Any, number: int) -> Window:
        """Return a window."""
        epoch, window, indices, first_row, is_last, left_out, is_begun = saved
        return Window(epoch, window, indices, first_row, is_last, tuple(left_out), is_begun)

    def record(self, task: Task, num_made: int, update: bytes) -> None:
        """Remember the position behind a microbatch."""
        row, num_behind, skipped = read_update(update)
        self._leave_out(task, skipped)
        self._num_handed_out += 1
        self._num_behind[self._num_handed_out] = num_behind
        at = WindowPosition(task.task_index + 1, 0)
        if row >= 0:
            left_out = self._left_out.get((task.epoch, task.task_index), ())
            at = WindowPosition(task.task_index, row, left_out)
        self._window_positions[task.epoch, self._num_handed_out] = at
        while len(self._window_positions) > _MOST_KEPT:
            del self._window_positions[next(iter(self._window_positions))]
        self._num_behind.pop(self._num_handed_out - _MOST_KEPT, None)

    def made_of(self, position: Position) -> list[Provenance]:
        """Return the windows whose rows a microbatch has, and their samples."""
        first, last = (self._window_positions.get((position.epoch, position.step + behind)) for behind in (0, 1))
        if first is None or last is None or position.epoch != self._epoch:
            return []
        samples_of = self._order.samples(self._epoch, self._order_fields)
        found: list[Provenance] = []
        for index in range(first.window, last.window + (last.row > 0)):
            number, first_row, _ = self._windows[index]
            rows = max(first_row, first.row if index == first.window else 0), last.row if index == last.window else None
            left_out = self._left_out.get((self._epoch, index), ())
            samples = [sample for offset, sample in enumerate(samples_of(number)) if offset not in left_out]
            found.append(Provenance(samples, [], number, rows))
        return found

    def end_task(self, task: Task, trailer: bytes) -> None:
        """Count the samples that were left out of a window that no microbatch ends in."""
        self._leave_out(task, read_skipped(trailer))

    def _leave_out(self, task: Task, skipped: list[Skipped]) -> None:
        """Count and log samples that were left out of a window.

        Raises:
            SkippedSamplesError: They are too many.
        """
        if not skipped or self._max_skipped is None:
            return
        window = task.epoch, task.task_index
        if window not in self._skipped:  # else another microbatch says it, or it is made again
            self.num_skipped_samples += len(skipped)
            self._skipped = {key: count for key, count in self._skipped.items() if key[0] == task.epoch}
            self._left_out = {key: offsets for key, offsets in self._left_out.items() if key[0] == task.epoch}
            self._skipped[window] = len(skipped)
            self._left_out[window] = tuple(offset for offset, _, _ in skipped)
            for _, number, reason in skipped:
                _logger.warning("sample %s of epoch %d is left out: %s", number, task.epoch, reason)
        num_skipped = self._num_skipped(task.epoch, WindowPosition(task.task_index + 1, 0))
        num_skipped += self._loaded_at(task.epoch).get("skipped_before", 0)
        if num_skipped > self._max_skipped:
            last = f"sample {skipped[-1].number}: {skipped[-1].reason}"
            raise SkippedSamplesError(task.epoch, num_skipped, self._max_skipped, last)

    def _num_skipped(self, epoch: int, at: WindowPosition) -> int:
        """Return how many samples were left out of this rank's windows before a position, those of a begun one too."""
        saved, end = self._loaded_at(epoch), at.window + (at.row > 0)
        counts = (count for (of, number), count in self._skipped.items() if of == epoch and number < end)
        return saved.get("num_skipped", 0) + sum(counts)

    def wrapped_take(self, take: Callable[[], Any], engine: Any) -> Callable[[], Any]:
        """Return what takes microbatches as long as every rank has one."""
        shortest_rank = None if self._share is None else self._shortest_rank.get()

        def reached() -> tuple[int, int]:
            position = engine.position
            return position.epoch, position.step

        def num_certain() -> int:
            return 1 + max(self._num_behind.get(engine.position.step + 1, 0), engine.count_ahead())

        def cut() -> str:
            num_windows = len(self._windows) - self._window_position(engine.position).window
            left = f"{counted(num_certain(), 'microbatch')} or more of {counted(num_windows, 'window')}"
            engine.cut_epoch()
            return f"{left} left out on this rank"

        return (
            take
            if shortest_rank is None
            else TakeUntilShortestRank(take, shortest_rank, reached, num_certain, cut, engine)
        )

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return what the rest of an epoch depends on."""
        at = self._window_position(Position(epoch, 0, 0, step))
        order_fields = (
            self._order_fields
            if epoch == self._epoch
            else self._order.order_fields(epoch, self._loaded_at(epoch) or None)
        )
        begun = self._order.drawn(epoch, self._num_begun(epoch, at))
        state = {**order_fields, **begun, "window": at.window, "row": at.row, **self._split_of(epoch)}
        if at.left_out:
            state["left_out"] = list(at.left_out)
        if self._max_skipped is not None:
            state["num_skipped"] = self._num_skipped(epoch, at)
        return state

    def _num_begun(self, epoch: int, at: WindowPosition) -> int:
        """Return up to which window of the whole epoch this rank needs its order before a position."""
        last = at.window - (not at.row)
        return self._windows[last].number + 1 if epoch == self._epoch and 0 <= last < len(self._windows) else 0

    def _window_position(self, position: Position) -> WindowPosition:
        at = self._window_positions.get((position.epoch, position.step))
        if at is not None:
            return at
        saved = self._loaded_at(position.epoch)
        if saved and position.step == saved.get("step", 0):
            return window_position_in(saved)
        if position.step:
            # Never the epoch's beginning instead: rows would come again in silence.
            hint = f"ask for a position before {_MOST_KEPT} more microbatches are delivered"
            raise StateMismatchError("step", position.step, "<a position that is known>", hint)
        return WindowPosition(0, 0)

    def _split_of(self, epoch: int) -> dict[str, Any]:
        """Return what a state says of ranks before, in an epoch that they had begun."""
        saved = self._loaded_at(epoch)
        return {name: saved[name] for name in ("begun", "layers", "skipped_before") if name in saved}

    def _go_to(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        saved = self._loaded_at(epoch)
        order_fields = self._order.order_fields(epoch, saved or None)
        num_samples: int = order_fields["num_samples"]
        self._check_length(epoch, num_samples)
        self._order_fields = {**order_fields, **self._split_of(epoch)}
        self._windows = dealt_windows(self._order_fields, self._window_size, self._share)
        num_ranks = 1 if self._share is None else self._share.num_ranks
        is_whole = num_samples and not (self._split_of(epoch) or saved.get("window") or saved.get("row"))
        if is_whole and not dealt_windows(order_fields, self._window_size, RankShare(num_ranks, num_ranks - 1)):
            most = max(1, num_samples // num_ranks)
            expected = f"at most {most:,}, so that each of {num_ranks} ranks has a window of {num_samples:,} samples"
            raise ConfigurationError("window_size", self._window_size, expected)
        self._kept.clear()
        self._epoch = epoch

    def read_state(self, state: LoaderState) -> ResumeState:
        """Return where an engine goes on after a state."""
        sampler = {**state.sampler, "step": state.step}
        return ResumeState(Position(state.epoch, sampler["window"], 0, state.step), sampler=sampler)

    def load_plan_state(self, epoch: int, state: Mapping[str, Any] | None) -> None:
        """Go on with a saved position."""
        super().load_plan_state(epoch, state)
        self._kept.clear()
        self._left_out.clear()
        self._skipped.clear()
        self._window_positions.clear()
        self._num_behind.clear()

    def epoch_again(self, state: LoaderState) -> LoaderState:
        """Return the start of a state's epoch; the state itself where other ranks had begun it, at a step that it lacks."""
        again = super().epoch_again(state)
        if not self._split_of(state.epoch):
            if self.has_states and _ORDERS in state.sampler:
                # A copy's samplers may not begin it again.
                return again.with_sampler({**again.sampler, _ORDERS: state.sampler[_ORDERS]})
            return again
        saved = self._loaded_at(state.epoch)
        return state if saved["window"] or saved["row"] else replace(again, step=saved["step"])

    def is_over(self, state: LoaderState) -> bool:
        """Return False: whether rows are left shows when the windows that are left are made."""
        return False

    def num_in_last_round(self, epoch: int) -> int:
        """Return 0: it is not known."""
        return 0

    def num_batches(self, epoch: int) -> int:
        """Raise.

        Raises:
            TypeError: How many rows there are shows when they are made.
        """
        raise TypeError(f"the number of microbatches is not known before the epoch's rows are made, {_WINDOWED}")


def check_windows(window_fn: Any, dataset: object, batch_sampler: object, on_sample_error: str) -> None:
    """Check the arguments of a loader that cuts windows.

    Raises:
        ConfigurationError: One of them does not go with it.
    """
    window_functions_of(window_fn)
    kind: Any = type(dataset)
    has_indices = hasattr(dataset, "__getitem__")
    is_stream = stream_source_of(dataset) is not None
    is_iterable = isinstance(dataset, IterableDataset) and not is_stream
    if is_iterable and on_sample_error == "skip":
        expected = "'raise', with an iterable dataset: its iteration ends where it raises"
        raise ConfigurationError("on_sample_error", on_sample_error, expected)
    if not is_iterable and not is_stream and not has_indices:
        expected = f"a dataset with indices or an iterable one, {_WINDOWED}"
        raise ConfigurationError("dataset", kind, expected)
    if batch_sampler is not None:
        raise ConfigurationError("batch_sampler", batch_sampler, f"batch_size, {_WINDOWED}: batches are cut from rows")


def order_of_windows(
    sampler: Any,
    batch_sampler: Any,
    dealing: object,
    window_size: int,
    seed: int,
    known: FirstBatch,
    begun_lengths: Mapping[int, int],
) -> WindowOrder:
    """Return a loader's order, cut into windows; ``known``: of its first iteration; ``begun_lengths``: as for ``SampledWindows``.

    Raises:
        ConfigurationError: It is of one rank, or has no length.
    """
    if dealing is not None or distributed_sampler_of(sampler) is not None:
        found = sampler if dealing is None else dealing
        expected = f"an order of all ranks, {_WINDOWED}; deal_out(num_ranks, rank) gives ranks their windows"
        raise ConfigurationError("sampler", found, expected)
    if is_computed(sampler, batch_sampler):
        return SampledWindows(sampler, window_size, seed, begun_lengths)
    if not isinstance(sampler, Sized):
        raise ConfigurationError("sampler", sampler, f"a sampler that has a length, {_WINDOWED}")
    return DrawnWindows(sampler, window_size, seed, known)

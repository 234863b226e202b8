"""What a DataLoader asks of the plan of its epochs, whatever its dataset is."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.loaders.loader_state import LoaderState
from fkat_data.loaders.rank_states import state_at_epoch
from fkat_data.plan.position import START, Exclusion, Position, Reshard, ResumeState
from fkat_data.plan.shard_plan import Plan
from fkat_data.worker.batches import BatchSequence

OTHER_LENGTH = (
    "the dataset has another length now: finish the epoch with the one that began it. To begin an epoch with this one, make "
    "the loader with the saved seed and call set_epoch(), instead of loading the state"
)


class Provenance(NamedTuple):
    """What a microbatch, or a part of it, was made of.

    Attributes:
        samples: Indices of the samples, in order, without those that were left out; of a stream, their numbers.
        locations: Where the dataset has each of them from: file, row, key; None where it does not say.
        window: The number of the window whose samples they are; None: the loader cuts none.
        rows: The first of the window's rows in the microbatch, and their end; None for the end: all that follow.
    """

    samples: list[Any]
    locations: list[str | None]
    window: int | None = None
    rows: tuple[int, int | None] | None = None


class LoaderPlan(Plan):
    """The plan of a DataLoader's epochs, and the part of a state that is the plan's."""

    takes_updates = True
    has_several_tasks: bool = False
    """Whether an epoch has several tasks, the next of which can be made ahead."""
    num_tasks_ahead: int = 1
    """Tasks in work ahead of the current one, where there are several."""
    has_undivided_tasks: bool = False
    """Whether one worker makes all of a task, instead of all workers together."""
    beginning: Any = None
    """The position that ``begin`` has returned for an iteration of which nothing was delivered yet; None: there is none."""
    counts_all_ranks: bool = False
    """Whether workers are counted over all ranks."""
    in_words: str = "an iterable dataset"
    """What messages call what it is of, where its order is not known."""
    num_strands: int | None = None
    """Interleaved tasks, one for each worker; 0: one, without a worker; None: tasks follow one another."""

    def first(self) -> Position:
        """Return the position of a loader that was not iterated."""
        return START

    def begin(self, position: Position) -> ResumeState | None:
        """Begin an iteration; return where it begins if the plan decides on that, not the engine.

        Args:
            position: Where the iteration before was left.
        """
        return None

    def epoch_and_step(self, position: Position) -> tuple[int, int]:
        """Return epoch and step of a position, as a state says them."""
        return position.epoch, position.step

    def made_of(self, position: Position) -> list[Provenance]:
        """Return what the microbatch at a position that was delivered is made of, without locations; none: it is not known."""
        return []

    def exclude(self, position: Position, exclusion: Exclusion) -> tuple[Reshard, ...]:
        """Leave samples out from a position on.

        Returns:
            The reshards that a state has from now on.

        Raises:
            ConfigurationError: The plan cannot be computed without them, or does not know them.
        """
        raise _unknown_order(self.in_words)

    def made_at(self, epoch: int, step: int) -> dict[int, list[Any]]:
        """Return the samples of the microbatch at a step, for each rank that has one there.

        Raises:
            ConfigurationError: The plan cannot be computed.
        """
        raise _unknown_order(self.in_words)

    @abstractmethod
    def saved(self, position: Position) -> dict[str, Any]:
        """Return the plan's part of a state at a position: ``LoaderState.plan_state``."""

    @abstractmethod
    def read_state(self, state: LoaderState) -> ResumeState:
        """Return where an engine goes on after a state.

        Raises:
            StateMismatchError: The state is damaged.
        """

    @abstractmethod
    def num_batches(self, epoch: int) -> int:
        """Return the microbatches of an epoch, with those that other ranks had before.

        Raises:
            TypeError: That is not known.
        """

    def upcoming_epoch(self, position: Position) -> int | None:
        """Return the epoch of an iteration that begins now; None: the engine's next one.

        Args:
            position: Where the iteration before was left.
        """

    def epoch_again(self, state: LoaderState) -> LoaderState:
        """Return the start of a state's epoch, in the same order; the state itself where that start is not known."""
        return state_at_epoch(state, state.epoch)

    def num_tasks(self, epoch: int) -> int | None:
        """Return None: nothing asks for it."""


def _unknown_order(found: str) -> ConfigurationError:
    expected = (
        "a dataset with indices in order or with shuffle=True (on several ranks, with deal_out), or a stream: nothing else "
        "says what a step has, or can leave something out"
    )
    return ConfigurationError("dataset", found, expected)


class NumberedBatches(BatchSequence):
    """Some batches of an epoch.

    Args:
        first: The number of the first.
        batches: What the sampler gave.
    """

    in_words = "the dataset"

    def __init__(self, first: int, batches: list[Any]) -> None:
        self.first = first
        self._batches = batches

    def __len__(self) -> int:
        return self.first + len(self._batches)

    def __repr__(self) -> str:
        return f"<microbatches {self.first} to {len(self) - 1}>"

    def batch(self, index: int) -> Any:
        """Return the batch at ``index``; None for one of another task."""
        return self._batches[index - self.first] if index >= self.first else None


def plain_indices(indices: Any) -> Any:
    """Return indices as a state may hold them.

    Raises:
        ConfigurationError: They are no plain values.
    """
    if isinstance(indices, (list, tuple)):
        parts = [plain_indices(part) for part in cast("Sequence[Any]", indices)]
        return tuple(parts) if isinstance(indices, tuple) else parts
    if type(indices).__module__ == "numpy" and getattr(indices, "shape", None) == ():
        return indices.item()
    if isinstance(indices, (int, float, str, bytes)):
        return indices
    expected = "indices that are numbers, texts, or lists or tuples of them, with commit='manual': a state holds them"
    raise ConfigurationError("sampler", indices, expected)


class IndexPlan(LoaderPlan):
    """The plan of a map-style dataset: batches of indices."""

    # The epoch that was begun, -1 for none, and that of a loaded state with what it says of the order.
    _epoch: int = -1
    _loaded: tuple[int, Mapping[str, Any]] | None = None

    def load_plan_state(self, epoch: int, state: Mapping[str, Any] | None) -> None:
        """Begin this epoch again, as a state says; None: as any other one."""
        self._loaded = None if state is None else (epoch, state)
        self._epoch = -1

    def _loaded_at(self, epoch: int) -> Mapping[str, Any]:
        """Return what a loaded state says of an epoch; nothing if it is of another one."""
        return self._loaded[1] if self._loaded is not None and self._loaded[0] == epoch else {}

    def _check_length(self, epoch: int, num_samples: int) -> None:
        """Raise if the dataset has another length than when the loaded state of an epoch was saved."""
        saved = self._loaded_at(epoch).get("num_samples", num_samples)
        if saved != num_samples:
            raise StateMismatchError("num_samples", saved, num_samples, OTHER_LENGTH)

    @abstractmethod
    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return what the order of the rest of an epoch depends on."""

    def saved_payload(self, payload: Any, number: int) -> Any:
        """Return the indices of one of a task's batches.

        Raises:
            ConfigurationError: They are no plain values, which a state may hold.
        """
        return plain_indices(payload.batch(number))

    def loaded_payload(self, saved: Any, number: int) -> Any:
        """Return a task of one batch."""
        return NumberedBatches(number, [saved])

    @property
    def has_states(self) -> bool:
        """Whether the order depends on states of samplers, and so on the epochs before."""
        return False

    @abstractmethod
    def is_over(self, state: LoaderState) -> bool:
        """Return whether an epoch has nothing left at a saved position, where that is known before it is begun."""

    @abstractmethod
    def num_in_last_round(self, epoch: int) -> int:
        """Return the samples of the last round over all ranks, if it is smaller than the others; else, or unknown, 0."""

    def saved(self, position: Position) -> dict[str, Any]:
        """Return the plan's part of a state at a position."""
        return {"sampler": self.state_at(position.epoch, position.step)}

    def first_microbatch(self, state: LoaderState) -> int:
        """Return where a saved position is in the plan's first task: at its beginning, if each part is a task."""
        return 0

    def read_state(self, state: LoaderState) -> ResumeState:
        """Return where an engine goes on after a state."""
        position = Position(state.epoch, 0, self.first_microbatch(state), state.step)
        return ResumeState(position, sampler=dict(state.sampler))

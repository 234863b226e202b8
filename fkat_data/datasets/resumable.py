"""The states of datasets, written and checked, and a sequential sampler that has one."""

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from torch.utils.data import Sampler

from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.errors.arguments import BASE_FIELD, checked_state, integer, saved_integer
from fkat_data.errors.wording import Described
from fkat_data.types import Stateful


def is_foreign(state_dict: object, field: str) -> bool:
    """Return whether a state has a field of another system's states, and not the version that every state here has."""
    return isinstance(state_dict, Mapping) and field in state_dict and "version" not in state_dict


def base_state(dataset: object) -> dict[str, Any]:
    """Return the state field of a base dataset, or no field if the dataset has no state."""
    return {BASE_FIELD: dataset.state_dict()} if isinstance(dataset, Stateful) else {}


def load_base_state(dataset: object, state: Mapping[str, Any]) -> None:
    """Restore a base dataset from its field of a checked state."""
    if isinstance(dataset, Stateful):
        dataset.load_state_dict(state[BASE_FIELD])


_STATE_VERSION = 1
#: The position in llm-pytorch: of its sampler, and of its checkpoints.
_FOREIGN_FIELDS = ("start_index", "sampler_index")


class ResumableSequentialSampler(Described, Sampler[int]):
    """The indices of a dataset in order, resumable at any index.

    The first loop begins at ``start_index``. After a loop that ended early, the next loop continues it; after a full
    pass, the next loop yields every index. A new iterator ends the older ones.

    The position counts yielded indices: a DataLoader with workers requests more of them than it has delivered.
    ``index`` is llm-pytorch's name for the index that was yielded last, ``state_dict()["index"]`` is the one after it.

    ``load_state_dict`` also takes the position that llm-pytorch saves: a mapping with ``start_index``, or a checkpoint
    with ``sampler_index``. ``start_index=checkpoint["sampler_index"]`` does the same.

    Args:
        data_source: An object with a length, which is read when a full pass begins.
        start_index: First index to yield, from 0 to the length. At the length, the first loop yields every index.

    Raises:
        ConfigurationError: An argument is invalid.

    Attributes:
        start_index: The argument.
    """

    def __init__(self, data_source: Sized, start_index: int = 0) -> None:
        if not isinstance(data_source, Sized):
            raise ConfigurationError("data_source", data_source, "an object with a length")
        self._data_source = data_source
        self._data_length = len(data_source)
        self.start_index: int = integer("start_index", start_index, minimum=0, maximum=self._data_length)
        self._iterator: object = None
        self._go_to(self.start_index)

    @property
    def data_length(self) -> int:
        """The length of ``data_source`` in the pass under way, or else in the next one."""
        return self._data_length if self._index else len(self._data_source)

    @property
    def index(self) -> int:
        """The index that was yielded last, ``data_length`` after a whole loop; before a loop, where it begins.

        After it is set, the next loop begins there.

        Raises:
            ConfigurationError: It is set to a number that is not from 0 to ``data_length``.
        """
        return self._index if self._reached is None else self._reached

    @index.setter
    def index(self, index: int) -> None:
        self._go_to(integer("index", index, minimum=0, maximum=self.data_length))
        self._iterator = None

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [("index", self._index), ("samples", self.data_length)]

    def __len__(self) -> int:
        """Return the length of the loop under way, or else of the next one.

        A loop is under way until it has yielded its last index and ends, or until another one begins. So the length is
        less than that of a full pass in a loop that continues an earlier one, and again that of a full pass after it.
        """
        return self.data_length - self._start

    def __iter__(self) -> Iterator[int]:
        self._iterator = iterator = object()
        self._start, self._data_length = self._index, self.data_length
        return self._walk(iterator, self._index, self._data_length)

    def _walk(self, iterator: object, start: int, stop: int) -> Iterator[int]:
        for index in range(start, stop):
            if self._iterator is not iterator:
                raise StaleIteratorError("this iterator has ended: a newer iterator or load_state_dict() replaced it")
            # Before the yield: a state that the caller saves while it processes this index counts it as yielded.
            self._index = index + 1 if index + 1 < stop else 0
            self._reached = index
            yield index
        if self._iterator is iterator:
            self._start = self._index
            self._reached = stop

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values: ``version``, ``length`` and ``index``, the next index to yield."""
        return {"version": _STATE_VERSION, "length": self.data_length, "index": self._index}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next loop continue at a saved position.

        Raises:
            StateMismatchError: The state has another length, or its index is out of range.
        """
        is_own = is_foreign(state_dict, "index")  # the attributes of a sampler of llm-pytorch: which index it made last
        foreign = [name for name in _FOREIGN_FIELDS if is_foreign(state_dict, name) and not is_own]
        field = next(iter(foreign), "index")
        length = len(self._data_source)
        present = {**self.state_dict(), "length": length} if field == "index" else {}
        index = saved_integer(field, checked_state(state_dict, present, "index")[field], minimum=0)
        if index > length:
            raise StateMismatchError(field, index, f"<at most {length}>", "there are fewer indices")
        self._go_to(index)
        self._iterator = None

    def _go_to(self, index: int) -> None:
        self._data_length = len(self._data_source)
        self._index = self._start = index if index < self._data_length else 0
        self._reached: int | None = None

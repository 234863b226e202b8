"""Batches of indices of several datasets in one order, for a DictDataset."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, cast

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from fkat_data import arguments
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.mixing.draw_schedule import Schedule
from fkat_data.mixing.strategies import SamplerStrategy

__all__ = ["DictBatchSampler"]

_STATE_VERSION = 1


class DictBatchSampler(Sampler[tuple[str, Any]]):
    """Yields batches of several samplers, as a strategy mixes them: pairs of a source's name and its batch.

    It is the ``batch_sampler`` of a DataLoader over a ``DictDataset``, so that each microbatch is from one source. An
    iteration begins every sampler anew. As for torch's distributed sampler, ``set_epoch`` says which epoch the next
    iteration is.

    The place that ``state_dict`` gives counts batches of indices that were handed out, and a resume draws them again.
    So samplers have to give the same each time in the same epoch: their ``set_epoch`` is called where they have one.
    A DataLoader with workers draws ahead of what its caller has received; a ``ShardedDataLoader`` keeps the place
    itself, and needs no state of this.

    Args:
        strategy: Says which source a batch is from; over the same names.
        samplers: The batch samplers by their names.
        on_exhausted: What becomes of a source that has nothing left: ``"drop"``: it is left out, and the epoch ends
            when none is left; ``"restart"``: it begins again, and the epoch ends when each has run out once;
            ``"stop"``: the epoch ends.

    Raises:
        ConfigurationError: An argument is none of these.
    """

    def __init__(
        self, strategy: SamplerStrategy, samplers: Mapping[str, Iterable[Any]], *, on_exhausted: str = "drop"
    ) -> None:
        if not isinstance(samplers, Mapping) or not samplers:
            raise ConfigurationError("samplers", samplers, "a mapping from names to batch samplers, not empty")
        for name, sampler in samplers.items():
            if not isinstance(sampler, Iterable) or isinstance(sampler, Iterator):
                expected = "a batch sampler that can be iterated again and again"
                raise ConfigurationError(f"samplers[{name!r}]", cast("object", sampler), expected)
        self.samplers = dict(samplers)
        self.strategy = strategy
        self.on_exhausted = on_exhausted
        self._schedule()  # checks the rest
        self._epoch = 0
        self._index = 0  # batches handed out by the newest iteration
        self._first = 0  # of the next iteration

    @classmethod
    def of_dataset(
        cls,
        dataset: Any,
        strategy: SamplerStrategy,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        *,
        on_exhausted: str = "drop",
    ) -> Self:
        """Return the batches of a ``DictDataset``: a ``batch_sampler_generator`` for a ``DataLoaderFactory``.

        The epoch, for the strategy, is drawn from torch's global generator: under a ``ShardedDataLoader``, every shard
        of every epoch is mixed in another way, and the same after a resume.

        Args:
            dataset: Has the sources' datasets as ``datasets``.
            strategy: As for the class.
            batch_size: Samples in a batch, at least 1.
            shuffle: Whether each source's samples come in random order, drawn from torch's global generator.
            drop_last: Whether a source's last batch is left out if it is smaller.
            on_exhausted: As for the class.

        Raises:
            ConfigurationError: An argument is none of these.
        """
        datasets = getattr(dataset, "datasets", None)
        if not isinstance(datasets, Mapping):
            raise ConfigurationError("dataset", dataset, "a DictDataset")
        batch_size = arguments.integer("batch_size", batch_size, minimum=1)
        is_shuffled = arguments.boolean("shuffle", shuffle)
        samplers: dict[str, Iterable[Any]] = {}
        for name, source in cast("Mapping[str, Any]", datasets).items():
            # torch shuffles no empty dataset.
            indices = RandomSampler(source) if is_shuffled and len(source) else SequentialSampler(source)
            samplers[name] = BatchSampler(indices, batch_size, arguments.boolean("drop_last", drop_last))
        made = cls(strategy, samplers, on_exhausted=on_exhausted)
        made.set_epoch(int(torch.empty((), dtype=torch.int64).random_().item()))
        return made

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch

    def __len__(self) -> int:
        """Return the batches in the epoch.

        Raises:
            TypeError: A sampler does not say how many it has.
        """
        lengths = {name: len(cast("Any", sampler)) for name, sampler in self.samplers.items()}
        return self._schedule().num_draws(lengths)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield pairs of name and batch, from the start or from a loaded place on."""
        first, self._first, self._index = self._first, 0, 0
        return self._walk(first)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of another epoch, from its start.

        A place in this very epoch that ``load_state_dict`` has just set is kept: trainers call both on a resume.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigurationError: ``epoch`` is no integer of at least 0.
        """
        epoch = arguments.integer("epoch", epoch, minimum=0)
        if epoch != self._epoch:
            self._epoch = epoch
            self._first = self._index = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place as plain values; after a whole iteration it is the epoch's start."""
        return {"version": _STATE_VERSION, "epoch": self._epoch, "index": self._index or self._first}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next iteration yield what follows a place that ``state_dict`` gave.

        Raises:
            StateMismatchError: It is no such place.
        """
        if not isinstance(state_dict, Mapping):
            raise StateMismatchError("state_dict", state_dict, self.state_dict())
        numbers: dict[str, int] = {}
        for field, present in self.state_dict().items():
            if field not in state_dict:
                raise StateMismatchError(field, "<missing>", present, "it is no state of a batch sampler")
            try:
                numbers[field] = arguments.integer(field, state_dict[field], minimum=0)
            except ConfigurationError as error:
                hint = f"it has to be {error.expected}"
                raise StateMismatchError(field, state_dict[field], present, hint) from None
        if numbers["version"] != _STATE_VERSION:
            hint = "another version of the library wrote it"
            raise StateMismatchError("version", numbers["version"], _STATE_VERSION, hint)
        self._epoch, self._first, self._index = numbers["epoch"], numbers["index"], 0

    def _schedule(self) -> Schedule:
        schedule = Schedule(self.strategy, self.samplers, self.on_exhausted)
        schedule.begin(getattr(self, "_epoch", 0))
        return schedule

    def _walk(self, first: int) -> Iterator[tuple[str, Any]]:
        schedule = self._schedule()
        for sampler in self.samplers.values():
            set_epoch = getattr(sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self._epoch)
        iterators = {name: iter(sampler) for name, sampler in self.samplers.items()}
        taken = dict.fromkeys(iterators, 0)
        index = 0
        while (name := schedule.source()) is not None:
            try:
                batch = next(iterators[name])
            except StopIteration:
                if schedule.ran_out(name, is_empty=taken[name] == 0):
                    iterators[name], taken[name] = iter(self.samplers[name]), 0
                continue
            taken[name] += 1
            schedule.drawn()
            index += 1
            if index > first:
                self._index = index
                yield name, batch
        self._index = 0

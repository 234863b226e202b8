"""Mix the index batches of several datasets, for a DictDataset."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, cast

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.errors.wording import Described
from fkat_data.mixing.strategies import OnExhausted, SamplerStrategy, Schedule
from fkat_data.runtime.interruption import genuine
from fkat_data.types import tell_epoch

_STATE_VERSION = 1


class DictBatchSampler(Described, Sampler[tuple[str, Any]]):
    """Yields pairs of a source's name and a batch of its sampler, mixed by a strategy.

    Pass it as ``batch_sampler`` to a DataLoader over a ``DictDataset``: each microbatch then comes from one source.
    Every iteration restarts all samplers. As for torch's distributed sampler, ``set_epoch`` sets the epoch of the next
    iteration.

    The position in ``state_dict`` counts the yielded batches of indices, and a resume draws them again. So each
    sampler must yield the same batches every time in the same epoch; its ``set_epoch`` is called if it has one. A
    DataLoader with workers draws ahead of what its caller has received. A ``ShardedDataLoader`` keeps its own position
    and does not use this state.

    Args:
        strategy: Chooses the source of each batch; must have the same names as ``samplers``.
        samplers: Batch samplers by source name.
        on_exhausted: What happens when a source runs out. ``"drop"``: it is removed, and the epoch ends when none is
            left. ``"restart"``: it starts again, and the epoch ends when each source has run out once. ``"stop"``: the
            epoch ends.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    reports_start = True
    """Once ``iter()`` has returned, ``state_dict()`` says where that iteration begins, for a loader to save."""

    def __init__(
        self, strategy: SamplerStrategy, samplers: Mapping[str, Iterable[Any]], *, on_exhausted: OnExhausted = "drop"
    ) -> None:
        if not isinstance(samplers, Mapping) or not samplers:
            raise ConfigurationError("samplers", samplers, "a non-empty mapping from names to batch samplers")
        for name, sampler in samplers.items():
            if not isinstance(sampler, Iterable) or isinstance(sampler, Iterator):
                expected = "a batch sampler that can be iterated more than once, not an iterator"
                raise ConfigurationError(f"samplers[{name!r}]", cast("object", sampler), expected)
        self.samplers: dict[str, Iterable[Any]] = dict(samplers)
        self.strategy = strategy
        self.on_exhausted: OnExhausted = on_exhausted
        self._epoch = 0
        self._index = 0  # batches of the epoch that the newest iteration is past
        self._first = 0  # first batch that the next iteration yields
        self._schedule()  # validates the other arguments

    def _repr_facts(self) -> Iterable[tuple[str, object]]:
        return [
            ("epoch", self._epoch),
            ("step", self._index),
            ("sources", ", ".join(self.samplers)),
            ("strategy", self.strategy),
            ("on_exhausted", self.on_exhausted),
        ]

    @classmethod
    def of_dataset(
        cls,
        dataset: Any,
        strategy: SamplerStrategy,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        *,
        on_exhausted: OnExhausted = "drop",
    ) -> Self:
        """Return a sampler of a ``DictDataset``'s batches: a ``batch_sampler_generator`` for a ``DataLoaderFactory``.

        The strategy's epoch is drawn from torch's global generator. So under a ``ShardedDataLoader``, every shard of
        every epoch is mixed differently, and the same way after a resume.

        Args:
            dataset: A ``DictDataset``, or another object with the sources' datasets as ``datasets``.
            strategy: As for the class.
            batch_size: Samples in a batch, at least 1.
            shuffle: Whether to shuffle each source's samples with torch's global generator.
            drop_last: Whether to drop a source's last batch if it is smaller.
            on_exhausted: As for the class.

        Raises:
            ConfigurationError: An argument is invalid.
        """
        datasets = getattr(dataset, "datasets", None)
        if not isinstance(datasets, Mapping):
            raise ConfigurationError("dataset", dataset, "a DictDataset")
        batch_size = arguments.integer("batch_size", batch_size, minimum=1)
        is_shuffled = arguments.boolean("shuffle", shuffle)
        samplers: dict[str, Iterable[Any]] = {}
        for name, source in cast("Mapping[str, Any]", datasets).items():
            # RandomSampler rejects an empty dataset.
            indices = RandomSampler(source) if is_shuffled and len(source) else SequentialSampler(source)
            samplers[name] = BatchSampler(indices, batch_size, arguments.boolean("drop_last", drop_last))
        made = cls(strategy, samplers, on_exhausted=on_exhausted)
        made.set_epoch(int(torch.empty((), dtype=torch.int64).random_().item()))
        return made

    @property
    def epoch(self) -> int:
        """Epoch of the next iteration."""
        return self._epoch

    def __len__(self) -> int:
        """Return the number of batches in the epoch.

        Raises:
            TypeError: A sampler has no length.
        """
        lengths = {name: len(self._in_epoch(sampler)) for name, sampler in self.samplers.items()}
        return self._schedule().num_draws(lengths)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield pairs of name and batch, from the epoch's start or a loaded position."""
        # Until it yields, the position is the one that was loaded.
        self._index, self._first = self._first, 0
        return self._walk(self._index)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration yield this epoch from its start.

        A position that ``load_state_dict`` has set in the same epoch is kept: trainers call both on a resume.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigurationError: ``epoch`` is negative or not an integer.
        """
        epoch = arguments.integer("epoch", epoch, minimum=0)
        if epoch != self._epoch:
            self._epoch = epoch
            self._first = self._index = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values; after a whole iteration, the epoch's start."""
        return {"version": _STATE_VERSION, "epoch": self._epoch, "index": self._index or self._first}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next iteration continue at a saved position.

        Raises:
            StateMismatchError: The state is not one of a batch sampler.
        """
        state = arguments.checked_state(state_dict, self.state_dict(), "epoch", "index")
        fields = ("epoch", "index")
        self._epoch, self._first = (arguments.saved_integer(field, state[field], minimum=0) for field in fields)
        self._index = 0

    def _in_epoch(self, sampler: Any) -> Any:
        """Return a sampler as an iteration would set it, if its length follows the epoch; one under way stays as it is."""
        if not getattr(sampler, "reports_start", False):
            return sampler
        other = copy.copy(sampler)
        other.set_epoch(self._epoch)
        return other

    def _schedule(self) -> Schedule:
        schedule = Schedule(self.strategy, self.samplers, self.on_exhausted)
        schedule.begin(self._epoch)
        return schedule

    def _walk(self, first: int) -> Iterator[tuple[str, Any]]:
        schedule, samplers = self._schedule(), dict(self.samplers)
        tell_epoch(samplers.values(), self._epoch)
        iterators = {name: iter(sampler) for name, sampler in samplers.items()}
        taken = dict.fromkeys(iterators, 0)
        index = 0
        while (name := schedule.source()) is not None:
            try:
                batch = next(iterators[name])
            except genuine(StopIteration):
                if schedule.ran_out(name, is_empty=taken[name] == 0):
                    iterators[name], taken[name] = iter(samplers[name]), 0
                continue
            taken[name] += 1
            schedule.drawn()
            index += 1
            if index > first:
                self._index = index
                yield name, batch
        self._index = 0

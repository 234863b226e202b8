"""A loader for torchtitan's trainer: endless, closed by the trainer, and one entry of its checkpoints.

torchtitan is not needed to import this.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fkat_data.arguments import boolean
from fkat_data.errors import ConfigurationError
from fkat_data.types import Microbatch, Stateful

__all__ = ["TitanDataLoader"]

_MOST_EMPTY_EPOCHS = 100


class TitanDataLoader:
    """Delivers epoch after epoch of a loader, as torchtitan's trainer iterates one, and has the loader's state.

    torchtitan's own loaders save one entry for each data-parallel rank, so that they resume on as many ranks as before.
    Here the state of all ranks is the same on each, and a checkpoint resumes on any number of ranks that the loader can
    be split over. ``state_dict`` is collective where the loader's is.

    The trainer builds its loader with ``dp_world_size``, ``dp_rank``, ``tokenizer`` and arguments that differ from
    version to version. Since its configurations are classes, the loader is one too:

    ```python
    class Shards(TitanDataLoader, BaseDataLoader):  # torchtitan's
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            uri: str
            seed: int = 7

        def __init__(self, config, *, dp_world_size, dp_rank, tokenizer, **sizes):
            shards = ShuffledShardSampler(FsShardSampler(config.uri), config.seed)
            sampler = DistributedDataParallelShardSampler(shards, dp_world_size, dp_rank, drop_last=False)
            super().__init__(ShardedDataLoader(config.seed, sampler, factory, dp_rank=dp_rank))
    ```

    Up to torchtitan 0.2, the ``build_dataloader_fn`` of a ``TrainSpec`` returns ``TitanDataLoader(loader)``.

    Args:
        loader: The loader of this rank: a ``ShardedDataLoader``, a ``StreamingDataLoader``, or another one whose state
            is the same on every rank. Its microbatches are pairs of a dictionary of inputs and the labels, in the
            shapes that the trainer was configured with.
        repeat: False ends after one epoch, as a validation does that reads everything once.

    Raises:
        ConfigurationError: The loader has no state.
    """

    def __init__(self, loader: Iterable[Microbatch], *, repeat: bool = True) -> None:
        if not isinstance(loader, Stateful):
            raise ConfigurationError("loader", loader, "a loader with state_dict and load_state_dict")
        self._loader = loader
        self._repeat = boolean("repeat", repeat)

    def __iter__(self) -> Iterator[Microbatch]:
        """Go on where the loader is, from epoch to epoch.

        Raises:
            ConfigurationError: The loader has delivered nothing for 100 epochs.
        """
        num_empty_epochs = 0
        while num_empty_epochs < _MOST_EMPTY_EPOCHS:
            num_empty_epochs += 1
            for microbatch in self._loader:
                num_empty_epochs = 0
                yield microbatch
            if not self._repeat:
                return
        raise ConfigurationError("loader", self._loader, "a loader that delivers microbatches on this rank")

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state: the position of all ranks."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved position; nothing changes for an empty state, as in torchtitan's loaders.

        Raises:
            StateMismatchError: It is no state of such a loader, or belongs to another plan.
        """
        if state_dict:
            self._loader.load_state_dict(dict(state_dict))

    def close(self) -> None:
        """Close the loader, if it can be closed; any number of calls."""
        close = getattr(self._loader, "close", None)
        if callable(close):
            close()

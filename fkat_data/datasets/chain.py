"""Nest datasets for each shard, in a form that a configuration file can express."""

from collections.abc import Callable, Sequence
from typing import Any

from fkat_data.arguments import function
from fkat_data.errors import ConfigurationError


class DatasetChain:
    """A ``dataset_generator`` that calls several generators in turn, each with the result of the previous one.

    ``DatasetChain([Documents, partial(BufferSortedDataset, buffer_size=1024, pack_size=16)])`` opens a shard as
    ``BufferSortedDataset(Documents(shard), 1024, 16)``.

    Args:
        generators: At least one callable. The first is called with the shard.

    Raises:
        ConfigurationError: ``generators`` is empty, or one of them is not callable.
    """

    def __init__(self, generators: Sequence[Callable[..., Any]]) -> None:
        if not isinstance(generators, Sequence) or not generators:
            raise ConfigurationError("generators", generators, "a list of at least one callable")
        self.generators: list[Callable[..., Any]] = [
            function(f"generators[{index}]", item) for index, item in enumerate(generators)
        ]

    def __call__(self, shard: Any) -> Any:
        """Return the result of the last generator.

        Raises:
            Exception: Any exception of a generator.
        """
        for generator in self.generators:
            shard = generator(shard)
        return shard

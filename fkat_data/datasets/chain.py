"""Datasets around datasets, made for each shard: what a configuration can say without a function of its own."""

from collections.abc import Callable, Sequence
from typing import Any

from fkat_data.arguments import function
from fkat_data.errors import ConfigurationError

__all__ = ["DatasetChain"]


class DatasetChain:
    """Calls one generator after another, each with what the last one made: a ``dataset_generator``.

    ``DatasetChain([Documents, partial(BufferSortedDataset, buffer_size=1024, pack_size=16)])`` opens a shard as
    ``BufferSortedDataset(Documents(shard), 1024, 16)``.

    Args:
        generators: At least one: the first is called with the shard.

    Raises:
        ConfigurationError: There is none, or one cannot be called.
    """

    def __init__(self, generators: Sequence[Callable[..., Any]]) -> None:
        if not isinstance(generators, Sequence) or not generators:
            raise ConfigurationError("generators", generators, "a list of at least one")
        self.generators = [function(f"generators[{place}]", item) for place, item in enumerate(generators)]

    def __call__(self, shard: Any) -> Any:
        """Return what the last generator makes.

        Raises:
            Exception: Whatever a generator raises.
        """
        for generator in self.generators:
            shard = generator(shard)
        return shard

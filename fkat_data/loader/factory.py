"""The factory: a shard in, the DataLoader of its microbatches out."""

from collections.abc import Callable, Iterable
from typing import Any, cast

from torch.utils.data import DataLoader

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.types import Shard

__all__ = ["DataLoaderFactory"]


class DataLoaderFactory:
    """Makes a DataLoader for each shard, in the worker that produces the shard.

    A generated batch sampler decides on the batches. Without one, batches of ``batch_size`` come from the sampler's
    indices, or from the dataset's own order.

    Args:
        dataset_generator: Called with the shard; returns its dataset.
        sampler_generator: Called with the dataset; returns a sampler of its indices.
        batch_sampler_generator: Called with the sampler if there is one, else with the dataset; returns an iterable
            of batches of indices. The DataLoader then gets neither ``sampler`` nor ``batch_size``.
        dataloader_generator: Called as ``(dataset, batch_size=, shuffle=None, sampler=, batch_sampler=)``; returns an
            iterable of microbatches. Default: ``torch.utils.data.DataLoader``.
        batch_size: Samples in a microbatch; None leaves the dataset's items as they are, unless one of the two
            samplers is given.

    Raises:
        ConfigurationError: An argument is of the wrong type, or nothing says how to batch.
    """

    def __init__(
        self,
        dataset_generator: Callable[..., Any],
        sampler_generator: Callable[..., Any] | None = None,
        batch_sampler_generator: Callable[..., Any] | None = None,
        dataloader_generator: Callable[..., Iterable[Any]] | None = None,
        batch_size: int | None = 1,
    ) -> None:
        self.dataset_generator = arguments.function("dataset_generator", dataset_generator)
        for name, value in (
            ("sampler_generator", sampler_generator),
            ("batch_sampler_generator", batch_sampler_generator),
            ("dataloader_generator", dataloader_generator),
        ):
            if value is not None:
                arguments.function(name, value)
        if batch_size is not None:
            arguments.integer("batch_size", batch_size, minimum=0)
        if not (batch_size or sampler_generator or batch_sampler_generator):
            raise ConfigurationError(
                "batch_size", batch_size, "a positive number, or a sampler_generator, or a batch_sampler_generator"
            )
        self.sampler_generator = sampler_generator
        self.batch_sampler_generator = batch_sampler_generator
        self.dataloader_generator = dataloader_generator
        self.batch_size = batch_size or None

    def __call__(self, shard: Shard) -> Iterable[Any]:
        """Return the iterable of the shard's microbatches; runs in the worker.

        Raises:
            Exception: Whatever the generators raise.
        """
        dataset = self.dataset_generator(shard)
        sampler = self.sampler_generator(dataset) if self.sampler_generator else None
        batch_size, batch_sampler = self.batch_size, None
        if self.batch_sampler_generator:
            batch_sampler = self.batch_sampler_generator(dataset if sampler is None else sampler)
            # torch counts a batch size of 1 as none: a batch sampler excludes any other.
            batch_size, sampler = 1, None
        generate = self.dataloader_generator or cast("Callable[..., Iterable[Any]]", DataLoader)
        return generate(dataset, batch_size=batch_size, shuffle=None, sampler=sampler, batch_sampler=batch_sampler)

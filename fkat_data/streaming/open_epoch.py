"""An epoch of a streaming dataset as a shard, for configurations."""

from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.dataset import StreamingDataset

__all__ = ["open_epoch"]


def open_epoch(epoch: str, **options: Any) -> StreamingDataset:
    """Return a dataset whose next epoch is the given one.

    As the ``dataset_generator`` of a ``DataLoaderFactory`` it lets a ``ShardedDataLoader`` read epochs as its shards,
    in its workers; every rank is given the same epochs, and reads its own part of each.

    Args:
        epoch: The epoch's number, as text.
        **options: Those of ``StreamingDataset``.

    Raises:
        ConfigurationError: It is no number, or an option does not work.
        Exception: Whatever ``StreamingDataset`` raises.
    """
    if not isinstance(epoch, str) or not epoch.isdecimal():
        raise ConfigurationError("epoch", epoch, 'the number of an epoch as text, such as "0"')
    dataset = StreamingDataset(**options)
    dataset.next_epoch = int(epoch)
    return dataset

"""An epoch of a streaming dataset as a shard, for configurations."""

from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.dataset import StreamingDataset


def open_epoch(epoch: str, **options: Any) -> StreamingDataset:
    """Return a dataset whose next epoch is the given one.

    As the ``dataset_generator`` of a ``DataLoaderFactory`` it makes each epoch a shard of a ``ShardedDataLoader``,
    which its workers read. All ranks get the same epochs, and each reads its own part of them.

    Args:
        epoch: The number of the epoch as text.
        **options: The options of ``StreamingDataset``.

    Raises:
        ConfigurationError: ``epoch`` is no number, or an option is invalid.
        Exception: Whatever ``StreamingDataset`` raises.
    """
    if not isinstance(epoch, str) or not epoch.isdecimal():
        raise ConfigurationError("epoch", epoch, 'the number of an epoch as text, such as "0"')
    dataset = StreamingDataset(**options)
    dataset.next_epoch = int(epoch)
    return dataset

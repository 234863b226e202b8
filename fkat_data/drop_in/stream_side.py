"""What a DataLoader looks at in a dataset that plans its batches itself."""

from collections.abc import Mapping
from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.types import BatchStream


def stream_of(dataset: Any, batch_size: int | None, *, in_order: bool) -> BatchStream | None:
    """Return a dataset that plans its batches itself, once it has the loader's batch size; None for any other.

    Raises:
        ConfigurationError: The dataset has another batch size, none is given, or ``in_order`` is false: the state counts
            batches in their order.
    """
    if not isinstance(dataset, BatchStream):
        return None
    if not in_order:
        raise ConfigurationError("in_order", in_order, "True: the state counts batches in their order")
    if batch_size is None:
        raise ConfigurationError("batch_size", None, "a number of samples: the order of a stream depends on it")
    if dataset.batch_size is None:
        dataset.batch_size = batch_size
    if dataset.batch_size != batch_size:
        expected = f"{dataset.batch_size}, the batch size of the dataset, which its order depends on"
        raise ConfigurationError("batch_size", batch_size, expected)
    return dataset


def check_known(state: Mapping[str, Any], dataset: object) -> None:
    """Check that a state says where a stream goes on.

    Raises:
        ConfigurationError: The dataset's own ``__iter__`` has not yielded one sample for each that it was handed, so that
            no place in the order says what it would yield next.
    """
    if state.get("stream", state) is None:
        raise ConfigurationError(
            "dataset",
            type(dataset),
            "an __iter__ that yields one sample for each of super().__iter__(), in turn: no state can say what "
            "another one yields next. To change single samples, pass transform= or override __getitem__",
        )

"""How a shard's samples are grouped into microbatches, where what a factory returned can say it."""

from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fkat_data.errors import StateMismatchError
from fkat_data.worker.index_batches import NumberedBatches

__all__ = ["batching_of", "check_batching"]


def batching_of(product: object) -> str | None:
    """Return a product's batch size, samplers and ``drop_last`` in words; None: it is no torch DataLoader.

    Args:
        product: What the factory returned for a shard.
    """
    if not isinstance(product, DataLoader):
        return None
    loader = cast("DataLoader[Any]", product)
    batch_sampler, sampler = cast("Any", loader.batch_sampler), cast("Any", loader.sampler)
    if isinstance(batch_sampler, NumberedBatches) or isinstance(sampler, NumberedBatches):
        return None  # a part of an epoch of fkat_data.DataLoader, whose state says more
    facts: dict[str, object] = {}
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        facts["batch_sampler"] = type(batch_sampler).__qualname__
    source = loader if batch_sampler is None or loader.batch_size is not None else batch_sampler
    # A batch sampler of a user's own may say something else under these names.
    if type(batch_size := getattr(source, "batch_size", None)) is int or source is loader:
        facts["batch_size"] = batch_size
    if batch_sampler is not None and source is not loader:
        sampler = getattr(batch_sampler, "sampler", None)
    if sampler is not None and not isinstance(loader.dataset, IterableDataset):
        facts["sampler"] = type(sampler).__qualname__
    if type(drop_last := getattr(source, "drop_last", None)) is bool:
        facts["drop_last"] = drop_last
    return f"DataLoader({', '.join(f'{name}={value}' for name, value in facts.items())})"


def check_batching(saved: str | None, present: str | None) -> None:
    """Compare how a begun shard was batched with how it is now; None: it is not known.

    Raises:
        StateMismatchError: They differ: samples would be lost or repeated.
    """
    if saved is not None and present is not None and saved != present:
        raise StateMismatchError(
            "fingerprint.batching",
            f"<{saved}>",
            f"<{present}>",
            "finish a shard that was begun in the same batches: let the dataloader_factory return what it did then",
        )

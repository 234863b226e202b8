"""What a place within a shard depends on, where what a factory returned can say it: batches and files."""

from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fkat_data.dataset_files import check_files, numbers_of_files
from fkat_data.errors import StateMismatchError
from fkat_data.plan.task import ShardTerms
from fkat_data.worker.index_batches import NumberedBatches

__all__ = ["check_terms", "terms_of"]


def terms_of(product: object) -> ShardTerms:
    """Return what a product says of its batches and of its files.

    Args:
        product: What the factory returned for a shard.
    """
    if not isinstance(product, DataLoader):
        return ShardTerms(files=numbers_of_files(product))
    loader = cast("DataLoader[Any]", product)
    if isinstance(cast("Any", loader.batch_sampler), NumberedBatches) or isinstance(loader.sampler, NumberedBatches):
        return ShardTerms()  # a part of an epoch of fkat_data.DataLoader, whose state says more
    return ShardTerms(_batching_of(loader), numbers_of_files(loader.dataset))


def check_terms(saved: ShardTerms, present: ShardTerms, product: object) -> None:
    """Compare what was reported of a begun shard with what it is now, where both are known.

    Raises:
        StateMismatchError: It is batched in another way, or a file has changed: samples would be lost or repeated. The
            message names the file.
    """
    if saved.batching is not None and present.batching is not None and saved.batching != present.batching:
        raise StateMismatchError(
            "fingerprint.batching",
            f"<{saved.batching}>",
            f"<{present.batching}>",
            "finish a shard that was begun in the same batches: let the dataloader_factory return what it did then",
        )
    if saved.files != present.files:
        check_files(saved.files, product)


def _batching_of(loader: "DataLoader[Any]") -> str:
    """Return a DataLoader's batch size, samplers and ``drop_last`` in words."""
    batch_sampler, sampler = cast("Any", loader.batch_sampler), cast("Any", loader.sampler)
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

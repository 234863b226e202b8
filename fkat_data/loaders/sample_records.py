"""What a step was made of: a record for each sample, on every rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fkat_data.errors.sample_errors import source_location_of
from fkat_data.types import stream_source_of


@dataclass(frozen=True)
class SampleRecord:
    """A sample of a step.

    Attributes:
        epoch: The epoch.
        step: The step of the epoch; asked of a ``StreamingDataset``, the global batch, those that are left out too.
        rank: The rank that reads the sample; replicated ranks count as one.
        stream: The index of its stream; 0 of another dataset.
        shard: The name of its shard's file in the index; of another dataset, where that has the sample from, in words, empty
            if it does not say.
        row: Its row in the shard; of another dataset, its index.
        sample_id: Its number in the dataset: what ``exclude`` takes.
        is_skipped: Whether it is left out.
    """

    epoch: int
    step: int
    rank: int
    stream: int
    shard: str
    row: int
    sample_id: int
    is_skipped: bool = False


def records_of(dataset: Any, epoch: int, step: int, made_of: Mapping[int, Sequence[Any]]) -> list[SampleRecord]:
    """Return the records of a step.

    Args:
        dataset: The loader's.
        epoch: The epoch.
        step: The step of the epoch.
        made_of: Each rank's samples.
    """
    stream = stream_source_of(dataset)

    def where(sample: Any) -> tuple[int, str, int]:
        return (0, source_location_of(dataset, sample) or "", sample) if stream is None else stream.where(sample)

    return [SampleRecord(epoch, step, rank, *where(sample), sample) for rank, own in made_of.items() for sample in own]

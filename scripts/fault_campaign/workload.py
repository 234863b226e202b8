"""The data of a case: shards of every kind of product, whose samples name themselves and draw at random."""

import random
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fault_campaign.case import Case
from fault_campaign.streams import STREAM_KINDS, number_of, opened
from fkat_data import ShardedDataLoader, ShuffledShardSampler
from fkat_data.streaming import StreamingDataset
from fkat_data.testing import digest
from fkat_data.types import Shard


class _Samples(Dataset[torch.Tensor]):
    """A shard's samples by index."""

    def __init__(self, shard: str, case: Case, jitter_s: float) -> None:
        self._name = float(int(shard.split("-")[1]))
        self._count = int(shard.rsplit("-", 1)[1])
        self._numbers = case.sample_numbers
        self._jitter_s = jitter_s

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._jitter_s:
            # Not a global generator's draw: the time must not change the data.
            time.sleep(random.SystemRandom().uniform(0, self._jitter_s))
        draws = random.random() + float(np.random.random_sample()) + float(torch.rand(()))  # noqa: NPY002 - under test
        return torch.arange(self._numbers, dtype=torch.float64) + (self._name * 1000 + index + draws / 3)


class _Row(IterableDataset[torch.Tensor]):
    """A shard's samples as a stream."""

    def __init__(self, samples: _Samples) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(len(self._samples)):
            yield self._samples[index]


class _Stored(_Samples):
    """A shard's samples, whose numbers come from a stream, through its cache."""

    def __init__(self, shard: str, case: Case, jitter_s: float, stream: StreamingDataset) -> None:
        super().__init__(shard, case, jitter_s)
        self._stream = stream

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(number_of(self._stream[index]))

    def in_turn(self) -> Iterator[torch.Tensor]:
        """Yield the samples while the stream fetches ahead."""
        for sample in islice(self._stream, len(self)):
            yield super().__getitem__(number_of(sample))


class Factory:
    """Makes the kind of product that a shard's name states.

    Args:
        case: The case.
        is_plain: Whether to leave out delays and nested workers: for the reference run.
    """

    def __init__(self, case: Case, *, is_plain: bool = False) -> None:
        self._case = case._replace(lives=[], strikes=[])
        self._is_plain = is_plain

    def __call__(self, shard: Shard) -> Iterable[Any]:
        """Return the shard's microbatches."""
        case = self._case
        name = str(shard)
        kind = name.split("-", 1)[0]
        jitter_s = 0.0 if self._is_plain else case.jitter_s
        if kind in STREAM_KINDS:
            stored = _Stored(name, case, jitter_s, opened(Path(case.streams), kind, is_cached=not self._is_plain))
            # One kind is read by its samples' numbers, the other one from the begin.
            return DataLoader(stored, batch_size=case.batch_size) if kind == "parquet" else stored.in_turn()
        samples = _Samples(name, case, jitter_s)
        if kind in ("map", "nested"):
            return DataLoader(
                samples,
                batch_size=case.batch_size,
                shuffle=case.shuffles and len(samples) > 0,  # torch shuffles no empty dataset
                drop_last=case.drop_last,
                num_workers=2 if kind == "nested" and not self._is_plain else 0,
            )
        if kind == "iterable":
            return DataLoader(_Row(samples), batch_size=case.batch_size, drop_last=case.drop_last)
        if kind == "list":
            return [{"sample": samples[index], "shard": name} for index in range(len(samples))]
        return ({"sample": samples[index].numpy(), "index": index} for index in range(len(samples)))


def loader_of(
    case: Case, factory: Factory, *, num_shard_prefetches: int = 0, num_microbatch_prefetches: int = -1, workers: bool
) -> ShardedDataLoader:
    """Return the case's loader."""
    return ShardedDataLoader(
        case.seed,
        ShuffledShardSampler(case.shards, case.seed) if case.shuffles_shards else case.shards,
        factory,
        num_shard_prefetches,
        num_microbatch_prefetches,
        multiprocessing=workers,
        memory_limit_bytes=case.memory_limit_bytes,
        zero_copy=case.zero_copy,
        max_worker_restarts=case.max_worker_restarts,
        start_method=case.start_method,
    )


def expected(case: Case) -> list[str]:
    """Return the digests of all microbatches of the case's epochs, made in this process."""
    with loader_of(case, Factory(case, is_plain=True), workers=False) as loader:
        return [digest(microbatch) for _ in range(case.num_epochs) for microbatch in loader]

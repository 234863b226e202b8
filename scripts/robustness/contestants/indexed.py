"""The samples as a map-style dataset, for the contestants that take one."""

from typing import Any

from torch.utils.data import Dataset

from robustness.source import NUM_SAMPLES, NUM_SHARDS, Source

SAMPLES_PER_SHARD = NUM_SAMPLES // NUM_SHARDS


class Indexed(Dataset[dict[str, Any]]):
    """All samples, or those of one shard."""

    def __init__(self, source: Source, start: int = 0, count: int = NUM_SAMPLES) -> None:
        self.source = source
        self.start = start
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.source.sample(self.start + index)


class ShardOf:
    """Opens a shard, whose name is its number."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __call__(self, shard: Any) -> Indexed:
        return Indexed(self.source, int(shard) * SAMPLES_PER_SHARD, SAMPLES_PER_SHARD)

"""SPDL's ``DataLoader``, which works in threads, as in its reference; it has no state."""

from typing import Any

from spdl.dataloader import DataLoader
from torch.utils.data import RandomSampler, default_collate

from robustness.source import BATCH_SIZE, NUM_SAMPLES, NUM_WORKERS, Source

PACKAGE = "spdl-core"
SETTINGS = {"sample-hangs-setting": {"timeout": 10}}


def loader(source: Source, data: str, **setting: Any) -> Any:
    del data
    return DataLoader(
        RandomSampler(range(NUM_SAMPLES)),
        preprocessor=source.sample,
        batch_size=BATCH_SIZE,
        aggregator=default_collate,
        num_threads=NUM_WORKERS,
        **setting,
    )

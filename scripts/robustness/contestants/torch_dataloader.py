"""torch's ``DataLoader``; it has no state."""

from typing import Any

from torch.utils.data import DataLoader

from robustness.contestants.indexed import Indexed
from robustness.source import BATCH_SIZE, NUM_WORKERS, Source

PACKAGE = "torch"
SETTINGS = {"sample-hangs-setting": {"timeout": 10}}


def loader(source: Source, data: str, **setting: Any) -> Any:
    del data
    return DataLoader(Indexed(source), batch_size=BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, **setting)

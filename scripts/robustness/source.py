"""The samples that every contestant reads, and the faults that happen inside one of them."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NUM_SAMPLES = 160
BATCH_SIZE = 4
#: For contestants that read shards, each of which has the same number of samples.
NUM_SHARDS = 4
NUM_WORKERS = 2

_SAMPLE_S = 0.005
_FAULTY = 70


class BadRecordError(Exception):
    """An exception with two arguments, as many are: pickle keeps one and cannot rebuild it."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"record {line} of {path} is damaged")


class BrokenStoreError(Exception):
    """An exception that cannot be pickled, as those of many client libraries."""

    def __init__(self) -> None:
        super().__init__("record 17 of part-3 is damaged")
        self.connection = threading.Lock()


@dataclass(frozen=True)
class Source:
    """What a dataset calls for each sample.

    Attributes:
        folder: A folder of the cell, in which samples record which process made them, and the faulty one when.
        fault: "", "two arguments", "unpicklable" or "hangs".
        num_values: Numbers of 8 bytes in a sample.
    """

    folder: str
    fault: str = ""
    num_values: int = 1024

    def sample(self, number: int) -> dict[str, Any]:
        """Return sample ``number``, all of whose values are that number."""
        (Path(self.folder) / "workers" / str(os.getpid())).touch()
        time.sleep(_SAMPLE_S)
        if self.fault and number == _FAULTY:
            (Path(self.folder) / "struck").write_text(str(time.monotonic()), encoding="utf-8")
            if self.fault == "two arguments":
                raise BadRecordError("part-3", 17)
            if self.fault == "unpicklable":
                raise BrokenStoreError
            time.sleep(3600)
        return {"number": number, "values": np.full(self.num_values, number)}

    def workers(self) -> list[int]:
        """Return the ids of the processes that have made samples."""
        return sorted(int(path.name) for path in (Path(self.folder) / "workers").iterdir())

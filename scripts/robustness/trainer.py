"""One trainer's process: it opens a contestant's loader, meets a fault, and writes down all that happens.

python -m robustness.trainer CONTESTANT FAULT LIFE FOLDER
python -m robustness.trainer CONTESTANT prepare DATA
"""

import contextlib
import json
import os
import pickle
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustness.contestants import CONTESTANTS
from robustness.faults import FAULTS
from robustness.source import Source


class _NoStateError(Exception):
    pass


class Trainer:
    """What a fault may use: a contestant's loader, and a record of all that happens."""

    def __init__(self, contestant: str, fault: str, folder: Path, life: int) -> None:
        self._contestant = CONTESTANTS[contestant]
        self._name = fault
        self._fault = FAULTS[fault]
        self._folder = folder
        self._life = life
        self._events = os.open(folder / f"events-{life}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()
        (folder / "workers").mkdir(exist_ok=True)
        self.source = Source(str(folder), self._fault.in_sample, self._fault.num_values)

    def run(self) -> None:
        self.note("began", version=version(self._contestant.package))
        if self._fault.is_with_setting and self._name not in self._contestant.settings:
            self.note("unsupported", why="no such setting")
            return
        try:
            self._fault.lives[self._life](self)
        except _NoStateError:
            self.note("unsupported", why="no state to resume from")
        except BaseException as error:
            self.failed(error, what="raised")
            raise
        else:
            self.note("finished")

    def loader(self) -> Any:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - a contestant may draw from it
        torch.manual_seed(0)
        setting = self._contestant.settings[self._name] if self._fault.is_with_setting else {}
        return self._contestant.loader(self.source, str(self._folder / "data"), **setting)

    def batches(self, loader: Any) -> Iterator[Any]:
        self.note("epoch")
        for batch in loader:
            self.record(batch)
            yield batch

    def finish(self, loader: Any) -> None:
        for _ in self.batches(loader):
            pass

    def record(self, batch: Any) -> None:
        numbers, values = np.asarray(batch["number"]), np.asarray(batch["values"])
        self.note("batch", numbers=numbers.tolist(), is_right=bool((values == numbers[:, None]).all()))

    def note(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at_s": time.monotonic(), **facts}) + "\n"
        with self._lock:
            os.write(self._events, line.encode())

    def failed(self, error: BaseException, what: str = "error") -> None:
        said: list[str] = []
        cause: BaseException | None = error
        while cause is not None and len(said) < 10:
            said += traceback.format_exception_only(cause)
            cause = cause.__cause__ or cause.__context__
        with contextlib.suppress(RuntimeError):  # torch's handler of a worker's death raises anywhere, again and again
            self.note(what, text="".join(said))

    def save(self, loader: Any, iterator: Any, name: str) -> None:
        if not self._contestant.state:
            raise _NoStateError
        (self._folder / name).write_bytes(pickle.dumps(self._contestant.save(loader, iterator)))
        self.note("saved", name=name)

    def resumed(self, loader: Any, name: str) -> Iterator[Any]:
        return self._contestant.resumed(loader, pickle.loads((self._folder / name).read_bytes()))


if __name__ == "__main__":
    if sys.argv[2] == "prepare":
        write, data = CONTESTANTS[sys.argv[1]].write, Path(sys.argv[3])
        data.parent.mkdir(parents=True, exist_ok=True)
        (write or os.mkdir)(str(data))
    else:
        Trainer(sys.argv[1], sys.argv[2], Path(sys.argv[4]), int(sys.argv[3])).run()

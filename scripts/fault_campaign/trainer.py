"""The trainer that the campaign strikes: writes a ledger and checkpoints, and resumes from the last one.

    python -m fault_campaign.trainer FOLDER LIFE

Exits with 0 after the last epoch, with 3 to be started again.
"""
# ruff: noqa: E402 - see below

import json
import logging
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

# torch's C++ aborts the process if an interrupt comes while it is imported.
_blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
import torch

from fault_campaign.ledger import Ledger
from fault_campaign.workload import Factory, loader_of
from fkat_data import WorkerDiedError
from fkat_data.testing import digest

signal.pthread_sigmask(signal.SIG_SETMASK, _blocked)

AGAIN = 3


class _Trainer(logging.Handler):
    """One life of the trainer."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(logging.WARNING)
        self._folder = folder
        self._case = case = pickle.loads((folder / "case").read_bytes())
        self._life = life = case.lives[number % len(case.lives)]
        self._events = os.open(folder / "events", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._next_began_s = 0.0
        self._is_replacing = False
        logging.getLogger("fkat_data").addHandler(self)
        self._loader = loader_of(
            case,
            Factory(case),
            num_shard_prefetches=life.num_shard_prefetches,
            num_microbatch_prefetches=life.num_microbatch_prefetches,
            workers=True,
        )
        self._start = self._loader.state_dict()
        self._ledger = self._resume()

    def run(self) -> int:
        while True:
            try:
                self._train()
            except KeyboardInterrupt:
                if not self._life.rewinds:
                    raise
                self._record("interrupted")
            except WorkerDiedError as error:
                self._record("died", pid=error.pid, exit_code=error.exit_code)
                if not self._life.rewinds:
                    return AGAIN
            except Exception as error:
                if not any(note.startswith("fkat_data: ") for note in getattr(error, "__notes__", [])):
                    raise
                self._record("failed", error=f"{type(error).__name__}: {error}"[:300])
                if not self._life.rewinds:
                    return AGAIN
            else:
                self._loader.close()
                return 0
            self._ledger.close()
            self._ledger = self._resume()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.args[0] if record.args and isinstance(record.args, tuple) else None
        if isinstance(error, WorkerDiedError):
            self._is_replacing = True
            self._record("replaced", pid=error.pid, exit_code=error.exit_code)
        else:
            self._record("logged", message=record.getMessage()[:300])

    def _train(self) -> None:
        loader, case, ledger = self._loader, self._case, self._ledger
        while loader.epoch < case.num_epochs:
            iterator = iter(loader)
            while True:
                self._next_began_s = time.monotonic()
                try:
                    microbatch = next(iterator)
                except StopIteration:
                    break
                if self._is_replacing:
                    self._is_replacing = False
                    self._record("recovered")
                # An iteration that resumes with only empty shards left continues with the next epoch.
                if (loader.epoch, loader.step) > (case.num_epochs, 0):
                    return
                ledger.write(digest(microbatch))
                if case.pause_s:
                    time.sleep(case.pause_s)
                if ledger.count % case.checkpoint_every == 0:
                    self._save()

    def _save(self) -> None:
        path = self._folder / "checkpoint.new"
        torch.save({"state": self._loader.state_dict(), "count": self._ledger.count}, path)
        path.replace(self._folder / "checkpoint")

    def _resume(self) -> Ledger:
        path = self._folder / "checkpoint"
        if not path.exists():
            self._loader.load_state_dict(self._start)
            return Ledger(self._folder / "ledger", 0)
        saved = torch.load(path, weights_only=True)
        self._loader.load_state_dict(saved["state"])
        return Ledger(self._folder / "ledger", saved["count"])

    def _record(self, what: str, **facts: Any) -> None:
        num_workers = max(1, self._life.num_shard_prefetches)
        event = {"what": what, "at_s": time.monotonic(), "began_s": self._next_began_s, "num_workers": num_workers}
        os.write(self._events, (json.dumps(event | facts) + "\n").encode())


if __name__ == "__main__":
    sys.exit(_Trainer(Path(sys.argv[1]), int(sys.argv[2])).run())

"""A rank whose loop is interrupted again and again, while it ends an epoch of uneven rows together with the others."""

import json
import os
import random
import signal
import sys
from pathlib import Path

import torch.distributed as dist
from ranks_of_windows import Strands, rows_of

from fkat_data import DataLoader
from fkat_data.runtime.distributed import gather


class StopError(Exception):
    pass


class Alarm:
    """Raises in the caller's thread, once for each time that it is set."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.is_set = False
        self.num_raised = 0
        signal.signal(signal.SIGALRM, self)

    def set(self):
        self.is_set = self.num_raised < 60  # workers that begin again each time would not come far
        signal.setitimer(signal.ITIMER_REAL, 10 ** self.random.uniform(-5, -1))

    def __call__(self, number, frame):
        if self.is_set:
            self.is_set = False
            self.num_raised += 1
            raise StopError


def main():
    folder, num_workers = Path(sys.argv[1]), int(sys.argv[2])
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    dataset, alarm, had, is_over = Strands() if len(sys.argv) > 3 else range(300), Alarm(rank), [], False
    options = {"window_fn": rows_of, "window_size": 20, "collate_fn": list, "num_workers": num_workers}
    with DataLoader(dataset, 2, **options) as loader:
        loader.deal_out(int(os.environ["WORLD_SIZE"]), rank)
        microbatches = iter(loader)
        while not is_over:
            try:
                alarm.set()
                had.append(next(microbatches))
            except StopIteration:
                is_over = True
            except StopError:
                if (loader.epoch, loader.step) == (0, len(had) + 1):
                    assert loader.take_back()
            finally:
                alarm.is_set = False
    found = gather((len(had), alarm.num_raised, [row for batch in had for row in batch]))
    if rank == 0:
        (folder / "content.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

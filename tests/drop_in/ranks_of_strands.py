"""A rank of a job over an iterable dataset: takes over its strands of the job before, delivers some microbatches, saves."""

import os
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from fkat_data import DataLoader
from fkat_data.distributed import gather

NUM_SAMPLES = 61


class Rows(IterableDataset):
    """Every nth number, for the nth of all ranks' workers."""

    def __init__(self, num_samples, *, counts_all=True, has_state=True):
        self.num_samples = num_samples
        self.counts_workers_of_all_ranks = counts_all
        self.has_state = has_state

    def __iter__(self):
        info = get_worker_info()
        own = range(info.id, self.num_samples, info.num_workers)
        return Row(own) if self.has_state else iter(own)


class Row:
    """An iterator with a state."""

    def __init__(self, own):
        self.own, self.index = own, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.index == len(self.own):
            raise StopIteration
        self.index += 1
        return self.own[self.index - 1]

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]


def main():
    folder, num_steps = Path(sys.argv[1]), int(sys.argv[2])
    num_ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if num_ranks > 1:
        dist.init_process_group("gloo")
    path = folder / "place.pt"
    content = torch.load(path, weights_only=True) if path.exists() else {"ledger": [], "loader": None}
    with DataLoader(Rows(NUM_SAMPLES), 1, num_workers=2) as loader:
        loader.deal_out(num_ranks, rank)
        if content["loader"] is not None:
            loader.load_state_dict(content["loader"])
        own = [batch.tolist() for batch in islice(loader, num_steps + rank if num_steps else None)]
        state = loader.state_dict()
    ledger = content["ledger"] + [number for part in gather(own) for batch in part for number in batch]
    if rank == 0:
        torch.save({"ledger": ledger, "loader": state}, path)
    if num_ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

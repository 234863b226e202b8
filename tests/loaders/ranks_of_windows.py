"""A rank of a job whose windows make uneven numbers of rows: delivers to the end of an epoch, or saves on its way."""

import json
import os
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info
from walks import wait_until

from fkat_data import DataLoader
from fkat_data.runtime.distributed import gather
from fkat_data.streaming import StreamingDataset

NUM_SAMPLES = 300


def rows_of(samples):
    """Make a row or five of each sample, in runs of a hundred."""
    numbers = [sample["number"] if isinstance(sample, dict) else sample for sample in samples]
    return [(number, row) for number in numbers for row in range(5 if 100 <= number < 160 else 1)]


class Strands(IterableDataset):
    """A run of the numbers for each worker of all ranks."""

    counts_workers_of_all_ranks = True

    def __init__(self):
        self.num_had = 0

    def __iter__(self):
        info = get_worker_info()
        bounds = [NUM_SAMPLES * part // info.num_workers for part in (info.id, info.id + 1)]
        while bounds[0] + self.num_had < bounds[1]:
            self.num_had += 1
            yield bounds[0] + self.num_had - 1

    def state_dict(self):
        return {"num_had": self.num_had}

    def load_state_dict(self, state_dict):
        self.num_had = state_dict["num_had"]


def take_without_the_others(loader, rank):
    """Have each rank deliver a microbatch that its workers have ready, while the others stand still."""
    microbatches = iter(loader)
    next(microbatches)
    wait_until(lambda: loader.statistics().queue_depth >= 3)
    next(microbatches)
    next(microbatches)
    for turn in range(2):
        if rank == turn:
            next(microbatches)
        dist.barrier()


def main():
    folder, num_steps, num_workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    num_ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    path = folder / "content.json"
    content = json.loads(path.read_text()) if path.exists() else {"rows": [], "state": None, "counts": []}
    options = {"window_fn": rows_of, "window_size": 50, "collate_fn": list, "num_workers": num_workers}
    dataset = range(NUM_SAMPLES)
    if sys.argv[4:] == ["a sampler"]:
        # All begin with the first one's.
        options["sampler"] = RandomSampler(dataset, generator=torch.Generator().manual_seed(rank))
    elif len(sys.argv) > 4:
        dataset = Strands() if sys.argv[4] == "strands" else StreamingDataset(local=sys.argv[4])
    with DataLoader(dataset, 4, **options) as loader:
        loader.deal_out(num_ranks, rank)
        if content["state"] is not None:
            loader.load_state_dict(content["state"])
        own = list(islice(loader, num_steps or None))
        content["state"] = loader.state_dict()
        again = 0 if num_steps else len(list(loader))  # another epoch
        if num_workers and not num_steps:
            take_without_the_others(loader, rank)
        groups = [*dist.distributed_c10d._world.pg_map]
        loader.load_state_dict(content["state"])
        next(iter(loader))
        assert [*dist.distributed_c10d._world.pg_map] == groups, "a load must make no group"
    content["counts"] = gather((len(own), again, loader.epoch))
    content["rows"] += [row for part in gather(own) for batch in part for row in batch]
    if rank == 0:
        path.write_text(json.dumps(content))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

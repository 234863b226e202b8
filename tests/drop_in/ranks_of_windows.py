"""A rank of a job whose windows make uneven numbers of rows: delivers to the end of an epoch, or saves on its way."""

import json
import os
import sys
from itertools import islice
from pathlib import Path

import torch.distributed as dist

from fkat_data import DataLoader
from fkat_data.distributed import gather
from fkat_data.streaming import StreamingDataset

NUM_SAMPLES = 300


def rows_of(samples):
    """Make a row or five of each sample, in runs of a hundred."""
    numbers = [sample["number"] if isinstance(sample, dict) else sample for sample in samples]
    return [(number, row) for number in numbers for row in range(5 if 100 <= number < 160 else 1)]


def listed(rows):
    return list(rows)


def main():
    folder, num_steps, num_workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    num_ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    path = folder / "content.json"
    content = json.loads(path.read_text()) if path.exists() else {"rows": [], "state": None, "counts": []}
    options = {"window_fn": rows_of, "window_size": 50, "collate_fn": listed, "num_workers": num_workers}
    dataset = StreamingDataset(local=sys.argv[4]) if len(sys.argv) > 4 else range(NUM_SAMPLES)
    with DataLoader(dataset, 4, **options) as loader:
        loader.deal_out(num_ranks, rank)
        if content["state"] is not None:
            loader.load_state_dict(content["state"])
        own = list(islice(loader, num_steps or None))
        content["state"] = loader.state_dict()
        again = 0 if num_steps else len(list(loader))  # another epoch
    content["counts"] = gather((len(own), again, content["state"].get("epoch")))
    content["rows"] += [row for part in gather(own) for batch in part for row in batch]
    if rank == 0:
        path.write_text(json.dumps(content))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

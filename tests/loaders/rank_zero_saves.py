"""A rank of the plainest script of DDP: rank 0 saves what its own loader says, every rank loads it.

The arguments: where the checkpoint and the ledgers are, the steps until the job ends as if it was killed (0: none), and
the loader's number of workers.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from fkat_data import DataLoader

NUM_SAMPLES = 103


def main():
    folder, last_step, num_workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if num_ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if num_ranks > 1 else 0
    dataset = torch.arange(NUM_SAMPLES)
    # Without torch.distributed, torch's class asks for both numbers.
    sampler = DistributedSampler(dataset) if num_ranks > 1 else DistributedSampler(dataset, 1, 0)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=num_workers)
    path, seen = folder / "last.pt", []
    if path.exists():
        loader.load_state_dict(torch.load(path))
    epoch = loader.epoch
    sampler.set_epoch(epoch)
    for batch in loader:
        seen.append(batch.tolist())
        if rank == 0:
            torch.save(loader.state_dict(), folder / "next.pt")
        if loader.step == last_step:
            break
    (folder / f"seen-{epoch}-{num_ranks}-{rank}-{last_step}.json").write_text(json.dumps(seen))
    loader.close()
    if num_ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        (folder / "next.pt").replace(path)


if __name__ == "__main__":
    main()

"""A rank of a mixture whose sources are not equally long on all ranks: goes on where the job before has saved."""

import os
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

from fkat_data import DataLoader
from fkat_data.mixing import DictDataLoader, Weighted

NUM_STEPS = 4


def mixture(num_ranks, rank):
    sources = {name: DataLoader(range(100 * place, 100 * place + 9), 1, seed=1) for place, name in enumerate("ab")}
    for source in sources.values():
        source.deal_out(num_ranks, rank, even_batches=False)
    return DictDataLoader(sources, Weighted({"a": 1, "b": 2}, seed=3), key=None)


def delivered(loader, count):
    found = []
    while len(found) < count:
        found += [int(batch) for _, batch in islice(loader, count - len(found))]
    return found


def main():
    folder = Path(sys.argv[1])
    num_ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    path, own = folder / "state.pt", folder / f"{rank}.pt"
    in_parts = torch.load(own, weights_only=True)["in_parts"] if own.exists() else []
    loader = mixture(num_ranks, rank)
    if path.exists():
        loader.load_state_dict(torch.load(path, weights_only=True))
    in_parts += delivered(loader, NUM_STEPS)
    state = loader.state_dict()
    in_one = delivered(mixture(num_ranks, rank), len(in_parts))
    torch.save({"in_parts": in_parts, "in_one": in_one}, own)
    dist.barrier()
    if rank == 0:
        torch.save(state, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

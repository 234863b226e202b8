"""A rank of a job with torch.distributed: loads the place of the job before, delivers a few microbatches, saves."""

import os
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from drop_in_examples import Rows
from torch.utils.data import DistributedSampler, RandomSampler

from fkat_data import DataLoader
from fkat_data.datasets import PackedDataset, TokenBudgetBatchSampler
from fkat_data.runtime.distributed import gather

NUM_SAMPLES = 151


def distributed(num_ranks, rank):
    return {"sampler": DistributedSampler(range(NUM_SAMPLES), num_ranks, rank, seed=3), "seed": 1}


def drawn(num_ranks, rank):
    return {"sampler": RandomSampler(range(NUM_SAMPLES), generator=torch.Generator().manual_seed(3))}


def packed(num_ranks, rank):
    lengths = [1 + index % 5 for index in range(NUM_SAMPLES)]
    documents = [torch.full((length,), index) for index, length in enumerate(lengths)]
    dataset = PackedDataset(documents, 8, 30, lengths=lengths, pad_value=-1, seed=3, rank=rank, world_size=num_ranks)
    return {"dataset": dataset, "batch_size": 1, "collate_fn": documents_of, "num_workers": 1}


def documents_of(sequences):
    found = torch.cat([sequence["tokens"] for sequence in sequences]).unique()
    return found[found >= 0]


def budgeted(num_ranks, rank):
    lengths = [1 + index % 5 for index in range(NUM_SAMPLES)]
    sampler = TokenBudgetBatchSampler(lengths, 16, 30, seed=3, rank=rank, world_size=num_ranks)
    return {"batch_sampler": sampler, "batch_size": 1}


#: Loaders whose ranks have no seed in common before they are dealt out.
KINDS = {
    "shuffled, in a worker": lambda num_ranks, rank: {"shuffle": True, "num_workers": 1},
    "drawn": drawn,
    "not in step": lambda num_ranks, rank: {"shuffle": True},
    "a DistributedSampler": distributed,
    "packed, in a worker": packed,
    "batches by tokens": budgeted,
    "tickets, in a worker": lambda num_ranks, rank: {"shuffle": True, "commit": "manual", "num_workers": 1},
    "an iterable dataset": lambda num_ranks, rank: {"dataset": Rows(NUM_SAMPLES), "batch_size": 1, "num_workers": 1},
}
OUT_OF_STEP = ("not in step", "an iterable dataset")


def used(loader, count):
    """Take microbatches; return those that count as used: with tickets, every other one, and all where all are taken."""
    found = []
    for number, batch in enumerate(islice(loader, count)):
        if loader.has_tickets:
            if count is not None and number % 2:
                continue
            loader.commit(loader.ticket)
        found.append(batch.tolist())
    return found


def main():
    folder, num_steps = Path(sys.argv[1]), int(sys.argv[2])
    num_ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if num_ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(rank)
    for kind in sys.argv[3:]:
        path, num_own = folder / f"{kind}.pt", num_steps + (rank if kind in OUT_OF_STEP else 0)
        content = torch.load(path, weights_only=True) if path.exists() else {"ledger": [], "loader": None}
        given = {"dataset": range(NUM_SAMPLES), "batch_size": 3, **KINDS[kind](num_ranks, rank)}
        if num_ranks > 2 and "num_workers" in given and kind != "an iterable dataset":
            given["workers"] = "threads"  # processes of each rank would wait for the imports of a template of its own
        with DataLoader(**given) as loader:
            loader.deal_out(num_ranks, rank)
            if content["loader"] is not None:
                loader.load_state_dict(content["loader"])
            own = used(loader, num_own or None)
            state = loader.state_dict()
        ledger = content["ledger"] + [number for part in gather(own) for batch in part for number in batch]
        if rank == 0:
            torch.save({"ledger": ledger, "loader": state}, path)
    if num_ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

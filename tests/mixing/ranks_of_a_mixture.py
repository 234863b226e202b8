"""A rank of a mixture whose sources are not equally long on all ranks: goes on where the job before has saved.

Weights change in the middle of the first job and of the second one.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from fkat_data import DataLoader, RankMismatchError
from fkat_data.mixing import DictDataLoader, Weighted

NUM_STEPS = 4
CHANGES = {2: {"a": 1, "b": 9}, 6: {"a": 9, "b": 1}}


def mixture(num_ranks, rank):
    sources = {name: DataLoader(range(100 * place, 100 * place + 9), 1, seed=1) for place, name in enumerate("ab")}
    for source in sources.values():
        source.deal_out(num_ranks, rank, even_batches=False)
    return DictDataLoader(sources, Weighted({"a": 1, "b": 2}, seed=3), key=None)


def delivered(loader, first, count):
    found, microbatches = [], without_end(loader)
    for step in range(first, first + count):
        if step in CHANGES:
            loader.set_weights(CHANGES[step])
        found.append(next(microbatches))
    return found


def without_end(loader):
    while True:
        for _, batch in loader:
            yield int(batch)


def check_that_ranks_agree(loader, rank):
    """What one rank does otherwise is an error of all ranks, which names both and changes nothing."""

    def reweight():
        loader.set_weights({"a": 1, "b": 1})

    def leave_out():
        source.exclude([3])

    before, source = loader.strategy, DataLoader(range(100), 1, seed=1)
    source.deal_out(dist.get_world_size(), rank)
    position = source.local_state_dict()
    for call, other, said in (
        (reweight, lambda: loader.set_weights({"a": 1, "b": 2}), "'b': 2.0}, seed=3) on rank 1"),
        (reweight, lambda: loader.set_weights({"a": 1, "b": -1}), "weights['b']"),
        (reweight, loader.state_dict, "rank 1 has called state_dict()"),
        (leave_out, lambda: source.exclude([-1]), "samples = -1"),
        (leave_out, lambda: source.exclude_steps(3, 2), "last = 2"),
    ):
        try:
            other() if rank == 1 else call()
        except RankMismatchError as error:
            if said not in str(error) or loader.strategy is not before or source.local_state_dict() != position:
                raise
        else:
            raise AssertionError("ranks have called something else")


def main():
    folder = Path(sys.argv[1])
    num_ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    path, own = folder / "state.pt", folder / f"{rank}.pt"
    in_parts = torch.load(own, weights_only=True)["in_parts"] if own.exists() else []
    loader = mixture(num_ranks, rank)
    if path.exists():
        loader.load_state_dict(torch.load(path, weights_only=True))
    in_parts += delivered(loader, len(in_parts), NUM_STEPS)
    check_that_ranks_agree(loader, rank)
    state = loader.state_dict()
    in_one = delivered(mixture(num_ranks, rank), 0, len(in_parts))
    torch.save({"in_parts": in_parts, "in_one": in_one}, own)
    dist.barrier()
    if rank == 0:
        torch.save(state, path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

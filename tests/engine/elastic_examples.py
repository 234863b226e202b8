"""Loaders that stand for ranks of one run, and a rank's program for torchrun."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from loader_examples import make, plain

from fkat_data import DistributedDataParallelShardSampler, ShuffledShardSampler
from fkat_data.runtime.distributed import gather, rank_and_world_size

#: Of all kinds, of different lengths, some without anything.
SHARDS = [
    *("map-a-7", "list-b-3", "stream-c-0", "generator-d-2", "map-e-5", "skip-f-4"),
    *("list-g-1", "map-h-0", "stream-i-6", "generator-j-0", "list-k-2", "map-l-3"),
]


def outside(dp_size, dp_rank, shards=SHARDS):
    """Shuffled within a rank."""
    return ShuffledShardSampler(DistributedDataParallelShardSampler(shards, dp_size, dp_rank, drop_last=False), seed=4)


def inside(dp_size, dp_rank, shards=SHARDS):
    """Shuffled over all ranks."""
    return DistributedDataParallelShardSampler(ShuffledShardSampler(shards, seed=4), dp_size, dp_rank, drop_last=False)


def dropping(dp_size, dp_rank, shards=SHARDS):
    """In the given order; what does not divide evenly is dropped."""
    return DistributedDataParallelShardSampler(shards, dp_size, dp_rank)


def rank_loader(sampler, dp_size, dp_rank, **options):
    """The loader of one rank."""
    return make(sampler(dp_size, dp_rank), dp_rank=dp_rank, **options)


def written(microbatch):
    """A microbatch as a text that compares."""
    return json.dumps(plain(microbatch))


def rest(loader, num_epochs):
    """What is left up to the end of an epoch, as texts."""
    while loader.epoch < num_epochs:
        for microbatch in loader:
            yield written(microbatch)


def main():
    """Be one rank of a torchrun: two epochs, all ranks in step, a checkpoint with the ledger every other step.

    Arguments: a folder for the checkpoint; after how many steps to stop (0: never); after how many steps rank 0 kills
    itself in the first round (0: never).
    """
    folder, stop_after, die_after = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # A place of its own for each round: in torchrun's, ranks find the addresses that those of the last round had.
    store = f"rendezvous-{os.environ['TORCHELASTIC_RUN_ID']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    size, number = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{store}", world_size=size, rank=number)
    rank, world_size = rank_and_world_size()
    checkpoint, ledger, num_steps = folder / "checkpoint.pt", [], 0
    with rank_loader(inside, world_size, rank, multiprocessing=True, num_shard_prefetches=1) as loader:
        if checkpoint.exists():
            content = torch.load(checkpoint, weights_only=True)
            ledger = content["ledger"]
            (folder / f"resumed-{rank}-in-round-{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
            loader.load_state_dict(content["loader"])
        microbatches = rest(loader, 2)
        while True:
            # Ranks have different numbers of microbatches: who has none left goes on with the others.
            step = [text for text in gather(next(microbatches, None)) if text is not None]
            num_steps += 1
            ledger += step
            if num_steps == die_after and rank == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            is_over = not step or num_steps == stop_after
            if num_steps % 2 == 0 or is_over:
                state = loader.state_dict()
                if rank == 0:
                    torch.save({"loader": state, "ledger": ledger}, folder / "partial.pt")
                    (folder / "partial.pt").replace(checkpoint)
            if is_over:
                break
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

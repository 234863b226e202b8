"""A training run over a throttled store, measured; spawned processes import this module."""

import multiprocessing
import time

import numpy as np

from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset, World

_LONGEST_S = 150


def write(directory, num_shards, samples_per_shard, sample_bytes, **options):
    size = 300 + samples_per_shard * (sample_bytes + 4)
    generator = np.random.default_rng(0)
    with MDSWriter(out=str(directory), columns={"data": "bytes"}, size_limit=size, **options) as writer:
        for _ in range(num_shards * samples_per_shard):
            # Half a byte for each: it can be compressed.
            writer.write({"data": generator.integers(0, 16, sample_bytes, np.uint8).tobytes()})
    return directory


def measured(num_ranks, num_workers, num_epochs, step_s, options):
    """Return how long a run took to the end of its last step, and each step's wait, as the first rank has them."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(num_ranks, timeout=_LONGEST_S)
    receiver, sender = context.Pipe(duplex=False)
    arguments = (num_ranks, num_workers, num_epochs, step_s, options, barrier)
    ranks = [
        context.Process(target=_rank, args=(rank, sender if rank == 0 else None, *arguments))
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        for process in ranks:
            process.join(_LONGEST_S)
            if process.is_alive():
                process.kill()


def _rank(rank, sender, num_ranks, num_workers, num_epochs, step_s, options, barrier):
    dataset = StreamingDataset(world=World(1, num_ranks, 1, rank), **options)
    loader = StreamingDataLoader(dataset, collate_fn=None, num_workers=num_workers, persistent_workers=False)
    waits_s = []
    barrier.wait()
    began_s = ended_s = time.monotonic()
    for _ in range(num_epochs):
        batches = iter(loader)
        while True:
            asked_s = time.monotonic()
            if next(batches, None) is None:
                break
            # As gradients are exchanged: nobody goes on before all have their batch.
            barrier.wait()
            waits_s.append(time.monotonic() - asked_s)
            time.sleep(step_s)
            ended_s = time.monotonic()
    if sender is not None:
        sender.send((ended_s - began_s, waits_s))

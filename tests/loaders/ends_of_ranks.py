"""A rank of a job that goes on from states around the end of an epoch, which ranks of uneven rows reach one by one."""

from itertools import chain, islice, repeat

import torch.distributed as dist
from walks import at_state

from fkat_data import DataLoader
from fkat_data.mixing import DictDataLoader, Weighted


def uneven(samples):
    return [(sample, row) for sample in samples for row in range(sample * 2654435761 % 7)]


def rare(samples):
    """Make no row at all of a rank's samples in some epochs."""
    return [(sample, 0) for sample in samples if sample % 17 == 0]


def windows(function, num_samples=40, batch_size=3):
    loader = DataLoader(
        range(num_samples), batch_size, shuffle=True, seed=1, window_fn=function, window_size=13, collate_fn=list
    )
    loader.deal_out(dist.get_world_size(), dist.get_rank())
    return loader


def mixed():
    sources = {"a": windows(uneven), "b": windows(uneven, 90)}
    return DictDataLoader(sources, Weighted({"a": 1, "b": 1}, seed=7), key=None, on_exhausted="stop")


def check(make):
    loader = make()
    epochs = [list(loader) for _ in range(6)]
    whole = [microbatch for epoch in epochs for microbatch in epoch]
    for num_before in range(max(0, len(epochs[0]) - 2), len(epochs[0]) + 1):
        loader = make()
        assert list(islice(chain.from_iterable(repeat(loader, 12)), num_before)) == whole[:num_before]
        loader = at_state(make(), loader.state_dict())
        assert list(islice(chain.from_iterable(repeat(loader, 12)), len(whole) - num_before)) == whole[num_before:]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for make in (lambda: windows(uneven), lambda: windows(rare, 60, None), mixed):
        check(make)
    dist.barrier()
    dist.destroy_process_group()

"""Train on one machine with microbatches from all machines of a Ray cluster, and lose one of them.

On each machine, ``pip install 'fkat_data[ray]'``; then::

    ray start --head --port=6379            # on the first
    ray start --address=FIRST:6379          # on the others
    RAY_ADDRESS=FIRST:6379 python train.py  # on any

Now end a machine, or ``ray stop --force`` on one that does not train: the log names it, other actors make again what it
had not sent, and the losses stay those of a run that nothing stopped. Without ``RAY_ADDRESS``, processes of this
machine make the microbatches: the same bits.
"""

import logging
import os
import time

import torch
from torch.utils.data import Dataset

from fkat_data import DataLoader


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Pictures with noise, of ten kinds; each takes a while."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.01)  # stands for a decoder
        kind = index % 10
        return torch.randn(3, 16, 16) + kind, kind


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    workers = "processes"
    if os.environ.get("RAY_ADDRESS"):
        from fkat_data.ray import Actors

        workers = Actors(num_cpus=0.5)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Pictures(),
        batch_size=10,
        shuffle=True,
        seed=1,
        num_workers=4,
        prefetch_factor=2,
        workers=workers,
        max_worker_restarts=8,
    )
    with loader:
        for step, (pictures, kinds) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(pictures), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step}, loss {loss.item()!r}", flush=True)

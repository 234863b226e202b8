"""A script of two ranks: trains, saving each step, then resumes from some; the test starts it by Lightning and torchrun."""

import json
import logging
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning_examples import Augmented, Model, Saver, counted, trainer_of, weights
from loader_examples import make, mixed

from fkat_data import DataLoader
from fkat_data.lightning import DataModule
from fkat_data.samplers import DistributedDataParallelShardSampler, SequenceShardSampler

SHARDS = [f"{kind}-{name}-2" for name in "abcd" for kind in ("map", "stream")]


def split(factory):
    """Loaders of this rank's shards, which must not be made before the ranks are known."""
    sampler = DistributedDataParallelShardSampler(SequenceShardSampler(SHARDS), dist.get_world_size(), dist.get_rank())
    return make(sampler, factory)


def dealt():
    """A loader whose batches Lightning deals out: it gives it a DistributedSampler."""
    return DataLoader(list(torch.arange(32.0).reshape(16, 2)), 2, shuffle=True)


def fit(*callbacks, ckpt_path=None, factory=counted, train=None, **options):
    model = Model(estimates=options.pop("estimates", False))
    data = DataModule(train=train or (lambda: split(factory)), val=lambda: split(counted))
    given = {"strategy": "ddp", "devices": 2, "val_check_interval": 2, **options}
    trainer_of(*callbacks, **given).fit(model, datamodule=data, ckpt_path=ckpt_path)
    return {"seen": model.seen, "evaluated": model.evaluated, "weights": weights(model)}


def with_fabric(folder):
    """Two epochs, and what a new process delivers that loads the state of each microbatch."""
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    torch.manual_seed(dist.get_rank())  # each rank draws a seed of its own

    def batches(path=None):
        loader = fabric.setup_dataloaders(DataLoader(Augmented(), 2, shuffle=True))
        if path is not None:
            fabric.load(path, {"loader": loader})
        while True:
            for batch in loader:
                yield loader, batch.tolist()

    whole = []
    for loader, batch in islice(batches(), 8):
        whole.append(batch)
        fabric.save(folder / f"fabric-{len(whole)}.ckpt", {"loader": loader})
    resumed = {
        num_seen: [batch for _, batch in islice(batches(folder / f"fabric-{num_seen}.ckpt"), 8 - num_seen)]
        for num_seen in (2, 4, 5)
    }
    return {"whole": whole, "resumed": resumed}


def main(folder, name, *resumed):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    results = {}
    if not resumed:
        for case, options in CASES.items():
            (folder / case).mkdir(exist_ok=True)
            saver = Saver(folder / case, ("on_train_batch_end",))
            results[case] = fit(saver, **options)
            results[f"{case} resumed"] = {
                num_seen: fit(ckpt_path=path, **options) for num_seen, _, path in saver.places[::3]
            }
    for path in resumed:
        results[path] = fit(ckpt_path=folder / path, **CASES["unknown"])
        results["fabric"] = with_fabric(folder)
    (folder / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(results))


CASES = {
    "unknown": {"factory": mixed},
    "known": {"estimates": True, "accumulate_grad_batches": 2},
    "DataLoader": {"train": dealt, "estimates": True},
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

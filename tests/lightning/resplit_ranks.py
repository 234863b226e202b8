"""A script of some ranks: trains some steps of one epoch, from the checkpoint of another number of them."""

import faulthandler
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lightning_examples import Model, trainer_of

from fkat_data import DataLoader


def main(folder, num_ranks, way, num_steps, *before):
    class Ranks(Model):
        def train_dataloader(self):
            loader = DataLoader(list(torch.arange(94.0).reshape(47, 2)), 2, shuffle=True)
            if way == "deal_out":
                loader.deal_out(self.trainer.world_size, self.trainer.global_rank)
            return loader

        def on_train_batch_end(self, *arguments):
            if len(self.seen) == num_steps:
                self.trainer.save_checkpoint(folder / f"{way}-{num_ranks}.ckpt")

    model = Ranks()
    trainer = trainer_of(strategy="ddp", devices=num_ranks, max_epochs=1, use_distributed_sampler=way != "deal_out")
    trainer.fit(model, ckpt_path=folder / f"{way}-{before[0]}.ckpt" if before else None)
    # What comes after the checkpoint, the next ranks train on.
    seen = [int(row[0]) // 2 for batch in model.seen[: num_steps or None] for row in batch]
    (folder / f"{way}-{num_ranks}-{dist.get_rank()}.json").write_text(json.dumps(seen))
    # Torch's threads may outlive the interpreter otherwise, and abort the process.
    dist.destroy_process_group()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(150, exit=True)
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])

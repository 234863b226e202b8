"""Train on windows of tokens on two ranks, or finish on one: the losses are the same, to the last bit.

::

    torchrun --standalone --nproc_per_node=2 train.py    # kill it at any moment
    python train.py                                      # go on where it was, on one rank

A streaming dataset has one order for any number of ranks. So a step always has the same eight windows, of which two
ranks get four each; one rank takes the same two halves, one after the other. A token is a byte of Python's ``email``.
"""

import email
import os
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn

from fkat_data.streaming import MDSWriter, StreamingDataLoader, StreamingDataset

NUM_HALVES, WINDOWS_PER_STEP, WINDOW = 2, 8, 64


def write_windows(folder):
    """Write the source code of a package as windows, each with the token that follows it."""
    files = sorted(Path(email.__file__).parent.glob("[a-f]*.py"))
    tokens = np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)
    with MDSWriter(out=folder, columns={"tokens": f"ndarray:uint8:{WINDOW + 1}"}, size_limit=2**14) as writer:
        for start in range(0, len(tokens) - WINDOW, WINDOW):
            writer.write({"tokens": tokens[start : start + WINDOW + 1]})


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tokens, self.past, self.scores = nn.Embedding(256, width), nn.GRU(width, width), nn.Linear(width, 256)

    def forward(self, tokens):
        return self.scores(self.past(self.tokens(tokens.T))[0])


rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if num_ranks > 1:
    distributed.init_process_group("gloo")
if rank == 0 and not Path("data/windows/index.json").exists():
    write_windows("data/windows")
if num_ranks > 1:
    distributed.barrier()  # the data are there
settings = {"shuffle": True, "shuffle_algo": "block", "shuffle_seed": 1}
dataset = StreamingDataset(local="data/windows", batch_size=WINDOWS_PER_STEP // num_ranks, **settings)
loader = StreamingDataLoader(dataset, num_workers=1, drop_last=True)
torch.manual_seed(1)
model = Model()
replica = nn.parallel.DistributedDataParallel(model) if num_ranks > 1 else model
optimizer = torch.optim.Adam(model.parameters(), 0.01)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
if Path("checkpoint.pt").exists():
    for name, state in torch.load("checkpoint.pt").items():
        parts[name].load_state_dict(state)
for batch in loader:
    halves, total = NUM_HALVES // num_ranks, torch.zeros(())  # of this rank
    optimizer.zero_grad()
    for half in range(halves):
        tokens = batch["tokens"][half::halves].long()
        loss = nn.functional.cross_entropy(replica(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].T.flatten())
        (loss / halves).backward()
        total += loss.detach() / NUM_HALVES
    optimizer.step()
    if num_ranks > 1:
        distributed.all_reduce(total)
    state = {name: part.state_dict() for name, part in parts.items()}
    step = state["loader"]["sample_in_epoch"] // WINDOWS_PER_STEP
    if rank == 0:
        print(f"step {step}, loss {total.item()}", flush=True)
        if step % 10 == 0:
            torch.save(state, "checkpoint.new")
            os.replace("checkpoint.new", "checkpoint.pt")  # at once: a kill leaves the old one or the new one
if num_ranks > 1:
    distributed.destroy_process_group()

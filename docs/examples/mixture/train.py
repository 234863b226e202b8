"""Mix three sources so that the model reads 70 % prose, 20 % code and 10 % tables, counted in tokens.

::

    python train.py    # kill it at any moment, run it again: it goes on, with the losses of a run that nothing stopped

The sources are lines of Python's standard library, and a token is a byte. A mixture draws microbatches. Those of prose
have more tokens than the others, so each weight is divided by how many.
"""

import os
import sysconfig
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from fkat_data import DataLoader
from fkat_data.datasets import PaddingCollate
from fkat_data.mixing import DictDataLoader, Weighted, token_weights

FILES = {"prose": "pydoc_data/*.py", "code": "json/*.py", "tables": "encodings/cp125*.py"}
SHARES = {"prose": 0.7, "code": 0.2, "tables": 0.1}  # of the tokens


class Lines(torch.utils.data.Dataset):
    def __init__(self, pattern):
        paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob(pattern))
        lines = [line[:64] for path in paths for line in path.read_bytes().splitlines()]
        self.lines = [line for line in lines if len(line) > 1]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return {"tokens": torch.tensor(list(self.lines[index]))}


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tokens, self.past, self.scores = nn.Embedding(256, width), nn.GRU(width, width), nn.Linear(width, 256)

    def forward(self, tokens):
        return self.scores(self.past(self.tokens(tokens.T))[0])


datasets = {name: Lines(pattern) for name, pattern in FILES.items()}
weights = token_weights(SHARES, {name: [len(line) for line in lines.lines] for name, lines in datasets.items()})
options = {"batch_size": 8, "shuffle": True, "seed": 1, "num_workers": 1, "collate_fn": PaddingCollate(0)}
sources = {name: DataLoader(lines, **options) for name, lines in datasets.items()}
mixture = DictDataLoader(sources, Weighted(weights, seed=1), key="source", on_exhausted="restart")

torch.manual_seed(1)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
num_tokens = Counter()
parts = {"model": model, "optimizer": optimizer, "mixture": mixture}
if Path("checkpoint.pt").exists():
    saved = torch.load("checkpoint.pt")
    num_tokens.update(saved.pop("num_tokens"))
    for name, state in saved.items():
        parts[name].load_state_dict(state)
for step, batch in enumerate(mixture, mixture.step + 1):
    tokens = batch["tokens"]
    num_tokens[batch["source"]] += int((tokens > 0).sum())
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].T.flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shares = " ".join(f"{count / num_tokens.total():.1%} {name}" for name, count in num_tokens.items())
    print(f"step {step}, loss {loss.item()}, {shares}", flush=True)
    if step % 20 == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "num_tokens": dict(num_tokens)}, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")  # at once: a kill leaves the old one or the new one
    if step == 300:
        break

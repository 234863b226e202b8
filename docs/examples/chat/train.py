"""Train on conversations that are packed into sequences of one length: the loss counts what the assistant says.

::

    python train.py    # kill it at any moment, run it again: it goes on, with the losses of a run that nothing stopped

The conversations are sums in JSON lines, ``{"messages": [{"role": ..., "content": ...}, ...]}``; a token is a byte.
"""

import json
import os
import random
from pathlib import Path

import torch
from torch import nn

from fkat_data import DataLoader
from fkat_data.datasets import JsonDataset, Pack, collate_packed


def write_chats(path):
    with path.open("w") as file:
        for _ in range(240):
            sums = [(random.randrange(10), random.randrange(10)) for _ in range(random.randint(1, 4))]
            turns = [(("user", f"{a} and {b}?"), ("assistant", f"{a + b}.")) for a, b in sums]
            messages = [{"role": role, "content": content} for turn in turns for role, content in turn]
            print(json.dumps({"messages": messages}), file=file)


def encoded(chats):
    """Return the tokens of a window's conversations, and as labels those that the assistant says."""
    return [
        {"tokens": torch.tensor(tokens), "labels": torch.tensor(labels)} for tokens, labels in map(tokens_of, chats)
    ]


def tokens_of(chat):
    parts = [(message["role"] == "assistant", f"{message['content']}\n".encode()) for message in chat["messages"]]
    tokens = [byte for _, content in parts for byte in content]
    return tokens, [byte if is_answer else -100 for is_answer, content in parts for byte in content]


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, width), nn.Embedding(128, width)
        self.mixed, self.scores = nn.Linear(width, 3 * width), nn.Linear(width, 128)

    def forward(self, tokens, places, document_ids):
        x = self.tokens(tokens) + self.places(places)
        same = (document_ids[:, :, None] == document_ids[:, None]).tril()  # not the future, nor another conversation
        return self.scores(x + nn.functional.scaled_dot_product_attention(*self.mixed(x).chunk(3, -1), same))


if not Path("chats.jsonl").exists():
    random.seed(1)
    write_chats(Path("chats.jsonl"))
packed = Pack(128, fields=("tokens", "labels"), padding={"labels": -100})
made = {"window_fn": [encoded, packed], "window_size": 64, "collate_fn": collate_packed, "num_workers": 1}
loader = DataLoader(JsonDataset("chats.jsonl"), batch_size=4, shuffle=True, seed=1, **made)

torch.manual_seed(1)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
if Path("checkpoint.pt").exists():
    for name, state in torch.load("checkpoint.pt").items():
        parts[name].load_state_dict(state)
for epoch in range(loader.epoch, 4):
    for step, batch in enumerate(loader, loader.step + 1):
        scores = model(batch["tokens"], batch["position_ids"], batch["document_ids"])[:, :-1]
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"][:, 1:].flatten())  # -100: not counted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}, step {step}, loss {loss.item()}", flush=True)
        if step % 8 == 0:
            torch.save({name: part.state_dict() for name, part in parts.items()}, "checkpoint.new")
            os.replace("checkpoint.new", "checkpoint.pt")  # at once: a kill leaves the old one or the new one

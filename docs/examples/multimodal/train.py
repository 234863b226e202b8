"""Match pictures with their captions: 50 Parquet files, whose images are decoded in the workers.

::

    python train.py    # kill it at any moment, run it again: it goes on, with the losses of a run that nothing stopped

A row has a PNG of a bar, its caption and where it is. Two small towers learn to give both the same vector.
"""

import io
import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from fkat_data import DataLoaderFactory, FsShardSampler, ShardedDataLoader, ShuffledShardSampler
from fkat_data.datasets import MapDataset, PaddingCollate, ParquetDataset

CAPTIONS = ("a bar on the left", "one on the right", "one at the top", "a bar at the bottom")
BARS = (np.s_[:, :4], np.s_[:, 12:], np.s_[:4], np.s_[12:])


def write_rows(folder):
    """Write 50 files of 16 rows."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    for number in range(50):
        rows = []
        for index in range(16):
            pixels, content = draws.integers(0, 80, (16, 16), np.uint8), io.BytesIO()
            pixels[BARS[index % 4]] += 150
            Image.fromarray(pixels).save(content, "PNG")
            rows.append({"image": content.getvalue(), "caption": CAPTIONS[index % 4], "place": index % 4})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number:02}.parquet")


def decoded(row):
    """Return a row's image, its caption's bytes, which the collate function pads, and its place."""
    pixels = torch.from_numpy(np.asarray(Image.open(io.BytesIO(row["image"])), np.float32))
    return {"image": pixels / 255, "caption": torch.tensor(list(row["caption"].encode())), "place": row["place"]}


if not Path("data/pictures").exists():
    write_rows(Path("data/pictures"))
shards = ShuffledShardSampler(FsShardSampler("data/pictures", glob="*.parquet"), seed=1)
factory = DataLoaderFactory(
    MapDataset.over(ParquetDataset, decoded),
    sampler_generator=RandomSampler,
    dataloader_generator=partial(DataLoader, collate_fn=PaddingCollate({"caption": 0})),
    batch_size=8,
)
loader = ShardedDataLoader(seed=1, shard_sampler=shards, dataloader_factory=factory, num_shard_prefetches=2)

torch.manual_seed(1)
images, texts = nn.Sequential(nn.Flatten(), nn.Linear(256, 16)), nn.EmbeddingBag(256, 16, padding_idx=0)
model = nn.ModuleList([images, texts])
optimizer = torch.optim.Adam(model.parameters(), 0.01)
parts = {"model": model, "optimizer": optimizer, "loader": loader}
if Path("checkpoint.pt").exists():
    for name, state in torch.load("checkpoint.pt").items():
        parts[name].load_state_dict(state)
for step, batch in enumerate(loader, loader.step + 1):  # one epoch
    scores = images(batch["image"]) @ texts(batch["caption"]).T
    same = batch["place"][:, None] == batch["place"]
    loss = nn.functional.cross_entropy(scores, same / same.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}, loss {loss.item()}", flush=True)
    if step % 15 == 0:  # in the middle of a file
        torch.save({name: part.state_dict() for name, part in parts.items()}, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")  # at once: a kill leaves the old one or the new one

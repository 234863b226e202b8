"""Match pictures with their captions: rows of Parquet with an image, a text and numbers, decoded in the workers.

A row has a PNG of a bar, its caption and where it is. Two small towers learn to give both the same vector.
"""

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler

from fkat_data import DataLoaderFactory
from fkat_data.configuration import instantiate
from fkat_data.datasets import MapDataset, PaddingCollate, ParquetDataset

CAPTIONS = ("a bar on the left", "one on the right", "one at the top", "a bar at the bottom")
BARS = (np.s_[:, :4], np.s_[:, 12:], np.s_[:4], np.s_[12:])


def write_rows(folder: Path) -> None:
    """Write four files of 32 rows, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(0)
    for number in range(4):
        if not (path := folder / f"{number}.parquet").exists():
            rows: list[Any] = []
            for index in range(32):
                pixels, content = draws.integers(0, 80, (16, 16), np.uint8), io.BytesIO()
                pixels[BARS[index % 4]] += 150
                Image.fromarray(pixels).save(content, "PNG")
                rows.append({"image": content.getvalue(), "caption": CAPTIONS[index % 4], "place": [index % 4, index]})
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=8)


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row's image, its caption's bytes, which the collate function pads, and its numbers."""
    pixels = torch.from_numpy(np.asarray(Image.open(io.BytesIO(row["image"])), np.float32))
    return {"image": pixels / 255, "caption": torch.tensor(list(row["caption"].encode())), "place": row["place"][0]}


def main(config: DictConfig) -> float:
    """Return the share of the last epoch's pictures whose nearest caption is of the right kind."""
    write_rows(Path(config.folder))
    torch.manual_seed(0)
    images = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 16))
    texts = torch.nn.EmbeddingBag(256, 16, padding_idx=0)
    optimizer = torch.optim.Adam([*images.parameters(), *texts.parameters()], 0.01)
    factory = DataLoaderFactory(
        MapDataset.over(ParquetDataset, decoded),
        sampler_generator=RandomSampler,
        dataloader_generator=partial(DataLoader, collate_fn=PaddingCollate({"caption": 0})),
        batch_size=8,
    )
    right: list[bool] = []
    settings: Any = OmegaConf.to_container(config, resolve=True)
    with instantiate({**settings["loader"], "dataloader_factory": factory}) as loader:
        for _ in range(config.epochs):
            right.clear()
            for microbatch in loader:
                scores = images(microbatch["image"]) @ texts(microbatch["caption"]).T
                same = microbatch["place"][:, None] == microbatch["place"]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(scores, same / same.sum(1, keepdim=True)).backward()
                optimizer.step()
                right += same[torch.arange(len(same)), scores.argmax(1)].tolist()
    return sum(right) / len(right)


if __name__ == "__main__":
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("train.yaml")), OmegaConf.from_cli())
    print(f"{main(config):.0%} of the last epoch's pictures have the right caption")

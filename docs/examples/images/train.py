"""Classify images from tar files, with random augmentation in the workers: the same after a resume.

::

    python train.py                    # train.yaml lists the settings
    python train.py epochs=10 loader.multiprocessing=false

The images are digits in the font that ships with Pillow, in webdataset's form: ``0007.png`` beside ``0007.cls``.
"""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from PIL import Image, ImageDraw, ImageFont

from fkat_data import DataLoaderFactory
from fkat_data.configuration import instantiate
from fkat_data.datasets import MapDataset, TarDataset

SIDE = 24


def write_shards(folder: Path, num_shards: int) -> None:
    """Write 40 digits a shard, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    font = ImageFont.load_default(16)
    for shard in range(num_shards):
        if not (path := folder / f"{shard:04}.tar").exists():
            with tarfile.open(path, "w") as tar:
                for number in range(40):
                    content, image = io.BytesIO(), Image.new("L", (SIDE, SIDE))
                    ImageDraw.Draw(image).text((7, 3), str(number % 10), 255, font)
                    image.save(content, "PNG")
                    for ending, value in (("png", content.getvalue()), ("cls", str(number % 10).encode())):
                        member = tarfile.TarInfo(f"{number:04}.{ending}")
                        member.size = len(value)
                        tar.addfile(member, io.BytesIO(value))


def augmented(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Shift and darken an image at random. The draws belong to the microbatch, not to the worker."""
    image = torch.from_numpy(np.asarray(sample["png"], np.float32) / 255)
    shift_x, shift_y = torch.randint(-3, 4, (2,)).tolist()
    return image.roll((shift_x, shift_y), (0, 1)) * (0.5 + 0.5 * torch.rand(())), sample["cls"]


def main(config: DictConfig) -> float:
    """Return the share of the last epoch's images that were classified correctly."""
    write_shards(Path(config.folder), config.num_shards)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    factory = DataLoaderFactory(
        MapDataset.over(TarDataset, augmented), sampler_generator=torch.utils.data.RandomSampler, batch_size=8
    )
    num_correct = num_seen = 0
    settings: Any = OmegaConf.to_container(config, resolve=True)
    with instantiate({**settings["loader"], "dataloader_factory": factory}) as loader:
        for _ in range(config.epochs):
            num_correct = num_seen = 0
            for images, digits in loader:
                scores = model(images)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(scores, digits).backward()
                optimizer.step()
                num_correct, num_seen = num_correct + int((scores.argmax(1) == digits).sum()), num_seen + len(digits)
    return num_correct / num_seen


if __name__ == "__main__":
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("train.yaml")), OmegaConf.from_cli())
    print(f"{main(config):.0%} of the last epoch's images are right")

"""Classify a folder of JPEG files, one folder for each class, with random augmentation in two workers.

::

    python train.py    # kill it at any moment, run it again: it goes on, with the losses of a run that nothing stopped

The images are digits in the font that ships with Pillow. Put your own folder in place of ``data/digits``.
"""

import os
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from fkat_data import DataLoader  # instead of torch.utils.data


def write_images(root):
    """Write ``root/<digit>/<number>.jpg``."""
    font = ImageFont.load_default(20)
    for digit in range(10):
        (root / str(digit)).mkdir(parents=True)
        for number in range(32):
            image = Image.new("L", (28, 28))
            ImageDraw.Draw(image).text((6 + number % 4, 2 + number // 8), str(digit), 255, font)
            image.save(root / str(digit) / f"{number:03}.jpg", quality=90)


class ImageFolder(torch.utils.data.Dataset):
    def __init__(self, root, transform):
        self.classes = sorted(folder.name for folder in root.iterdir())
        self.samples = [(path, self.classes.index(path.parent.name)) for path in sorted(root.glob("*/*.jpg"))]
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with Image.open(path) as image:
            return self.transform(image), label


def augment(image):
    """Turn, crop and darken at random: after a resume as in a run that nothing stopped."""
    left, top = random.randrange(5), random.randrange(5)
    image = image.rotate(random.uniform(-20, 20)).crop((left, top, left + 24, top + 24))
    return torch.from_numpy(np.asarray(image, np.float32))[None] / 255 * random.uniform(0.5, 1)


root = Path("data/digits")
if not root.exists():
    write_images(root)
dataset = ImageFolder(root, augment)
loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2, seed=1)

torch.manual_seed(1)
features = [nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 16, 5, 2), nn.ReLU(), nn.Flatten()]
model = nn.Sequential(*features, nn.Linear(16 * 3 * 3, len(dataset.classes)))
optimizer = torch.optim.Adam(model.parameters(), 0.003)

parts = {"model": model, "optimizer": optimizer, "loader": loader}
if Path("checkpoint.pt").exists():
    for name, state in torch.load("checkpoint.pt").items():
        parts[name].load_state_dict(state)
for epoch in range(loader.epoch, 4):
    for step, (images, labels) in enumerate(loader, loader.step + 1):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}, step {step}, loss {loss.item()}", flush=True)
        if step % 8 == 0:
            torch.save({name: part.state_dict() for name, part in parts.items()}, "checkpoint.new")
            os.replace("checkpoint.new", "checkpoint.pt")  # at once: a kill leaves the old one or the new one

"""Tell four notes apart: a folder of wave files, random pieces of them, and spectra that the workers compute.

The files are notes with overtones and noise, written by the standard library's ``wave``; the note is in a file's name.
"""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset, RandomSampler

from fkat_data import DataLoaderFactory
from fkat_data.configuration import instantiate

RATE_HZ, PIECE = 8000, 2048
NOTES_HZ = {"a": 440.0, "c": 523.25, "e": 659.25, "g": 783.99}


def write_files(folder: Path) -> None:
    """Write 64 files of half a second, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(0)
    for number in range(64):
        name = list(NOTES_HZ)[number % 4]
        if not (path := folder / f"{number:02}-{name}.wav").exists():
            phase = 2 * np.pi * NOTES_HZ[name] * np.arange(RATE_HZ // 2) / RATE_HZ
            sound = np.sin(phase) + 0.3 * np.sin(2 * phase) + 0.3 * draws.standard_normal(len(phase))
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
                file.writeframes((8000 * sound / 2).astype("<i2").tobytes())


class Pieces(Dataset[tuple[torch.Tensor, int]]):
    """A random piece of each file of a shard, as the logarithm of its spectrum."""

    def __init__(self, shard: list[str]) -> None:
        self.paths = shard

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = Path(self.paths[index].removeprefix("file://"))
        with wave.open(str(path), "rb") as file:
            file.setpos(int(torch.randint(file.getnframes() - PIECE, ())))  # reads nothing but the piece
            sound = np.frombuffer(file.readframes(PIECE), "<i2").astype(np.float32) / 32768
        spectrum = torch.fft.rfft(torch.from_numpy(sound) * torch.hann_window(PIECE)).abs()
        return torch.log1p(spectrum), list(NOTES_HZ).index(path.stem[-1])


def main(config: DictConfig) -> float:
    """Return the share of the last epoch's pieces that were named correctly."""
    write_files(Path(config.folder))
    torch.manual_seed(0)
    model = torch.nn.Linear(PIECE // 2 + 1, len(NOTES_HZ))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    factory = DataLoaderFactory(Pieces, sampler_generator=RandomSampler, batch_size=8)
    correct: list[bool] = []
    settings: Any = OmegaConf.to_container(config, resolve=True)
    with instantiate({**settings["loader"], "dataloader_factory": factory}) as loader:
        for _ in range(config.epochs):
            correct.clear()
            for spectra, notes in loader:
                scores = model(spectra)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(scores, notes).backward()
                optimizer.step()
                correct += (scores.argmax(1) == notes).tolist()
    return sum(correct) / len(correct)


if __name__ == "__main__":
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("train.yaml")), OmegaConf.from_cli())
    print(f"{main(config):.0%} of the last epoch's pieces are named right")

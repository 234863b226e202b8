"""Mix two sources by weights that change on a schedule; a run that was stopped goes on exactly.

::

    python train.py                    # train.yaml lists the settings
    python train.py microbatches=150   # stop here; the next run goes on with the 151st

The sources are lines of Python's standard library. A strategy is a function of the draw's number, so it has no state.
"""

import sysconfig
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fkat_data import DataLoaderFactory, ShardedDataLoader, ShuffledShardSampler
from fkat_data.mixing import DictDataLoader, SamplerStrategy, Weighted
from fkat_data.samplers import SequenceShardSampler


class Scheduled(SamplerStrategy):
    """Draws by the weights of the schedule's last entry that has begun."""

    def __init__(self, schedule: list[dict[str, Any]], seed: int) -> None:
        self._steps = [(entry["from"], Weighted(entry["weights"], seed)) for entry in schedule]

    @property
    def names(self) -> tuple[str, ...]:
        return self._steps[0][1].names

    def source(self, epoch: int, draw: int, among: Collection[str]) -> str | None:
        return [weighted for first, weighted in self._steps if first <= draw][-1].source(epoch, draw, among)


class Lines(torch.utils.data.Dataset[str]):
    def __init__(self, shard: str) -> None:
        self._lines = Path(shard).read_text(encoding="utf-8").splitlines()

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> str:
        return self._lines[index]


def loader_of(source: DictConfig, options: DictConfig) -> ShardedDataLoader[list[str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = (path for name in source.packages for path in (root / name).glob(source.glob) if path.stat().st_size)
    sampler = ShuffledShardSampler(SequenceShardSampler(sorted(map(str, paths))), seed=1)
    factory = DataLoaderFactory(Lines, torch.utils.data.RandomSampler, batch_size=16)
    return ShardedDataLoader(1, sampler, factory, **options)


def main(config: DictConfig) -> list[Counter[str]]:
    """Return how often each source was drawn in each hundred microbatches of this run."""
    sources = {name: loader_of(source, config.loader) for name, source in config.sources.items()}
    strategy = Scheduled(list(config.schedule), seed=1)
    drawn: dict[int, Counter[str]] = {}
    with DictDataLoader(sources, strategy, key=None, on_exhausted="restart") as loader:
        path = Path(config.state)
        if path.exists():
            loader.load_state_dict(torch.load(path, weights_only=True))
        num_before = loader.step
        for number, (name, _lines) in enumerate(loader, num_before):
            drawn.setdefault(number // 100, Counter())[name] += 1  # train here
            if number + 1 == config.microbatches:
                break
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(loader.state_dict(), path)
    return list(drawn.values())


if __name__ == "__main__":
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("train.yaml")), OmegaConf.from_cli())
    print(*main(config), sep="\n")

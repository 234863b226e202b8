"""Print and plot how well the shuffles mix, and how many shards they keep open.

    python scripts/plot_shuffle.py [--output docs/images/shuffle.svg] [--epochs N]

In a good order, the distance in the dataset between neighbours can be anything, so its entropy is high. The plot needs
matplotlib.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from drawing import save_plot

from fkat_data.streaming.order import BlockShuffle, ReferenceShuffle

ALGORITHMS = ("block", "py1e", "py1br", "py1b", "py1s")
#: Samples in a shard, number of shards, shuffle_block_size.
SET_UPS = ((4096, 400, 262_144), (4096, 500, 65_536), (1000, 1000, 8192))
_SAMPLES_TOGETHER = 64

_Integers = npt.NDArray[np.int64]


class Quality(NamedTuple):
    """Measurements of an order.

    Attributes:
        sample_bits: Entropy of the distance between neighbours in samples, in steps of 64.
        shard_bits: Entropy of the distance between neighbours in shards.
        mean_open: The average number of open shards: started and not finished.
        most_open: The largest number of open shards.
    """

    sample_bits: float
    shard_bits: float
    mean_open: float
    most_open: float


def order_of(algorithm: str, shard_size: int, num_shards: int, block_size: int, seed: int) -> _Integers:
    """Return the order of epoch 0."""
    sizes = np.full(num_shards, shard_size, np.int64)
    places = np.arange(shard_size * num_shards)
    if algorithm == "block":
        return BlockShuffle(sizes, 1, seed, 0, block_size).samples_at(places)
    return ReferenceShuffle(algorithm, sizes, 1, seed, 0, block_size).samples_at(places)


def entropy_bits(values: _Integers) -> float:
    """Return the entropy of the distribution of non-negative integers."""
    counts = np.bincount(values)
    parts = counts[counts > 0] / len(values)
    return float(-(parts * np.log2(parts)).sum())


def quality_of(order: _Integers, shard_size: int) -> Quality:
    """Measure an order."""
    shards = order // shard_size
    num_open = _open(shards)
    return Quality(
        entropy_bits(np.abs(np.diff(order)) // _SAMPLES_TOGETHER),
        entropy_bits(np.abs(np.diff(shards))),
        float(num_open.mean()),
        float(num_open.max()),
    )


def _open(shards: _Integers) -> _Integers:
    """Return the number of open shards at each place."""
    places = np.arange(len(shards))
    last = np.zeros(int(shards.max()) + 1, np.int64)
    first = last.copy()
    last[shards] = places
    first[shards[::-1]] = places[::-1]
    changes = np.bincount(first, minlength=len(shards) + 1) - np.bincount(last + 1, minlength=len(shards) + 1)
    return np.cumsum(changes)[:-1]


def measured(set_up: tuple[int, int, int], num_epochs: int) -> Iterator[tuple[str, Quality, _Integers]]:
    """Yield each algorithm, its mean quality, and one of its orders."""
    shard_size, num_shards, block_size = set_up
    for algorithm in ALGORITHMS:
        found: list[Quality] = []
        order = np.empty(0, np.int64)
        for seed in range(num_epochs):
            order = order_of(algorithm, shard_size, num_shards, block_size, seed)
            found.append(quality_of(order, shard_size))
        yield algorithm, Quality(*np.mean(found, axis=0).tolist()), order


def draw(figure: Any, drawn: dict[str, tuple[_Integers, int]]) -> None:
    distances, opened = figure.subplots(1, 2)
    for algorithm, (order, shard_size) in drawn.items():
        shards = order // shard_size
        counts = np.bincount(np.abs(np.diff(shards)), minlength=80)[:80]
        distances.plot(counts / len(order), label=algorithm)
        num_open = _open(shards)[:: max(1, len(order) // 1000)]
        opened.plot(np.linspace(0, 100, len(num_open)), num_open, label=algorithm)
    distances.set_xlabel("distance between neighbours in the dataset, shards")
    distances.set_ylabel("share of all neighbours")
    distances.set_yscale("log")
    opened.set_xlabel("% of the epoch")
    opened.set_ylabel("open shards")
    opened.set_ylim(bottom=0)
    opened.legend(fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the plot to this .svg file; default: print only")
    parser.add_argument("--epochs", type=int, default=5, help="epochs to average over (default 5)")
    options = parser.parse_args()
    drawn: dict[str, Any] = {}
    print("| shards, block | shuffle | samples, bits | shards, bits | open, mean | open, most |")
    print("|---|---|---|---|---|---|")
    for set_up in SET_UPS:
        for algorithm, quality, order in measured(set_up, options.epochs):
            name = f"{set_up[1]} of {set_up[0]:,}, {set_up[2]:,}"
            numbers = f"{quality.sample_bits:.2f} | {quality.shard_bits:.2f} | {quality.mean_open:.1f}"
            print(f"| {name} | `{algorithm}` | {numbers} | {quality.most_open:.1f} |", flush=True)
            if set_up == SET_UPS[1]:
                drawn[algorithm] = (order, set_up[0])
    if options.output:
        save_plot(options.output, (9, 3.6), lambda figure: draw(figure, drawn))


if __name__ == "__main__":
    main()

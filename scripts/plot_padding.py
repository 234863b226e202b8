"""Print and plot how much of a microbatch is padding, with and without sorting by length in buffers.

    python scripts/plot_padding.py [--output docs/images/padding.svg]

The samples are the lines of this Python's standard library. The plot needs matplotlib.
"""

import argparse
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from demo_gpt.lines import edges_of_lines
from drawing import save_plot
from prepare_data import read_text

from fkat_data.datasets import BufferSortedDataset, TokenBudgetBatchSampler

LONGEST = 2048
BATCH_SIZES = [16, 32, 64]
BUFFER_SIZES = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]


class Lengths:
    """A dataset whose samples are their own lengths."""

    def __init__(self, lengths: npt.NDArray[np.int64]) -> None:
        self.lengths: list[int] = lengths.tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def sort_key(self, index: int) -> int:
        return self.lengths[index]

    def __getitem__(self, index: int) -> int:
        return self.lengths[index]


def measured(lengths: npt.NDArray[np.int64]) -> dict[int, dict[str, Any]]:
    """Return for each batch size the share of padding: in batches of random samples, and for each buffer size."""
    # Shuffle, as a training run does: lines of one file have similar lengths.
    shuffled = np.random.default_rng(0).permutation(lengths)
    found: dict[int, dict[str, Any]] = {}
    for batch_size in BATCH_SIZES:
        by_buffer: dict[int, float] = {}
        for buffer_size in BUFFER_SIZES:
            if buffer_size >= batch_size:
                dataset = BufferSortedDataset(Lengths(shuffled), buffer_size, batch_size, init_seed=0)
                by_buffer[buffer_size] = padding(np.array(list(dataset)), batch_size)
        found[batch_size] = {"random": padding(shuffled, batch_size), "by_buffer": by_buffer}
    return found


def padding(lengths: npt.NDArray[np.int64], batch_size: int) -> float:
    """Return the share of padding in whole batches of consecutive samples."""
    batches = lengths[: len(lengths) // batch_size * batch_size].reshape(-1, batch_size)
    return 1 - float(batches.sum() / (batches.max(axis=1) * batch_size).sum())


def budget_padding(lengths: npt.NDArray[np.int64], max_tokens: int) -> float:
    """Return the share of padding in batches with a budget of tokens."""
    batches = list(TokenBudgetBatchSampler(lengths, max_tokens, seed=0))
    return 1 - float(lengths.sum() / sum(len(batch) * lengths[batch].max() for batch in batches))


def draw(figure: Any, found: dict[int, dict[str, Any]]) -> None:
    axes = figure.subplots()
    for batch_size, row in found.items():
        (line,) = axes.plot(
            list(row["by_buffer"]),
            [100 * share for share in row["by_buffer"].values()],
            marker="o",
            label=f"{batch_size} lines, sorted in buffers",
        )
        axes.axhline(100 * row["random"], color=line.get_color(), linestyle="--", label=f"{batch_size} lines, random")
    axes.axhline(5, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("buffer_size")
    axes.set_ylabel("padding, % of a microbatch")
    axes.set_title("Lines of the Python standard library")
    axes.legend(fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the plot to this .svg file; default: print only")
    options = parser.parse_args()
    text, num_files = read_text(Path(sysconfig.get_path("stdlib")))
    starts, stops = edges_of_lines(np.frombuffer(text, np.uint8), LONGEST)
    lengths = stops - starts
    found = measured(lengths)
    print(
        f"{len(lengths):,} lines of {num_files:,} files; {lengths.mean():.1f} bytes on average, at most {lengths.max()}\n"
    )
    print("| batch_size | random | " + " | ".join(f"buffer {size}" for size in BUFFER_SIZES) + " |")
    print("|" + "---|" * (len(BUFFER_SIZES) + 2))
    for batch_size, row in found.items():
        shares = [row["random"], *(row["by_buffer"].get(size) for size in BUFFER_SIZES)]
        print(f"| {batch_size} | " + " | ".join("" if share is None else f"{share:.1%}" for share in shares) + " |")
    print(f"\nBatches of 4,096 tokens: {budget_padding(lengths, 4096):.1%} padding.")
    if options.output:
        save_plot(options.output, (7, 4), lambda figure: draw(figure, found))


if __name__ == "__main__":
    main()

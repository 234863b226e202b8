"""The lines of the demo's text, as documents of different lengths, and transforms that configurations name."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fkat_data.datasets import ParquetDataset

_NEWLINE = 10


class SourceLines:
    """The lines in shards that ``scripts/prepare_data.py`` wrote, as a map-style dataset with sort keys.

    Blank lines are dropped. A line longer than ``longest``, or one that continues in the next row, is split.

    Args:
        shard: One Parquet file or several.
        longest: The maximum length of a line in bytes.
    """

    def __init__(self, shard: str | list[str], longest: int) -> None:
        rows = ParquetDataset(shard, columns=["tokens"])
        self.text = torch.cat([row["tokens"] for row in rows.__getitems__(range(len(rows)))])
        self.starts, self.stops = edges_of_lines(self.text.numpy(), longest)

    def __len__(self) -> int:
        return len(self.starts)

    def sort_key(self, index: int) -> int:
        return int(self.stops[index] - self.starts[index])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"tokens": self.text[self.starts[index] : self.stops[index]]}


def edges_of_lines(text: npt.NDArray[np.uint8], longest: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the starts and ends of lines of 2 to ``longest`` bytes, including the newline."""
    ends = np.append(np.flatnonzero(text == _NEWLINE) + 1, len(text))
    starts: list[npt.NDArray[np.int64]] = []
    stops: list[npt.NDArray[np.int64]] = []
    left = np.append(0, ends[:-1])
    while len(left):
        stop = np.minimum(left + longest, ends)
        starts.append(left)
        stops.append(stop)
        left, ends = stop[stop < ends], ends[stop < ends]
    first, last = np.concatenate(starts), np.concatenate(stops)
    order = np.argsort(first, kind="stable")
    first, last = first[order], last[order]
    is_line = last - first >= 2
    return first[is_line], last[is_line]


def tokens_of_line(line: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens of a JSON line, a list of bytes, as a tensor."""
    return {"tokens": torch.tensor(line["tokens"], dtype=torch.uint8)}


def backwards(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its tokens reversed."""
    return {**row, "tokens": row["tokens"].flip(0)}

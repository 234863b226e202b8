"""Transforms of a sample, named by the configurations."""

from typing import Any

import torch


def tokens_of_line(line: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens of a JSON line, a list of bytes, as a tensor."""
    return {"tokens": torch.tensor(line["tokens"], dtype=torch.uint8)}


def backwards(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its tokens reversed."""
    return {**row, "tokens": row["tokens"].flip(0)}

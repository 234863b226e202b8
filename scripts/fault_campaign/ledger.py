"""A trainer's account of the microbatches that it received, and its comparison with those that were due."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Ledger:
    """A file with one line for each microbatch; a kill of its writer damages at most the last line.

    Args:
        path: The file; made if it is missing.
        count: Lines to keep; the rest is removed.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.count = count
        """Lines that were kept or written."""
        path.touch()
        lines = path.read_bytes().splitlines(keepends=True)[:count]
        os.truncate(path, sum(map(len, lines)))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, digest: str) -> None:
        """Write a microbatch's line."""
        os.write(self._descriptor, f"{self.count} {digest}\n".encode())
        self.count += 1

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def entries(path: Path) -> list[str]:
    """Return the complete lines of a ledger."""
    if not path.exists():
        return []
    return [line[:-1] for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


class Audit(NamedTuple):
    """How many microbatches of an account are wrong.

    Attributes:
        lost: Due, but missing.
        repeated: Received more often than due.
        corrupt: Received, but never due.
        reordered: In the wrong place, if none of the above.
    """

    lost: int
    repeated: int
    corrupt: int
    reordered: int


def audit(found: Sequence[str], due: Sequence[str]) -> Audit:
    """Compare an account with what was due, in order.

    Args:
        found: Lines, ``place digest``.
        due: The digests that are due by now.
    """
    digests = [line.split(" ", 1)[1] for line in found]
    places = [line.split(" ", 1)[0] for line in found]
    missing, surplus = Counter(due) - Counter(digests), Counter(digests) - Counter(due)
    known = set(due)
    corrupt = sum(count for digest, count in surplus.items() if digest not in known)
    misplaced = sum(first != second for first, second in zip(digests, due, strict=False))
    misplaced += sum(place != str(number) for number, place in enumerate(places))
    return Audit(
        lost=missing.total(),
        repeated=surplus.total() - corrupt,
        corrupt=corrupt,
        reordered=0 if missing or surplus else misplaced,
    )

"""What an examination says about one thing."""

from enum import StrEnum
from typing import Any, NamedTuple


class Level(StrEnum):
    """How good it is."""

    OK = "ok"
    ADVICE = "advice"
    WRONG = "wrong"


class Finding(NamedTuple):
    """One line of an examination.

    Attributes:
        subject: What was examined.
        level: ``OK``; ``ADVICE``: it works, and could be better; ``WRONG``: a run fails or loses much.
        found: What was found.
        change: What to change; empty where nothing should be.
    """

    subject: str
    level: Level
    found: str
    change: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, which JSON can hold."""
        return {name: str(value) for name, value in self._asdict().items()}


def worst_of(findings: list[Finding]) -> Level:
    """Return the worst level of the findings."""
    levels = list(Level)
    return max((finding.level for finding in findings), key=levels.index, default=Level.OK)

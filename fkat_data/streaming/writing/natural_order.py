"""Natural sort order of names."""

import re


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that compares numbers in names as numbers: ``2`` before ``10``."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part]

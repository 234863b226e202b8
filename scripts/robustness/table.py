"""The table: a row a fault, a column a contestant."""

from collections.abc import Mapping, Sequence

from robustness.verdict import Verdict

_SHOUTED = ("lost", "repeated", "wrong data", "hangs", "crashes")


def text_of(verdict: Verdict) -> str:
    """Return a cell's text."""
    counts = [(verdict.num_lost, "lost"), (verdict.num_repeated, "repeated")]
    kind = ", ".join(f"{count} {word}" for count, word in counts if count) or verdict.kind
    said = f"**{kind}**" if verdict.kind in _SHOUTED else kind
    if verdict.remark:
        said += f" ({verdict.remark})"
    if verdict.seconds is None:
        return said
    return f"{said}, {verdict.seconds:.1f} s" if verdict.seconds >= 0.05 else f"{said}, at once"


def table(
    verdicts: Mapping[tuple[str, str], Verdict], contestants: Mapping[str, str], faults: Mapping[str, str]
) -> str:
    """Return the table in Markdown.

    Args:
        verdicts: By contestant and fault.
        contestants: Titles by name.
        faults: Titles by name.
    """
    rows: list[Sequence[str]] = [["", *contestants.values()], ["---"] * (len(contestants) + 1)]
    for fault, title in faults.items():
        cells = [verdicts.get((contestant, fault)) for contestant in contestants]
        rows.append([title, *("" if cell is None else text_of(cell) for cell in cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

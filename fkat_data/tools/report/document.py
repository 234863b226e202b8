"""The parts of an HTML page that is one file and loads nothing else."""

from collections.abc import Mapping, Sequence
from html import escape

from fkat_data.quantities import readable_duration
from fkat_data.tools.report.series import Distribution
from fkat_data.tools.report.style import STYLE

__all__ = ["document", "legend", "quantiles", "section", "table", "tiles", "with_code"]


def document(title: str, parts: Sequence[str]) -> str:
    """Return a page.

    Args:
        title: The title, as text.
        parts: The content, as HTML.
    """
    heading = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main><h1>{heading}</h1>{''.join(parts)}</main></body></html>\n"
    )


def section(title: str, content: str, explanation: str) -> str:
    """Return a section with a heading. All arguments are HTML; the explanation may be empty."""
    note = f'<p class="note">{explanation}</p>' if explanation else ""
    return f"<section><h2>{title}</h2>{note}{content}</section>"


def quantiles(found: Distribution) -> str:
    """Return the quantiles of durations as a paragraph."""
    median, p95, p99, longest = map(readable_duration, found.quantiles_s)
    return f"<p>median {median}, 95 % {p95}, 99 % {p99}, longest {longest}</p>"


def tiles(numbers: Sequence[tuple[str, str]]) -> str:
    """Return a row of numbers. Each is a pair of texts: the value and what it means."""
    items = "".join(f"<li><b>{escape(value)}</b>{escape(what)}</li>" for value, what in numbers)
    return f'<ul class="tiles">{items}</ul>'


def legend(meanings: Mapping[str, str]) -> str:
    """Return a legend of colours, from the name of each to its meaning."""
    items = [f'<li><i class="{name}"></i>{escape(text)}</li>' for name, text in meanings.items()]
    return f'<ul class="legend">{"".join(items)}</ul>'


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts. The first row and the first column are headings."""
    first, *rest = rows
    head = "".join(f"<th>{escape(cell)}</th>" for cell in first)
    lines = [
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rest
    ]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def with_code(text: str) -> str:
    """Return a text as HTML, with text in backquotes as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))

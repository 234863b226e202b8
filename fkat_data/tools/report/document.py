"""What pages of HTML are made of: everything in one file, nothing fetched from anywhere."""

from collections.abc import Mapping, Sequence
from html import escape

from fkat_data.tools.report.style import STYLE

__all__ = ["document", "legend", "section", "table", "tiles", "with_code"]


def document(title: str, parts: Sequence[str]) -> str:
    """Return a page.

    Args:
        title: Its title, as text.
        parts: What is in it, as HTML.
    """
    told = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{told}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main><h1>{told}</h1>{''.join(parts)}</main></body></html>\n"
    )


def section(title: str, content: str, explanation: str) -> str:
    """Return a part with a heading; all three are HTML, and the last may be empty."""
    told = f'<p class="told">{explanation}</p>' if explanation else ""
    return f"<section><h2>{title}</h2>{told}{content}</section>"


def tiles(numbers: Sequence[tuple[str, str]]) -> str:
    """Return a row of numbers, each with what it means, as texts."""
    items = "".join(f"<li><b>{escape(value)}</b>{escape(what)}</li>" for value, what in numbers)
    return f'<ul class="tiles">{items}</ul>'


def legend(meanings: Mapping[str, str]) -> str:
    """Return what colours stand for: from the name of a colour to a text."""
    items = [f'<li><i class="{name}"></i>{escape(text)}</li>' for name, text in meanings.items()]
    return f'<ul class="legend">{"".join(items)}</ul>'


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts; the first column and the first row are headings."""
    first, *rest = rows
    head = "".join(f"<th>{escape(cell)}</th>" for cell in first)
    lines = [
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rest
    ]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def with_code(text: str) -> str:
    """Return a text as HTML, what stands in backquotes as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))

"""A dark mode for SVG files of Matplotlib, which fix every colour."""

from pathlib import Path

_RULES = """
@media (prefers-color-scheme: dark) {
[style*="fill: #ffffff"] {fill: #15171a !important}
[style*="stroke: #000000"] {stroke: #e6e8eb !important}
g[id^="text_"] {fill: #e6e8eb}
}
"""


def add_dark_mode(path: Path) -> None:
    """Let a drawing follow the reader's colour scheme; do nothing to a file that is no SVG."""
    if path.suffix == ".svg":
        path.write_text(path.read_text().replace("</style>", f"{_RULES}</style>", 1))

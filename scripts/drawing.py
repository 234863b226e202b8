"""A plot of Matplotlib as a file: of the same numbers the same file, which follows the reader's colour scheme."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

_DARK = """
@media (prefers-color-scheme: dark) {
[style*="fill: #ffffff"] {fill: #15171a !important}
[style*="stroke: #000000"] {stroke: #e6e8eb !important}
g[id^="text_"] {fill: #e6e8eb}
}
"""


def save_plot(output: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Draw on a new figure, and write it to an .svg file."""
    from matplotlib import rcParams  # noqa: PLC0415 - printing the numbers does not need it
    from matplotlib.figure import Figure  # noqa: PLC0415  see above

    rcParams["svg.hashsalt"] = output.stem
    figure = Figure(figsize=size, layout="constrained")
    draw(figure)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None})
    output.write_text(output.read_text().replace("</style>", f"{_DARK}</style>", 1))

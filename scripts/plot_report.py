"""Draw the head of a report as one SVG, for a page that shows what a report looks like.

    fkat-data report run.json
    python scripts/plot_report.py run.html --output docs/images/report.svg

The plots, colours and words are those of the report. The drawing has its own ground, in light and in dark.
"""

import argparse
import re
from pathlib import Path
from textwrap import wrap

# Narrow, with large words: a phone shows the whole of it at two thirds.
_WIDTH, _MARGIN = 520, 16
_DRAWN = 960
_LINE, _NARROW = 27, 8.3
_PLOTS = ("what the trainer did", "what its workers did", "microbatches made and not yet delivered")
_COLOURS = ("wait", "step", "produce", "blocked", "idle")
_STYLE = """.paper{fill:var(--paper)}.card{fill:var(--card)}.edge{fill:#d55e00}.head{fill:var(--ink);font:20px system-ui,
sans-serif}.what{fill:var(--faint);font:15px system-ui,sans-serif}.tick{font-size:25px}"""


def drawing(report: str) -> str:
    style = re.findall(r"<style>(.*?)</style>", report, re.DOTALL)[0].replace("svg{display:block;width:100%;", "i{")
    verdict = re.sub(r"<[^>]+>", "", re.findall(r'<p class="verdict.*?</p>', report)[0])
    lines = wrap(verdict, 46)
    height = _LINE * len(lines) + 20
    parts = [f'<rect class="card" x="{_MARGIN}" y="20" width="{_WIDTH}" height="{height}" rx="4"/>']
    parts += [f'<rect class="edge" x="{_MARGIN}" y="20" width="6" height="{height}"/>']
    parts += [
        f'<text class="head" x="{_MARGIN + 20}" y="{48 + _LINE * row}">{line}</text>' for row, line in enumerate(lines)
    ]
    x, y = float(_MARGIN), height + 46
    for name, meaning in re.findall(r'<i class="(\w+)"></i>([^<]+)', report):
        if name in _COLOURS:
            if x + 18 + _NARROW * len(meaning) > _WIDTH + _MARGIN:
                x, y = float(_MARGIN), y + 24
            parts.append(f'<rect class="{name}" x="{x:.1f}" y="{y - 11}" width="12" height="12" rx="2"/>')
            parts.append(f'<text class="what" x="{x + 18:.1f}" y="{y}">{meaning}</text>')
            x += 34 + _NARROW * len(meaning)
    y += 34
    for heading, (size, plot) in zip(
        _PLOTS, re.findall(r'<svg viewBox="0 0 \d+ (\d+)"(.*?)</svg>', report), strict=False
    ):
        parts.append(f'<text class="what" x="{_MARGIN}" y="{y}">{heading}</text>')
        drawn = int(size) * _WIDTH / _DRAWN
        parts.append(
            f'<svg x="{_MARGIN}" y="{y + 4}" width="{_WIDTH}" height="{drawn:.0f}" overflow="visible" '
            f'viewBox="0 0 {_DRAWN} {size}"{plot}</svg>'
        )
        y += round(drawn) + 36
    box = f'width="{_WIDTH + 2 * _MARGIN}" height="{y - 8}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _MARGIN} {y - 8}"><style>{style}{_STYLE}'
        f'</style><rect class="paper" {box} rx="8"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.write_text(drawing(arguments.report.read_text()))


if __name__ == "__main__":
    main()

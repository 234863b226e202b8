"""Plot microbatches/s against workers, from the numbers of `python scripts/bench --only scaling --json PATH`.

    python scripts/plot_scaling.py PATH [--output docs/images/scaling.svg]

The plot needs matplotlib.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from drawing import save_plot

TITLES = {
    "waiting": "items that wait 2 ms",
    "tar": "JPEGs, on {cpus} cores",
    "slow": "every 20th microbatch\n20 times as slow",
}


def rates(report: dict[str, Any]) -> dict[str, dict[str, dict[int, float]]]:
    """Return the median microbatches/s by kind of work, library and number of workers."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for trial in report["trials"]["scaling"]:
        by_workers = found.setdefault(trial["kind"], {}).setdefault(trial["contestant"], {})
        by_workers.setdefault(trial["workers"], []).append(trial["per_s"])
    return {
        kind: {name: {workers: median(per_s) for workers, per_s in sorted(row.items())} for name, row in rows.items()}
        for kind, rows in found.items()
    }


def draw(figure: Any, found: dict[str, dict[str, dict[int, float]]], cpus: int) -> None:
    kinds = [kind for kind in TITLES if kind in found]
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        for name, row in found[kind].items():
            style = {"linewidth": 2.5} if name == "ours" else {"linewidth": 1.2}
            axes.plot(list(row), list(row.values()), marker="o", markersize=4, label=name, **style)
        row = next(iter(found[kind].values()))
        first = row[min(row)]
        axes.plot(list(row), [first * workers / min(row) for workers in row], color="grey", linestyle=":", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(list(row), [str(workers) for workers in row])
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.set_title(TITLES[kind].format(cpus=cpus), fontsize="medium")
        axes.set_xlabel("workers (threads)")
        axes.legend(fontsize="small")
    figure.get_axes()[0].set_ylabel("microbatches/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="the file that the benchmark wrote")
    parser.add_argument("--output", type=Path, help="write the plot to this .svg file; default: print only")
    options = parser.parse_args()
    report = json.loads(options.report.read_text(encoding="utf-8"))
    found = rates(report)
    for kind, rows in found.items():
        for name, row in rows.items():
            numbers = ", ".join(f"{workers}: {per_s:.1f}" for workers, per_s in row.items())
            print(f"{kind}, {name}: {numbers}")
    if options.output:
        width = 3.2 * len(found.keys() & TITLES.keys())
        save_plot(options.output, (width, 3.4), lambda figure: draw(figure, found, report["machine"]["cpus"]))


if __name__ == "__main__":
    main()

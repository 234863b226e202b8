"""Run the benchmarks and print the tables of docs/benchmarks.md.

    python scripts/bench [--json PATH] [--only NAME ...] [--repeats N] [--scale FACTOR]

To measure peers too, make their environment first with scripts/bench/peers.
"""

import argparse
import importlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from measure import Settings, machine

#: By name: the module, whose ``run`` takes the settings and returns tables.
BENCHMARKS = {
    **{name: name for name in ("shared", "scaling", "latency", "start", "overlap", "state", "formats")},
    "memory": "memory",
    **{name: name for name in ("remote", "ranges", "plans", "balance", "tokens", "language", "elsewhere", "mesh")},
    "import": "changed_import",
    "cache": "cache_limits",
    "peers": "throughput",
}
#: Trials of each contestant by default, where they take long.
_REPEATS = {"shared": 3, "scaling": 1, "start": 3, "memory": 1, "mesh": 3}
_PEERS_PYTHON = Path(__file__).resolve().parents[2] / ".venvs" / "bench" / "bin" / "python"


def main() -> None:
    options = _options()
    names = ("scale", "workloads", "contestants", "workers", "busy", "link_mb_per_s")
    chosen = {name: getattr(options, name) for name in names}
    chosen |= {"is_together": options.together, "peers": _PEERS_PYTHON if _PEERS_PYTHON.exists() else None}
    report: dict[str, Any] = {"machine": machine(), "options": vars(options) | {"json": None}, "trials": {}}
    print(_heading(report["machine"]), flush=True)
    for name in options.only:
        repeats = options.repeats or _REPEATS.get(name, 5)
        print(f"\n`{name}`: medians of {repeats}, in turn", flush=True)
        report["trials"][name] = []
        settings = Settings(repeats=repeats, trials=report["trials"][name], **chosen)
        for table in importlib.import_module(BENCHMARKS[name]).run(settings):
            print(f"\n{table.markdown()}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers of every trial to this file")
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), help="benchmarks")
    parser.add_argument("--workloads", nargs="+", default=[], help="kinds of microbatches (default: all)")
    parser.add_argument("--contestants", nargs="+", default=[], help="contestants (default: all)")
    parser.add_argument(
        "--workers", nargs="+", type=int, default=[], help="numbers of workers: scaling, import, memory"
    )
    parser.add_argument("--busy", nargs="+", type=int, default=[0], help="busy neighbours, in turn: start, memory")
    parser.add_argument("--repeats", type=int, help="trials of each contestant, in turn (default 5, of some fewer)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of microbatches (default 1)")
    parser.add_argument(
        "--link-mb-per-s", type=float, default=100.0, help="of the store that is read in order: ranges (default 100)"
    )
    parser.add_argument("--together", action="store_true", help="run all trials in one process: quick, no valid memory")
    return parser.parse_args()


def _heading(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"`python scripts/bench {shlex.join(sys.argv[1:])}` on {machine['cpus']} CPUs ({machine['cpu']}), "
        f"Linux {machine['kernel']}, Python {machine['python']}, {versions}; "
        f"load before: {machine['load'][0]:.1f}."
    )


if __name__ == "__main__":
    main()

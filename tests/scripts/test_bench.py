"""Every benchmark runs and says something; how fast anything is, no test asserts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fkat_data.worker.settings import START_METHODS

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"

OURS = {f"ours, {method}" for method in START_METHODS}
#: Each benchmark that needs no server, and who takes part in it.
CONTESTANTS = {
    "peers": {"ours", "torch"},
    "latency": {"ours", "torch"},
    "start": {*OURS, "torch", "ours and torch in turn", "torch, fork"},
    "memory": {"ours, template", "torch, fork"},
    "formats": {"ours, MDS", "ours, Parquet"},
    "plans": {"ours"},
    "overlap": {"ours", "ours, traced", "torch"},
    "language": {"ours, 2 workers", "ours, 1 worker", "torch, 2 workers"},
    "cache": {"100", "10,000", "100,000"},
    "state": {"10 shards", "10,000 shards", "10,000 shards, redistributed"},
    "shared": {"ours", "torch"},
    "scaling": {"ours", "torch"},
    "elsewhere": {"ours", "torch"},
    "import": {"ours", "torch"},
}
RUNS = (
    ["peers", "overlap", "state"],
    ["latency", "start", "memory", "formats", "cache", "language"],
    ["plans", "shared", "scaling", "elsewhere", "import"],
)


@pytest.mark.parametrize("benchmarks", [RUNS[0], *(pytest.param(names, marks=pytest.mark.slow) for names in RUNS[1:])])
def test_every_benchmark_runs_and_prints_its_tables(processes, tmp_path, benchmarks):
    command = [sys.executable, str(BENCH), "--scale", "0.001", "--repeats", "1", "--together", "--json", "report.json"]
    command += ["--only", *benchmarks, "--workers", "1", "--workloads", "tokens", "waiting", "windows", "ready"]
    command += ["starts", "rows", "package", "array", "list"]
    command += ["--contestants", "ours", "torch", "ours, MDS", "ours, Parquet"]
    command += ["ours, template", "torch, fork"]
    with (tmp_path / "printed").open("w") as printed:
        subprocess.run(command, cwd=tmp_path, stdout=printed, check=True, timeout=200)
    trials = json.loads((tmp_path / "report.json").read_text())["trials"]
    text = (tmp_path / "printed").read_text()
    assert text.startswith("`python scripts/bench ")
    for benchmark in benchmarks:
        found = {trial.get("contestant") or trial["variant"] for trial in trials[benchmark]}
        assert found == CONTESTANTS[benchmark]
        numbers = [(name, number) for trial in trials[benchmark] for name, number in trial.items()]
        assert all(number >= 0 for _, number in numbers if isinstance(number, float)), benchmark
        assert all(number > 0 for name, number in numbers if name.endswith("_per_s")), benchmark
    assert text.count("|---|") + text.count("| --- |") >= len(benchmarks)


def test_every_benchmark_is_run_by_a_test():
    assert sorted(name for names in RUNS for name in names) == sorted(CONTESTANTS)

"""Every benchmark runs and says something; how fast anything is, no test asserts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"

#: Each benchmark that needs no server, and who takes part in it.
CONTESTANTS = {
    "throughput": {"ours", "torch", "memcpy"},
    "collate": {"ours", "generator", "torch", "stack"},
    "latency": {"ours", "torch"},
    "start": {"ours, template", "ours, spawn", "torch", "ours and torch in turn"},
    "growth": {"ours"},
    "overlap": {"ours", "torch"},
    "costs": {"ours", "torch"},
    "files": {"ours", "pyarrow"},
    "formats": {"ours, MDS", "ours, Parquet"},
    "tracing": {"ours"},
    "streaming": {"ours", "ours, Parquet"},
    "order": {"ours"},
}
#: Those of several workers and of several cores.
OF_PRODUCTION = ("shared", "scaling", "jpeg", "import")
OTHERS = ["datasets", "state", "cache"]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "benchmarks",
    [
        ["throughput", "collate", "costs", "files", "tracing", "datasets", "state"],
        pytest.param(
            ["latency", "start", "growth", "overlap", "formats", "streaming", "order", "cache"], marks=pytest.mark.slow
        ),
    ],
    ids=["short", "long"],
)
def test_every_benchmark_runs_and_prints_its_tables(tmp_path, benchmarks):
    command = [sys.executable, str(BENCH), "--scale", "0.001", "--repeats", "1", "--together", "--json", "report.json"]
    command += ["--only", *benchmarks, "--workloads", "tokens", "same images"]
    command += ["--contestants", "ours", "torch", "memcpy", "ours, MDS", "ours, Parquet"]
    with (tmp_path / "printed").open("w") as printed:
        subprocess.run(command, cwd=tmp_path, stdout=printed, check=True, timeout=200)
    trials = json.loads((tmp_path / "report.json").read_text())["trials"]
    lines = (tmp_path / "printed").read_text().splitlines()
    assert lines[0].startswith("`python scripts/bench ")
    for benchmark in benchmarks:
        if benchmark in CONTESTANTS:
            assert {trial["contestant"] for trial in trials[benchmark]} == CONTESTANTS[benchmark]
        numbers = [(name, number) for trial in trials[benchmark] for name, number in trial.items()]
        assert all(number >= 0 for _, number in numbers if isinstance(number, float)), benchmark
        assert all(number > 0 for name, number in numbers if name.endswith("per_s")), benchmark
    if "state" in benchmarks:
        variants = ["sorted", "shards", "paused True", "paused False"]
        assert [trial["variant"] for trial in trials["datasets"]] == variants
        variants = ["10 shards", "10,000 shards", "10,000 shards, redistributed"]
        assert [trial["variant"] for trial in trials["state"]] == variants
    else:
        assert any("| workers: 1 / 2 | until iter() returned, ms |" in line for line in lines)
        assert any("| block, 10^8, resumed at 90 % |" in line for line in lines)


def test_every_benchmark_is_run_by_a_test():
    names = {*CONTESTANTS, *OF_PRODUCTION, *OTHERS}
    (marks,) = [
        mark for mark in test_every_benchmark_runs_and_prints_its_tables.pytestmark if mark.name == "parametrize"
    ]
    short, long = marks.args[1]
    assert {*short, *long.values[0], *OF_PRODUCTION} == names


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_the_benchmarks_of_production_run(tmp_path):
    command = [sys.executable, str(BENCH), "--scale", "0.001", "--repeats", "1", "--together", "--json", "report.json"]
    command += ["--only", *OF_PRODUCTION, "--workloads", "tokens", "waiting", "windows", "--workers", "1"]
    subprocess.run([*command, "--contestants", "ours", "torch"], cwd=tmp_path, check=True, timeout=170)
    trials = json.loads((tmp_path / "report.json").read_text())["trials"]
    for benchmark in OF_PRODUCTION:
        assert {trial["contestant"] for trial in trials[benchmark]} == {"ours", "torch"}
        assert all(trial[name] > 0 for trial in trials[benchmark] for name in trial if name.endswith("per_s"))

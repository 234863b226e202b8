"""Every benchmark runs and says something; how fast anything is, no test asserts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes")

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"

# Few microbatches, one workload each, and as few worker processes as show every program at work.
CASES = [
    ("throughput", "same images", {"ours", "torch", "memcpy"}),
    ("latency", "tokens", {"ours", "torch"}),
    ("start", "tiny", {"ours", "torch"}),
    ("growth", "varying", {"ours"}),
    ("overlap", "tokens", {"ours", "torch"}),
    ("costs", "tokens", {"ours", "torch"}),
    ("files", "tokens", {"ours", "pyarrow"}),
    ("tracing", "tokens", {"ours"}),
]


@pytest.mark.parametrize(("benchmark", "workload", "contestants"), CASES)
def test_benchmark_runs(benchmark, workload, contestants, tmp_path):
    report = run(tmp_path, "--only", benchmark, "--workloads", workload)
    trials = report["trials"][benchmark]
    assert {trial["contestant"] for trial in trials} == contestants
    assert all(number >= 0 for trial in trials for number in trial.values() if isinstance(number, float))


def test_the_datasets_are_measured(tmp_path):
    trials = run(tmp_path, "--only", "datasets")["trials"]["datasets"]
    assert [trial["variant"] for trial in trials] == ["sorted", "shards", "paused True", "paused False"]
    assert all(number > 0 for trial in trials for name, number in trial.items() if name.endswith("_per_s"))
    assert (tmp_path / "printed").read_text().count("**") == 6


def test_the_cost_of_a_state_is_measured(tmp_path):
    trials = run(tmp_path, "--only", "state")["trials"]["state"]
    assert [trial["variant"] for trial in trials] == ["10 shards", "10,000 shards", "10,000 shards, redistributed"]
    assert all(trial["state_us"] > 0 and trial["statistics_us"] > 0 for trial in trials)


def test_streaming_is_measured(tmp_path):
    trials = run(tmp_path, "--only", "streaming")["trials"]["streaming"]
    assert {trial["contestant"] for trial in trials} == {"ours"}
    assert all(number > 0 for trial in trials for name, number in trial.items() if name.endswith("_per_s"))
    assert "| block, 10^8, resumed at 90 % |" in (tmp_path / "printed").read_text()


def test_prints_markdown_tables(tmp_path):
    run(tmp_path, "--only", "start")
    lines = (tmp_path / "printed").read_text().splitlines()
    assert lines[0].startswith("`python scripts/bench ")
    assert "| ours s | torch s | ratio |" in "\n".join(lines)


def run(folder, *options):
    contestants = ("--contestants", "ours", "torch", "memcpy")
    command = [sys.executable, str(BENCH), "--scale", "0.001", "--repeats", "1", "--together", "--json", "report.json"]
    with (folder / "printed").open("w") as printed:
        subprocess.run([*command, *contestants, *options], cwd=folder, stdout=printed, check=True, timeout=120)
    return json.loads((folder / "report.json").read_text())

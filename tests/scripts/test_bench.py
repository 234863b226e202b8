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
    "latency": {"ours", "torch"},
    "start": {"ours", "torch"},
    "growth": {"ours"},
    "overlap": {"ours", "torch"},
    "costs": {"ours", "torch"},
    "files": {"ours", "pyarrow"},
    "tracing": {"ours"},
    "streaming": {"ours"},
}
OTHERS = ["datasets", "state"]


@pytest.fixture(scope="module")
def run(shared_processes, tmp_path_factory):
    """The trials of one short run of every benchmark, and what it printed."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, str(BENCH), "--scale", "0.001", "--repeats", "1", "--together", "--json", "report.json"]
    command += ["--only", *CONTESTANTS, *OTHERS, "--workloads", "tokens", "same images"]
    command += ["--contestants", "ours", "torch", "memcpy"]
    with (folder / "printed").open("w") as printed:
        subprocess.run(command, cwd=folder, stdout=printed, check=True, timeout=150)
    return json.loads((folder / "report.json").read_text())["trials"], (folder / "printed").read_text()


@pytest.mark.parametrize(("benchmark", "contestants"), CONTESTANTS.items())
def test_a_benchmark_runs(run, benchmark, contestants):
    trials = run[0][benchmark]
    assert {trial["contestant"] for trial in trials} == contestants
    assert all(number >= 0 for trial in trials for number in trial.values() if isinstance(number, float))


def test_the_datasets_are_measured(run):
    trials = run[0]["datasets"]
    assert [trial["variant"] for trial in trials] == ["sorted", "shards", "paused True", "paused False"]
    assert all(number > 0 for trial in trials for name, number in trial.items() if name.endswith("_per_s"))


def test_the_cost_of_a_state_is_measured(run):
    trials = run[0]["state"]
    assert [trial["variant"] for trial in trials] == ["10 shards", "10,000 shards", "10,000 shards, redistributed"]
    assert all(trial["state_us"] > 0 and trial["statistics_us"] > 0 for trial in trials)


def test_streaming_is_measured(run):
    trials, printed = run
    assert all(number > 0 for trial in trials["streaming"] for name, number in trial.items() if name.endswith("_per_s"))
    assert "| block, 10^8, resumed at 90 % |" in printed


def test_prints_markdown_tables(run):
    lines = run[1].splitlines()
    assert lines[0].startswith("`python scripts/bench ")
    assert "| ours s | torch s | ratio |" in "\n".join(lines)

"""The command that says how unequally ranks compute: what it prints, and its exit codes."""

import json
from functools import partial

import command_examples
import numpy as np
import pytest

from fkat_data.datasets import PackedDataset, attention_cost, plan_report

said = partial(command_examples.said, "balance")
OPTIONS = ("--sequence-length", 4096, "--hidden-size", 64, "--ranks", 4, "--window-size", 200)


@pytest.fixture
def lengths():
    return np.clip(np.random.default_rng(1).lognormal(6, 1.3, 3000).astype(np.int64), 1, 4096)


def test_a_plan_is_reported_before_anybody_pays_for_it(tmp_path, lengths, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # another test, or the shell, may have set fewer
    np.save(tmp_path / "lengths.npy", lengths)
    (tmp_path / "lengths.txt").write_text("\n".join(map(str, lengths)))
    found = json.loads(said(tmp_path / "lengths.npy", *OPTIONS, "--json"))
    assert found == json.loads(said(tmp_path / "lengths.txt", *OPTIONS, "--json"))
    cost = attention_cost(64)
    options = {"lengths": lengths, "seed": 0, "world_size": 4}
    for name, dealing in {"in turn": {}, "by cost": {"cost": cost}}.items():
        dataset = PackedDataset(range(3000), 4096, 200, **options, **dealing)
        assert found[name] == plan_report(dataset, cost=cost)._asdict()
    assert found["by cost"]["slowest"] < 1.05 < found["in turn"]["slowest"]
    four = json.loads(said(tmp_path / "lengths.npy", *OPTIONS, "--accumulate", 4, "--json"))
    assert four["by cost"]["num_steps"] == -(-found["by cost"]["num_steps"] // 4)
    assert four["by cost"]["slowest"] < four["in turn"]["slowest"] < found["in turn"]["slowest"]
    near = json.loads(said(tmp_path / "lengths.npy", *OPTIONS, "--attention-window", 16, "--json"))
    assert near["in turn"]["slowest"] < found["in turn"]["slowest"]
    table = said(tmp_path / "lengths.npy", *OPTIONS)
    for words in ("in turn", "by cost", f"{found['by cost']['slowest']:.3f}", "slowest rank to the mean"):
        assert words in table


def test_what_cannot_be_planned_is_said(tmp_path):
    path = tmp_path / "lengths"
    for text, words in (("3\nfour\n", "a number a line"), ("5000\n", "too_long='skip'"), ("3\n", "world_size = 4")):
        path.write_text(text)
        output = said(path, *OPTIONS, code=2)
        assert "nothing was planned" in output
        assert words in output
    assert "nothing was planned" in said(tmp_path / "none", *OPTIONS, code=2)

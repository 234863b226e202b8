"""The judge of the benchmark of robustness is right, and cells of ours and of torch run for real."""

import json
from pathlib import Path

import pytest
from interpreters import run_python
from robustness.contestants import CONTESTANTS
from robustness.faults import FAULTS
from robustness.verdict import Life, judge, text_of

ROOT = Path(__file__).parents[2]
DUE = [0, 1, 2, 3, 4, 5]
SAYS = "disk"


def at(second, what, **facts):
    return {"what": what, "at_s": float(second), **facts}


def batch(second, *numbers, is_right=True):
    return at(second, "batch", numbers=list(numbers), is_right=is_right)


WHOLE = [batch(1, 0, 1), batch(2, 2, 3), batch(3, 4, 5), at(3, "finished")]
STRUCK = at(1.5, "struck")


def ended(events, code=0, **facts):
    return Life(events, code, 9.0, 9.0, **facts)


@pytest.mark.parametrize(
    ("life", "verdict"),
    [
        (ended(WHOLE), "exact"),
        (ended([*WHOLE[:1], STRUCK, *WHOLE[1:]]), "exact, 1.0 s"),
        (ended([WHOLE[0], batch(2, 2, 3, is_right=False), *WHOLE[2:]]), "**wrong data**"),
        (ended([WHOLE[0], *WHOLE[2:]]), "**2 lost** (in silence)"),
        (ended([WHOLE[0], *WHOLE[2:]], stderr="ERROR: disk"), "**2 lost** (says so in its log)"),
        (ended([WHOLE[0], at(2, "error", text="E: disk"), *WHOLE[2:]]), "**2 lost** (after an error)"),
        (ended([*WHOLE[:2], *WHOLE]), "**4 repeated**"),
        (ended([WHOLE[0], STRUCK, at(2, "raised", text="a.B: a disk")], code=1), "clear error, 0.5 s"),
        (ended([WHOLE[0], STRUCK, at(2, "raised", text="a.B: what\nC: d")], code=1), "unclear error (B), 0.5 s"),
        (ended(WHOLE[:1], code=None), "**hangs**"),
        (ended(WHOLE, code=None), "**hangs** (at exit, after the last batch)"),
        (ended([at(0, "unsupported", why="no such setting"), *WHOLE]), "not supported (no such setting)"),
    ],
)
def test_a_loop_is_judged_by_what_came_and_how_it_ended(life, verdict):
    assert text_of(judge("none", SAYS, DUE, [life])) == verdict


def test_interrupts_are_counted_and_timed():
    seen = [WHOLE[0], at(1, "struck"), at(1.3, "interrupted"), at(2, "struck"), at(2.1, "interrupted"), *WHOLE[1:]]
    assert text_of(judge("interrupted", "", DUE, [ended(seen)])) == "exact, 0.3 s"
    assert text_of(judge("interrupted", "", DUE, [ended([*seen[:4], *seen[5:]])])) == "ignores it (1 of 2)"
    assert text_of(judge("interrupted", "", DUE, [ended([*seen[:3], WHOLE[-1]])])) == "**4 lost** (in silence)"


@pytest.mark.parametrize(
    ("killed", "again", "verdict"),
    [
        (Life(WHOLE[:1], -9, 5.0, 6.0), WHOLE, "exact, 1.0 s"),
        (Life(WHOLE[:1], -9, 5.0, 6.0, files_left=["/tmp/a"]), WHOLE, "exact, 1.0 s"),
        (
            Life(WHOLE[:1], -9, 5.0, 6.0, None, 2, ["/dev/shm/a"]),
            WHOLE,
            "leaves (2 processes, 1 file in /dev/shm)",
        ),
        (Life(WHOLE[:1], -9, 5.0, 6.0, None, 2), WHOLE[1:], "**2 lost** (at the next start: in silence)"),
    ],
)
def test_a_killed_trainer_leaves_nothing_and_starts_again(killed, again, verdict):
    assert text_of(judge("trainer-killed", "", DUE, [killed, ended(again)])) == verdict


def test_the_documented_table_has_every_fault_and_every_contestant():
    text = (ROOT / "docs" / "reliability.md").read_text().partition("## What other loaders do")[2]
    assert [fault.title for fault in FAULTS.values() if f"| {fault.title} |" not in text] == []
    assert [name for name in CONTESTANTS if f"| {name} " not in text] == []


def test_cells_of_ours_and_of_torch_run_alone(processes, tmp_path):
    arguments = ["--contestants", "ours", "torch", "--faults", "worker-killed", "--json", tmp_path / "lives"]
    done = run_python("-m", "robustness", *arguments)
    row = done.stdout.splitlines()[-1]
    assert row.startswith(f"| {FAULTS['worker-killed'].title} | clear error"), done.stdout
    lives = json.loads((tmp_path / "lives").read_text())
    for name in ("ours", "torch"):
        (life,) = lives[f"{name} / worker-killed"]
        assert "killed" in life["events"][-1].get("text", ""), life
        assert life["num_processes_left"] == 0

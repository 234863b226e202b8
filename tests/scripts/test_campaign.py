"""The campaign draws the same cases again, sees what is wrong with a ledger, and finds nothing wrong in a short run."""

import json
import signal

import pytest
from fault_campaign.conductor import complaint_about_end, files_left
from fault_campaign.ledger import Audit, Ledger, audit, entries
from fault_campaign.outcome import Hit
from interpreters import run_python

DUE = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ("acd", Audit(1, 0, 0, 0)),
        ("abccd", Audit(0, 1, 0, 0)),
        ("abxd", Audit(1, 0, 1, 0)),
        ("abdc", Audit(0, 0, 0, 2)),
    ],
)
def test_an_audit_tells_what_is_wrong(found, wrong):
    assert audit([f"{place} {digest}" for place, digest in enumerate(found)], DUE) == wrong


def test_a_ledger_keeps_what_a_checkpoint_knows_of_and_drops_half_a_line(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger(path, 0)
    for digest in DUE:
        ledger.write(digest)
    ledger.close()
    with path.open("a") as file:
        file.write("4 hal")
    assert entries(path) == ["0 a", "1 b", "2 c", "3 d"]
    ledger = Ledger(path, 2)
    ledger.write("x")
    ledger.close()
    assert entries(path) == ["0 a", "1 b", "2 x"]


def hit(pid, name, role="worker"):
    return Hit(pid, role, role, name, 0.0)


@pytest.mark.parametrize(
    ("code", "hits", "events", "complaint"),
    [
        (0, [], [], ""),
        (-9, [hit(1, "KILL", "trainer")], [], ""),
        (-9, [hit(1, "TERM", "trainer")], [], "ended with -9"),
        (3, [hit(2, "KILL")], [{"what": "died", "pid": 2, "exit_code": -signal.SIGKILL}], ""),
        (0, [hit(2, "KILL")], [{"what": "replaced", "pid": 3, "exit_code": -signal.SIGKILL}], "a worker ended with -9"),
        (0, [], [{"what": "logged", "message": "odd"}], "nothing explains: odd"),
    ],
)
def test_a_trainers_end_is_held_against_what_it_was_hit_by(code, hits, events, complaint):
    said = complaint_about_end(code, 1, hits, events)
    assert complaint in said
    assert bool(said) == bool(complaint)


def test_two_kills_lose_nothing_and_leave_nothing(processes, tmp_path):
    # In its first case a worker is killed, then the trainer.
    arguments = ["--jobs", "1", "--kills", "2", "--seed", "8047", "--json", str(tmp_path / "report")]
    run_python("-m", "fault_campaign", *arguments, timeout=None)
    figures = json.loads((tmp_path / "report").read_text())
    assert figures["kills"] >= 2
    assert not figures["failures"]
    assert sum(figures[name] for name in ("hangs", "lost", "repeated", "corrupt", "reordered", "leftovers")) == 0


def test_what_others_leave_is_told_from_what_the_loader_leaves(tmp_path):
    (tmp_path / "pymp-abc").mkdir()
    (tmp_path / "0t94dks1").write_bytes(b"blat")  # Python's tempfile tries a folder so, and removes it again
    assert files_left(tmp_path) == ([], 2)
    (tmp_path / "segment0").write_bytes(b"12345")
    (tmp_path / "fkat_data_x").write_bytes(b"")
    assert files_left(tmp_path) == (["fkat_data_x", "segment0"], 2)

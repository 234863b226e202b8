"""Plays one case: starts the trainer, strikes it, restarts it until it finishes, and checks the outcome."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault_campaign.case import Case, Strike
from fault_campaign.ledger import audit, entries
from fault_campaign.outcome import Hit, Outcome
from fault_campaign.processes import MARK, marked, named_servers, send, stacks, wait_until_gone
from fault_campaign.trainer import AGAIN

_POLL_S = 0.003
_HANG_S = 60.0
_GONE_WITHIN_S = 5.0
_VICTIM_WITHIN_S = 5.0
# How Python ends after Ctrl-C: by the signal, with its exit code, or, early in the start, with a plain error.
_AFTER_INTERRUPT = (-signal.SIGINT, 128 + signal.SIGINT, 1)


def play(case: Case, number: int, due: list[str]) -> Outcome:
    """Play a case.

    Args:
        case: The case.
        number: Its number, for names.
        due: The digests of the microbatches that the trainer must deliver.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"fault_campaign_{number}_"))
    (folder / "case").write_bytes(pickle.dumps(case))
    play = _Play(case, number, due, folder)
    try:
        play.run()
    finally:
        for pid in marked(play.mark):
            send(pid, signal.SIGKILL, play.mark)
    if play.outcome.failures:
        play.outcome.folder = str(folder)
    else:
        shutil.rmtree(folder)
    return play.outcome


class _Play:
    def __init__(self, case: Case, number: int, due: list[str], folder: Path) -> None:
        self._case = case
        self._due = due
        self._folder = folder
        self._temporary = folder / "tmp"
        self.mark = f"{os.getpid()}-{number}"
        self.outcome = Outcome(number)
        self._strikes = list(case.strikes)
        self._seen: set[int] = set()
        self._base = 0
        self._sign: tuple[int, int] = (0, 0)
        self._sign_at_s = 0.0

    def run(self) -> None:
        while not self.outcome.failures:
            hits_before, events_before = len(self.outcome.hits), len(self._events())
            code = self._live()
            self.outcome.lives += 1
            if code is None:
                return
            self._check_leavings()
            self._check_ledger(is_through=code == 0)
            hits = self.outcome.hits[hits_before:]
            events = self._events()[events_before:]
            complaint = complaint_about_end(code, self._trainer, hits, events)
            if complaint:
                self._fail(complaint, (self._folder / "stderr").read_text(errors="replace")[-3000:])
            if code == 0:
                break
        self.outcome.add_events(self._events(), has_nested=any(name.startswith("nested") for name in self._case.shards))

    def _live(self) -> int | None:
        """Run the trainer until it ends; return its exit code, or None if it hung."""
        self._temporary.mkdir(exist_ok=True)
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self._temporary)}
        command = [sys.executable, "-m", "fault_campaign.trainer", str(self._folder), str(self.outcome.lives)]
        self._sign_at_s = time.monotonic()
        with (self._folder / "stderr").open("ab") as stderr:
            trainer = subprocess.Popen(command, env=environment, stderr=stderr, start_new_session=True)
        self._trainer = trainer.pid
        while trainer.poll() is None:
            if self._strikes and self._wait_for_moment(trainer, self._strikes[0]):
                self._strike(trainer, self._strikes.pop(0))
            elif not self._is_moving():
                self._fail("hang", stacks(self.mark))
                trainer.kill()
                trainer.wait()
                return None
            else:
                time.sleep(_POLL_S)
        return trainer.returncode

    def _wait_for_moment(self, trainer: "subprocess.Popen[bytes]", strike: Strike) -> bool:
        """Return whether a strike is due; sleeps through its delay."""
        count = len(entries(self._folder / "ledger"))
        self._base = min(self._base, count)  # the trainer has gone back
        if count - self._base < strike.after_microbatches:
            return False
        until_s = time.monotonic() + strike.delay_s
        while trainer.poll() is None and time.monotonic() < until_s:
            time.sleep(min(_POLL_S, max(0.0, until_s - time.monotonic())))
        self._base = len(entries(self._folder / "ledger"))
        return trainer.poll() is None

    def _strike(self, trainer: "subprocess.Popen[bytes]", strike: Strike) -> None:
        victims = self._victims(trainer, strike)
        for pid in victims:
            self._hit(pid, strike, strike.signal)
        if strike.signal == "STOP":
            time.sleep(strike.stop_s)
            for pid in victims:
                self._hit(pid, strike, "CONT")
        self._sign_at_s = time.monotonic()

    def _victims(self, trainer: "subprocess.Popen[bytes]", strike: Strike) -> list[int]:
        deadline_s = time.monotonic() + _VICTIM_WITHIN_S
        wants = strike.victim
        if wants == "grandchild" and not any(name.startswith("nested") for name in self._case.shards):
            wants = "worker"
        while trainer.poll() is None and time.monotonic() < deadline_s:
            parents = marked(self.mark)
            self._seen |= parents.keys()
            if wants == "all":
                return sorted(parents, key=lambda pid: hash((pid, strike.choice)))
            # Those that others are forked from: the template, importers, and the parents of loaders.
            servers = {pid for pid, parent in parents.items() if parent == trainer.pid} | named_servers(parents)
            workers = sorted(pid for pid, parent in parents.items() if parent in servers or parent == trainer.pid)
            grandchildren = sorted(pid for pid, parent in parents.items() if parent in workers and pid not in workers)
            pids = {"trainer": [trainer.pid], "worker": workers, "grandchild": grandchildren}[wants]
            if pids:
                return [pids[int(strike.choice * len(pids))]]
            time.sleep(_POLL_S)
        return []

    def _hit(self, pid: int, strike: Strike, name: str) -> None:
        at_s = time.monotonic()
        if send(pid, signal.Signals[f"SIG{name}"], self.mark):
            role = "trainer" if pid == self._trainer else "worker"
            if strike.victim == "grandchild":
                role = "grandchild"
            self.outcome.hits.append(Hit(pid, strike.victim, role, name, at_s))

    def _is_moving(self) -> bool:
        sign = (self._size("ledger"), self._size("events"))
        now_s = time.monotonic()
        if sign != self._sign:
            self._sign, self._sign_at_s = sign, now_s
        return now_s - self._sign_at_s < _HANG_S

    def _size(self, name: str) -> int:
        path = self._folder / name
        return path.stat().st_size if path.exists() else 0

    def _check_leavings(self) -> None:
        began_s = time.monotonic()
        left = wait_until_gone(self.mark, _GONE_WITHIN_S)
        self.outcome.gone_s.append(time.monotonic() - began_s)
        if left:
            self.outcome.leftovers += len(left)
            self._fail("processes left", stacks(self.mark))
        ours, torchs = files_left(self._temporary)
        names = shared_memory_of(self._seen)
        self.outcome.torchs_leftovers += torchs + len(names)
        if ours:
            self.outcome.leftovers += len(ours)
            self._fail("files left", "\n".join(ours))
        shutil.rmtree(self._temporary)

    def _check_ledger(self, *, is_through: bool) -> None:
        found = entries(self._folder / "ledger")
        due = self._due if is_through else self._due[: len(found)]
        found_wrong = audit(found, due)
        if any(found_wrong):
            self.outcome.audits.append(found_wrong)
            self._fail(f"not what was due: {found_wrong}", "\n".join(found))

    def _events(self) -> list[dict[str, Any]]:
        path = self._folder / "events"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _fail(self, what: str, details: str) -> None:
        self.outcome.failures.append({"what": what, "details": details})


#: Files of the workers of a nested torch DataLoader, which killed ones cannot remove. torch makes torchinductor's when
#: it logs that its handler of such a death has interrupted one of its imports.
_TORCHS = re.compile(r"pymp-|torch_|listener-|torchinductor_")
#: The file with which Python's tempfile checks that a folder is writable; a kill may come before its removal.
_PROBE = re.compile(r"[a-z0-9_]{8}")
_PROBE_BYTES = 4


def files_left(folder: Path) -> tuple[list[str], int]:
    """Return what the loader left in a folder for temporary files, and how many entries torch and Python left."""
    paths = sorted(folder.iterdir())
    ours = [path.name for path in paths if not _TORCHS.match(path.name) and not _is_probe(path)]
    return ours, len(paths) - len(ours)


def _is_probe(path: Path) -> bool:
    return bool(_PROBE.fullmatch(path.name)) and path.is_file() and path.stat().st_size <= _PROBE_BYTES


def shared_memory_of(pids: set[int]) -> list[str]:
    """Remove the files that torch left in /dev/shm for dead processes; return their names."""
    names: list[str] = []
    for path in Path("/dev/shm").glob("torch_*"):  # noqa: S108 - where torch makes them
        if int(path.name.split("_")[1]) in pids:
            names.append(path.name)
            path.unlink(missing_ok=True)
    return names


def complaint_about_end(code: int, trainer: int, hits: Sequence[Hit], events: Sequence[dict[str, Any]]) -> str:
    """Return what is wrong with a trainer's end, or "".

    Args:
        code: Its exit code, as ``subprocess`` gives it.
        trainer: Its process id.
        hits: The signals that reached it and its workers.
        events: The events that it reported.
    """
    names = {hit.signal for hit in hits if hit.pid == trainer}
    for event in events:
        complaint = _complaint_about(event, hits)
        if complaint:
            return complaint
    if code == 0 or (code < 0 and signal.Signals(-code).name.removeprefix("SIG") in names):
        return ""
    if "INT" in names and code in _AFTER_INTERRUPT:
        return ""
    if code == AGAIN and any(event["what"] in ("died", "failed") for event in events):
        return ""
    return f"the trainer ended with {code}, after {sorted(names)}"


def _is_explained(message: str, num_deadly: int) -> bool:
    """Return whether a warning is what follows from that many deadly strikes, or from the case."""
    if "template processes ended before they had started a worker" in message:
        return num_deadly > 1
    if "the process that workers were forked from has ended" in message:
        return num_deadly > 0
    return "has no microbatch" in message  # where a case has some, the ledger lacks them


def _complaint_about(event: dict[str, Any], hits: Sequence[Hit]) -> str:
    match event["what"]:
        case "died" | "replaced":
            signals = {
                int(signal.Signals[f"SIG{hit.signal}"]) for hit in hits if hit.pid == event["pid"] and hit.is_deadly
            }
            # An orphan's exit code is unknown: what it was forked from was hit before.
            is_orphan = event["exit_code"] is None and sum(hit.is_deadly for hit in hits) > 1
            if not is_orphan and (event["exit_code"] is None or -event["exit_code"] not in signals):
                return f"a worker ended with {event['exit_code']}, hit by {sorted(signals)}"
        case "failed":
            if not any(hit.victim in ("grandchild", "all") for hit in hits):
                return f"an error that nothing explains: {event['error']}"
        case "logged":
            if _is_explained(event["message"], sum(hit.is_deadly for hit in hits)):
                return ""
            return f"a warning that nothing explains: {event['message']}"
        case _:
            pass
    return ""

"""One cell of the table: a contestant under a fault. Starts its trainers, bounds their time, and sees what they leave.

python -m robustness.cell CONTESTANT FAULT FOLDER PATIENCE_S
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fault_campaign.processes import MARK, marked, send, wait_until_gone

from robustness.faults import FAULTS

_POLL_S = 0.01
_GONE_WITHIN_S = 10.0
#: In units of the patience: no life is longer, whatever it does.
_LONGEST_LIFE = 3
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where every library makes its files


def _live(contestant: str, fault: str, life: int, folder: Path, temporary: Path, patience_s: float) -> dict[str, Any]:
    """Run a trainer until it ends, or until nothing has happened for too long."""
    mark, events = f"{os.getpid()}-{life}", folder / f"events-{life}"
    files_before = _files(temporary)
    command = [sys.executable, "-m", "robustness.trainer", contestant, fault, str(life), str(folder)]
    with (folder / f"stderr-{life}").open("wb") as stderr:
        trainer = subprocess.Popen(
            command,
            env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            start_new_session=True,
        )
    size, began_s = 0, time.monotonic()
    moved_s, deadline_s = began_s, began_s + _LONGEST_LIFE * patience_s
    while trainer.poll() is None:
        now_s = time.monotonic()
        if events.exists() and events.stat().st_size > size:
            size, moved_s = events.stat().st_size, now_s
        if now_s - moved_s > patience_s or now_s > deadline_s:
            break
        time.sleep(_POLL_S)
    code, ended_s = trainer.poll(), time.monotonic()
    left = wait_until_gone(mark, _GONE_WITHIN_S) if code is not None else {}
    gone_s = time.monotonic()
    files = sorted(_files(temporary) - files_before) if code is not None else []
    _end(mark)
    trainer.wait()
    struck = folder / "struck"
    return {
        "events": [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else [],
        "struck_s": float(struck.read_text()) if struck.exists() else None,
        "code": code,
        "ended_s": ended_s,
        "gone_s": gone_s,
        "num_processes_left": len(left),
        "files_left": files,
        "stderr": (folder / f"stderr-{life}").read_text(errors="replace")[-8000:],
    }


def _end(mark: str) -> None:
    for pid in marked(mark):
        send(pid, signal.SIGKILL, mark)
    wait_until_gone(mark, _GONE_WITHIN_S)


def _files(temporary: Path) -> set[str]:
    return {str(path) for folder in (_SHARED_MEMORY, temporary) for path in folder.iterdir()}


def main() -> None:
    contestant, fault, folder, patience_s = sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    lives: list[dict[str, Any]] = []
    # A short name: sockets are made there, whose paths have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="rob", ignore_cleanup_errors=True) as temporary:
        for life in range(len(FAULTS[fault].lives)):
            lives.append(_live(contestant, fault, life, folder, Path(temporary), patience_s))
            # A state that was not saved cannot be resumed from.
            events = [event["what"] for event in lives[0]["events"]]
            if fault == "resumed" and (lives[0]["code"] != 0 or "unsupported" in events):
                break
    (folder / "lives.json").write_text(json.dumps(lives), encoding="utf-8")


if __name__ == "__main__":
    main()

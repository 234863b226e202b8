"""Let the same things go wrong for several loaders, and print what each did, and in how many seconds.

scripts/campaign --peers [--contestants NAME ...] [--faults NAME ...] [--patience-s S] [--json PATH]

A row is a fault (scripts/robustness/faults.py), a column a contestant (scripts/robustness/contestants.py: the few lines
that its documentation shows). Each cell is a process of its own, with a /dev/shm of its own where the system permits
that; a contestant that does nothing for --patience-s seconds hangs. Peers run in .venvs/bench (scripts/bench/peers),
which is made where it is missing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from measure import Table

from robustness.contestants import CONTESTANTS
from robustness.faults import FAULTS
from robustness.source import NUM_SAMPLES
from robustness.verdict import Life, Verdict, judge, text_of

_ROOT = Path(__file__).resolve().parents[2]
_PEERS_PYTHON = _ROOT / ".venvs/bench/bin/python"
_MOUNT = 'mount -t tmpfs -o "size=$0" robustness /dev/shm && exec "$@"'


class _Campaign:
    """Plays cells, one at a time.

    Args:
        folder: For the cells' files.
        patience_s: How long a contestant may do nothing.
    """

    def __init__(self, folder: Path, patience_s: float) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self._unshare = _unshare()
        path = [str(_ROOT / "scripts"), str(_ROOT / "scripts/bench"), str(_ROOT)]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        self.versions: dict[str, str] = {}
        self.lives: dict[str, list[dict[str, Any]]] = {}

    def play(self, contestant: str, fault: str) -> Verdict:
        if FAULTS[fault].shared_memory_bytes < FAULTS["none"].shared_memory_bytes and not self._unshare:
            return Verdict("not supported", remark="this system permits no /dev/shm of its own")
        folder = self._folder / contestant / fault
        shutil.copytree(self._data(contestant), folder / "data")
        isolated = [*self._unshare, str(FAULTS[fault].shared_memory_bytes)] if self._unshare else []
        cell = ["-m", "robustness.cell", contestant, fault, str(folder), str(self._patience_s)]
        subprocess.run([*isolated, _python(contestant), *cell], env=self._environment, check=True)
        lives = json.loads((folder / "lives.json").read_text())
        self.lives[f"{contestant} / {fault}"] = lives
        for event in lives[0]["events"]:
            if event["what"] == "began":
                self.versions[contestant] = event["version"]
        return judge(fault, FAULTS[fault].says, range(NUM_SAMPLES), [Life(**life) for life in lives])

    def _data(self, contestant: str) -> Path:
        """Return the folder of a contestant's dataset, which is empty for those that read none."""
        data = self._folder / contestant / "data"
        if not data.exists():
            subprocess.run(
                [_python(contestant), "-m", "robustness.trainer", contestant, "prepare", str(data)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
            )
        return data


def _python(contestant: str) -> str:
    return str(_PEERS_PYTHON) if CONTESTANTS[contestant].is_peer else sys.executable


def _unshare() -> list[str]:
    """Return the start of a command that gets a /dev/shm of its own, or nothing where the system does not permit it."""
    if shutil.which("unshare"):
        for options in (["--mount"], ["--user", "--map-root-user", "--mount"]):
            command = ["unshare", *options, "sh", "-c", _MOUNT]
            if subprocess.run([*command, "1m", "true"], check=False, capture_output=True).returncode == 0:
                return command
    return []


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/campaign --peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--contestants", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS), metavar="NAME"
    )
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="NAME")
    parser.add_argument("--patience-s", type=float, default=35.0, help="how long nothing may happen (default 35)")
    parser.add_argument("--json", type=Path, help="also write all events to this file")
    options = parser.parse_args()
    if any(CONTESTANTS[name].is_peer for name in options.contestants) and not _PEERS_PYTHON.exists():
        subprocess.run([_ROOT / "scripts/bench/peers"], check=True)
    verdicts: dict[tuple[str, str], Verdict] = {}
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="robustness_", ignore_cleanup_errors=True) as folder:
        campaign = _Campaign(Path(folder), options.patience_s)
        for contestant in options.contestants:
            for fault in options.faults:
                verdict = verdicts[contestant, fault] = campaign.play(contestant, fault)
                print(f"{time.monotonic() - began_s:5.0f} s: {contestant}: {fault}: {text_of(verdict)}", flush=True)
    titles = [f"{name} {campaign.versions.get(name, '')}".strip() for name in options.contestants]
    rows = [
        [FAULTS[fault].title, *(text_of(verdicts[name, fault]) for name in options.contestants)]
        for fault in options.faults
    ]
    print()
    print(Table("What each did", ["", *titles], rows).markdown())
    if options.json:
        options.json.write_text(json.dumps(campaign.lives, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Kill workers and trainers at random, and check that nothing is lost, repeated or left behind.

scripts/campaign [--kills N] [--seed N] [--case N] [--jobs N] [--streams] [--json PATH]
scripts/campaign --sweep | --calls | --files | --fuzz [pytest's arguments]
scripts/campaign --interrupts N [--seed N]
scripts/campaign --peers [the arguments of scripts/robustness]
"""

import argparse
import itertools
import json
import resource
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from fault_campaign.case import draw
from fault_campaign.conductor import play
from fault_campaign.outcome import Outcome, report
from fault_campaign.streams import STREAM_KINDS, cache_complaints, write_streams
from fault_campaign.workload import expected


class _Campaign:
    """Plays cases in several threads until there were enough kills."""

    def __init__(self, seed: int, num_kills: int, streams: str) -> None:
        self._seed = seed
        self._streams = streams
        self._num_kills = num_kills
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._bar = tqdm(total=num_kills, unit=" kills", mininterval=10.0)
        self._began_s = time.monotonic()
        self.outcomes: list[Outcome] = []

    def work(self) -> None:
        while sum(outcome.num_kills for outcome in self.outcomes) < self._num_kills:
            self.play(next(self._numbers))

    def play(self, number: int) -> None:
        kinds = {"kinds": STREAM_KINDS, "streams": self._streams} if self._streams else {}
        case = draw(self._seed, number, **kinds)
        with self._lock:  # the expected microbatches use this process's random generators
            due = expected(case)
        outcome = play(case, number, due)
        with self._lock:
            self.outcomes.append(outcome)
            for failure in outcome.failures:
                tqdm.write(f"case {number}: {failure['what']} ({outcome.folder})\n{failure['details']}")
            self._bar.update(outcome.num_kills)

    def report(self) -> dict[str, object]:
        self._bar.close()
        outcomes = sorted(self.outcomes, key=lambda outcome: outcome.number)
        return report(outcomes, self._seed, time.monotonic() - self._began_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/campaign", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="processes to kill (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default 0)")
    parser.add_argument("--case", type=int, help="play only this case")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time (default 2)")
    parser.add_argument("--streams", action="store_true", help="shards of Parquet and tar, through caches with a limit")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = Path(tempfile.mkdtemp(prefix="fault_campaign_streams_"))
    if options.streams:
        write_streams(folder)
    campaign = _Campaign(options.seed, options.kills, str(folder) if options.streams else "")
    if options.case is not None:
        campaign.play(options.case)
    else:
        with ThreadPoolExecutor(options.jobs) as pool:
            for done in [pool.submit(campaign.work) for _ in range(options.jobs)]:
                done.result()
    figures = campaign.report()
    print(json.dumps(figures, indent=1))
    complaints = cache_complaints(folder)
    for complaint in complaints:
        print(complaint)
    if not complaints:
        shutil.rmtree(folder)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 1 if figures["failures"] or complaints else 0


if __name__ == "__main__":
    sys.exit(main())

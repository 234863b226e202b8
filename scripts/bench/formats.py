"""Measure how fast ours and the peers read the same rows from the files of each format, in turn.

A trial reads a shuffled epoch in the trainer's process. The clock of the first batch starts before the files are
opened; samples/s are those from the 20th batch to 90 % of the epoch, as one library sleeps for 5 s near its end. Then another reader of the same epoch is stopped at 90 %, and a new one goes on from its state: that clock starts
before the files are opened, too. A contestant without a state reads what it has read once more. What is lost and what
comes twice is counted over the two readers' rows.
"""

import tempfile
import time
import warnings
from collections import Counter
from itertools import islice
from typing import Any

from format_contestants import BATCH_SIZE, CONTESTANTS, PEERS, WORKLOADS, numbers_of, opened, prepared
from measure import Result, Settings, Table, in_turn, medians

_COUNT = 20_000
_FIRST_BATCHES = 20
_STOPPED_AT = 0.9


def trial(folder: str, workload: str, count: int, contestant: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    path = prepared(folder, workload, count, CONTESTANTS[contestant])
    for _ in opened(contestant, path, workload).batches:
        break  # imports, and what is kept for all starts
    begun = time.perf_counter()
    batches = iter(opened(contestant, path, workload).batches)
    first = next(batches)
    first_s = time.perf_counter() - begun
    # Opening files and loading pages into memory count as the start.
    num_samples = len(numbers_of(first)) + sum(len(numbers_of(batch)) for batch in islice(batches, _FIRST_BATCHES - 1))
    num_timed = max(1, _num_before_stop(count) - _FIRST_BATCHES)
    begun = time.perf_counter()
    num_read = sum(1 for _ in islice(batches, num_timed))
    wall_s = time.perf_counter() - begun
    rest = num_read * BATCH_SIZE
    num_samples += rest + sum(len(numbers_of(batch)) for batch in batches)
    if num_samples < count:
        raise RuntimeError(f"{contestant} delivered {num_samples} of {count} samples")
    return {"first_s": first_s, "samples_per_s": rest / wall_s, **_resumed(contestant, path, workload, count)}


def run(settings: Settings) -> Result:
    """Read both kinds of rows, by every contestant that is installed."""
    contestants = [name for name in CONTESTANTS if settings.peers or name not in PEERS]
    contestants = settings.wanted_contestants(contestants) or contestants
    pythons = settings.pythons(name for name in contestants if name in PEERS)
    trials: list[dict[str, Any]] = []
    tables: list[Table] = []
    count = settings.count(_COUNT, at_least=2000)
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for workload in settings.wanted_workloads(WORKLOADS) or WORKLOADS:
            arguments = {"folder": folder, "workload": workload, "count": count}
            variants = {name: ("formats", arguments | {"contestant": name}) for name in contestants}
            found = in_turn(settings, variants, pythons=pythons)
            tables.append(_table(f"{count:,} rows of {workload}, shuffled, batches of {BATCH_SIZE}", found))
            trials += [trial for done in found.values() for trial in done]
    return Result(tables, trials)


def _num_before_stop(count: int) -> int:
    return max(1, int(count * _STOPPED_AT) // BATCH_SIZE)


def _resumed(contestant: str, path: str, workload: str, count: int) -> dict[str, Any]:
    """Stop an epoch at 90 %, go on with a new reader, and count what that costs."""
    num_batches = _num_before_stop(count)
    reader = opened(contestant, path, workload)
    seen: Counter[int] = Counter()
    for batch in islice(reader.batches, num_batches):
        seen.update(numbers_of(batch))
    state = reader.save() if reader.save is not None else None
    begun = time.perf_counter()
    reader = opened(contestant, path, workload)
    if reader.load is not None:
        reader.load(state)
    batches = iter(reader.batches)
    if reader.load is None:
        for _ in islice(batches, num_batches):
            pass
    following = next(batches, None)
    resumed_s = time.perf_counter() - begun
    for batch in () if following is None else (following, *batches):
        seen.update(numbers_of(batch))
    return {"resumed_s": resumed_s, "lost": count - len(seen), "repeated": seen.total() - len(seen)}


def _table(title: str, found: dict[str, list[dict[str, Any]]]) -> Table:
    headers = ["library, format", "samples/s", "first batch, ms", "resume at 90 %, ms", "lost", "repeated"]
    rows: list[list[str]] = []
    for name, done in found.items():
        median = medians(done)
        times = [f"{1000 * median(key):,.0f}" for key in ("first_s", "resumed_s")]
        wrong = [f"{median(key):,.0f}" for key in ("lost", "repeated")]
        rows.append([name, f"{median('samples_per_s'):,.0f}", *times, *wrong])
    return Table(title, headers, rows)

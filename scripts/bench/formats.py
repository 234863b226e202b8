"""Measure how fast ours and the peers read the same rows from the files of each format, in turn.

A trial reads a shuffled epoch in the trainer's process. The clock of the first batch starts before the files are opened;
samples/s are those from the 20th batch to 90 % of the epoch, as one library sleeps for 5 s near its end. Then another reader of the same epoch is stopped at 90 %, and a new one goes on from its state: that clock starts
before the files are opened, too. A contestant without a state reads what it has read once more. What is lost and what
comes twice is counted over the two readers' rows.
"""

import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from format_contestants import BATCH_SIZE, CONTESTANTS, PEERS, WORKLOADS, numbers_of, opened, prepared
from measure import Settings, Table, cells, of_contestants, take

_COUNT = 20_000
_FIRST_BATCHES = 20
_STOPPED_AT = 0.9


def trial(folder: str, workload: str, count: int, contestant: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    path = prepared(folder, workload, count, CONTESTANTS[contestant])
    arguments = (contestant, path, workload)
    for _ in opened(*arguments).batches:
        break  # imports, and what is kept for all starts
    begun = time.perf_counter()
    batches = iter(opened(*arguments).batches)
    first = next(batches)
    first_ms = 1e3 * (time.perf_counter() - begun)
    # Opening files and loading pages into memory count as the start.
    num_samples = len(numbers_of(first)) + _num_samples(islice(batches, _FIRST_BATCHES - 1))
    begun = time.perf_counter()
    rest = BATCH_SIZE * take(batches, max(1, _num_before_stop(count) - _FIRST_BATCHES))
    wall_s = time.perf_counter() - begun
    num_samples += rest + _num_samples(batches)
    if num_samples < count:
        raise RuntimeError(f"{contestant} delivered {num_samples} of {count} samples")
    return {"first_ms": first_ms, "samples_per_s": rest / wall_s, **_resumed(arguments, count)}


def _num_samples(batches: Iterable[Any]) -> int:
    return sum(len(numbers_of(batch)) for batch in batches)


def _num_before_stop(count: int) -> int:
    return max(1, int(count * _STOPPED_AT) // BATCH_SIZE)


def _resumed(arguments: tuple[str, str, str], count: int) -> dict[str, Any]:
    """Stop an epoch at 90 %, go on with a new reader, and count what that costs."""
    num_batches = _num_before_stop(count)
    reader = opened(*arguments)
    seen: Counter[int] = Counter()
    for batch in islice(reader.batches, num_batches):
        seen.update(numbers_of(batch))
    state = reader.save() if reader.save is not None else None
    begun = time.perf_counter()
    reader = opened(*arguments)
    if reader.load is not None:
        reader.load(state)
    batches = iter(reader.batches)
    if reader.load is None:
        take(batches, num_batches)
    following = next(batches, None)
    resumed_ms = 1e3 * (time.perf_counter() - begun)
    for batch in () if following is None else (following, *batches):
        seen.update(numbers_of(batch))
    return {"resumed_ms": resumed_ms, "lost": count - len(seen), "repeated": seen.total() - len(seen)}


def run(settings: Settings) -> list[Table]:
    """Read both kinds of rows, by every contestant that is installed."""
    contestants = settings.wanted_contestants(CONTESTANTS, PEERS)
    tables: list[Table] = []
    count = settings.count(_COUNT, at_least=2000)
    with tempfile.TemporaryDirectory(prefix="fkat_data_bench_") as folder:
        for workload in settings.wanted_workloads(WORKLOADS) or WORKLOADS:
            arguments = {"folder": folder, "workload": workload, "count": count}
            found = of_contestants(settings, "formats", contestants, peers=PEERS, **arguments)
            numbers = {"samples_per_s": ",.0f", "first_ms": ",.0f", "resumed_ms": ",.0f", "lost": ",.0f"}
            rows = [[name, *cells(done, **numbers, repeated=",.0f")] for name, done in found.items()]
            headers = ["library, format", "samples/s", "first batch, ms", "resume at 90 %, ms", "lost", "repeated"]
            tables.append(Table(f"{count:,} rows of {workload}, shuffled, batches of {BATCH_SIZE}", headers, rows))
    return tables

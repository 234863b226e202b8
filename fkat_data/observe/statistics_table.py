"""Statistics as people read them: rows of a name and a text."""

from textwrap import wrap
from typing import TYPE_CHECKING

from fkat_data.description import LINE_CHARACTERS
from fkat_data.quantities import counted, readable_bytes, readable_duration, readable_share

if TYPE_CHECKING:
    from fkat_data.observe.statistics import LoaderStatistics

__all__ = ["rows_of_statistics", "text_table"]

_WORK = {
    "store_s": "waiting for stored bytes",
    "build_s": "opening shards",
    "produce_s": "making microbatches",
    "replay_s": "making them again after a resume",
    "encode_s": "writing shared memory",
    "blocked_s": "held back by limits",
    "idle_s": "idle",
}


def rows_of_statistics(statistics: "LoaderStatistics") -> list[tuple[str, str]]:
    """Return the rows; those about workers, copies and faults are left out where there were none."""
    elapsed_s = statistics.elapsed_s
    delivered = counted(statistics.delivered, "microbatch")
    if statistics.delivered_bytes:
        delivered += f", {readable_bytes(statistics.delivered_bytes)}"
    if elapsed_s:
        delivered += f", {statistics.delivered / elapsed_s:.4g} a second"
    rows = [("delivered", delivered)]
    if elapsed_s:
        waited = f"{readable_share(statistics.waited_share)} of {readable_duration(elapsed_s)}"
        rows.append(("waited", f"{waited}; {statistics.waiting}" if statistics.waiting.num else waited))
    made = f"{counted(statistics.produced, 'microbatch')}, {statistics.queue_depth:,} of them ready"
    rows.append(("made", f"{made}; {statistics.making}" if statistics.making.num else made))
    if statistics.num_workers:
        rows.append(("workers", f"{statistics.num_workers} on {counted(statistics.num_cpus, 'CPU')}"))
    spent = {doing: getattr(statistics, name) for name, doing in _WORK.items()}
    total_s = sum(spent.values())
    if total_s > 0:
        largest = sorted(spent.items(), key=lambda item: -item[1])
        shares = [f"{readable_share(value_s / total_s)} {doing}" for doing, value_s in largest if value_s > 0]
        rows.append(("time spent", ", ".join(shares)))
    if statistics.num_segments:
        total, held = readable_bytes(statistics.segment_bytes), readable_bytes(statistics.held_bytes)
        rows.append(("shared memory", f"{total} in {counted(statistics.num_segments, 'piece')}, {held} in use"))
    if statistics.copied_s:
        rows.append(("copies", f"{readable_duration(statistics.copied_s)} to the device"))
    if statistics.worker_restarts or statistics.skipped_shards:
        replaced, skipped = counted(statistics.worker_restarts, "worker"), counted(statistics.skipped_shards, "shard")
        faults = f"{replaced} replaced, {skipped} skipped"
        rows.append(("faults", faults))
    return [*rows, ("verdict", str(statistics.verdict))]


def text_table(rows: list[tuple[str, str]]) -> str:
    """Return rows as lines of at most ``LINE_CHARACTERS``, with the texts below one another."""
    width = max(len(name) for name, _ in rows) + 2
    lines: list[str] = []
    for name, text in rows:
        first, *more = wrap(text, LINE_CHARACTERS - width) or [""]
        lines += [f"{name:<{width}}{first}", *(" " * width + line for line in more)]
    return "\n".join(lines)

"""The numbers of a loader so far."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from operator import sub
from textwrap import wrap
from typing import Any, Self

from fkat_data.errors.wording import (
    LINE_CHARACTERS,
    counted,
    html_table,
    one_line,
    readable_bytes,
    readable_duration,
    readable_share,
)
from fkat_data.observe.counters import LoaderCounters, Seen
from fkat_data.observe.durations import Durations, added_durations
from fkat_data.observe.verdict import OF_DATASETS, Verdict, judge

DURATIONS = ("waiting", "making")
"""What there are quantiles of."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
"""The quantiles of waiting and making that are among the flat numbers: the share that each stands for, by its name."""

STATES = frozenset(
    {
        "queue_depth",
        "num_segments",
        "segment_bytes",
        "held_bytes",
        "num_workers",
        "num_workers_per_shard",
        "num_shard_prefetches",
        "num_cpus",
    }
)
"""Present states and the loader's arguments: no sums over time."""

# One for all loaders of a caller.
_SHARED = frozenset({"elapsed_s", "num_workers_per_shard", "num_shard_prefetches", "num_cpus"})

_BY_NAME = ("made_on", "seen", "opened_alone")


@dataclass(frozen=True, slots=True, repr=False)
class LoaderStatistics(LoaderCounters):
    """A snapshot of a loader's numbers since it was made; prints as a small table.

    Times of workers are sums over all of them: two workers that are busy for a second have spent two. Each second of
    a worker counts in one stage alone.

    Attributes:
        delivered: Microbatches that the caller received.
        delivered_bytes: Bytes of their tensors and arrays that came through shared memory or the pipe; 0 in process.
        elapsed_s: Seconds of iteration, up to the last delivery: between two iterations none are counted.
        waited_s: Seconds that the caller waited because its microbatch had not arrived, or too many copies to the
            device were under way; in process, because it had to be made.
        waited_first_s: Those of them before the first microbatch of an iteration: workers start, shards are opened.
        waited_behind_s: Seconds of ``waited_s`` in which later microbatches of the shard had arrived: a slow one held
            them up.
        produced: Microbatches that the workers have made, those dropped by a resume or an epoch left early included.
        produced_by_caller: Those of them that the caller's thread has made, as no worker process had begun.
        queue_depth: Microbatches that are made and not yet delivered, now.
        store_s: Workers' seconds in ``fkat_data.observe.reading``: waiting for stored bytes.
        build_s: Workers' seconds in the factory, and in the first look at what it returns.
        produce_s: Workers' seconds in the making of microbatches: the DataLoader, ``__getitem__``, collating.
        replay_s: Workers' seconds in making again what was delivered before a resume.
        encode_s: Workers' seconds in writing microbatches into shared memory, and sending their messages.
        blocked_s: Workers' seconds waiting for memory, or until they may make more microbatches.
        idle_s: Workers' seconds waiting for a shard to produce.
        copied_s: Seconds in which copies to the device were under way.
        num_segments: Pieces of shared memory, now.
        segment_bytes: Their bytes.
        held_bytes: Bytes of those whose microbatches are alive now.
        worker_restarts: Dead workers that were replaced.
        skipped_shards: Shards that failed, and whose rest was skipped.
        skipped_samples: Samples that raised, and were left out.
        num_workers: Worker processes; 0 in process.
        num_workers_per_shard: The loader's argument.
        num_shard_prefetches: The loader's argument.
        num_cpus: CPUs that this process may run on.
        waiting: How long the caller waited for each microbatch: ``waiting.p99_s`` and others, within 2.2 %.
        making: How long a worker made each microbatch, waiting for stored bytes included: ``making.p99_s`` and others.
        made_on: The same by machine, of workers on a Ray cluster.
        seen: What a mixture has had of each source, by its name.
        opened_alone: Why each worker has opened the dataset for itself; empty where they share what was opened once.
    """

    def __repr__(self) -> str:
        facts = [
            ("delivered", f"{self.delivered}"),
            ("elapsed", readable_duration(self.elapsed_s)),
            ("waited", readable_share(self.waited_share)),
            ("num_workers", f"{self.num_workers}"),
        ]
        return one_line(type(self).__name__, facts)

    def __str__(self) -> str:
        return text_table(rows_of_statistics(self))

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, rows_of_statistics(self))

    @property
    def produce_s_per_microbatch(self) -> float:
        """Seconds that a worker needs for a microbatch, on average, without opening its shard and writing it."""
        return self.produce_s / self.produced if self.produced else 0.0

    @property
    def verdict(self) -> Verdict:
        """What limits the loop, and what to change; prints as a sentence."""
        return judge(self)

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name, averages and quantiles included, for a logger of metrics.

        The quantiles are ``waiting_p50_s``, ``waiting_p95_s``, ``waiting_p99_s``, ``making_p50_s`` and so on.
        """
        return {
            **{name: getattr(self, name) for name in _NAMES},
            "waited_share": self.waited_share,
            "produce_s_per_microbatch": self.produce_s_per_microbatch,
            **{
                f"{name}_{quantile}_s": value_s
                for name in DURATIONS
                for quantile, value_s in zip(
                    QUANTILES, getattr(self, name).quantiles_s(*QUANTILES.values()), strict=True
                )
            },
        }

    def since(self, earlier: Self) -> Self:
        """Return what was done since an earlier snapshot; values that are no sums over time keep their present value."""
        sums = {
            name: getattr(self, name) - getattr(earlier, name) for name in (*_NAMES, *DURATIONS) if name not in STATES
        }
        none = Durations()
        made_on = {machine: making - earlier.made_on.get(machine, none) for machine, making in self.made_on.items()}
        seen = {name: Seen(*map(sub, own, earlier.seen.get(name, Seen()))) for name, own in self.seen.items()}
        return dataclasses.replace(self, **sums, made_on=made_on, seen=seen)

    @classmethod
    def together(cls, several: Iterable[Self]) -> Self:
        """Return the numbers of several loaders of one caller added up; of what they share, the largest."""
        found = [cls(), *several]
        numbers: dict[str, Any] = {
            name: (max if name in _SHARED else sum)(getattr(one, name) for one in found) for name in _NAMES
        }
        for name in DURATIONS:
            numbers[name] = sum((getattr(one, name) for one in found), Durations())
        alone = next((one.opened_alone for one in found if one.opened_alone), "")
        return cls(**numbers, made_on=added_durations(*(one.made_on for one in found)), opened_alone=alone)


@dataclass(frozen=True, slots=True, repr=False)
class DataLoaderStatistics(LoaderStatistics):
    """The numbers of a loader with torch's arguments, which its verdict names."""

    @property
    def verdict(self) -> Verdict:
        """What limits the loop, and what to change; prints as a sentence."""
        return judge(self, OF_DATASETS)


_NAMES = tuple(each.name for each in dataclasses.fields(LoaderStatistics) if each.name not in (*DURATIONS, *_BY_NAME))


_WORK = {
    "store_s": "waiting for stored bytes",
    "build_s": "opening shards",
    "produce_s": "making microbatches",
    "replay_s": "making them again after a resume",
    "encode_s": "writing shared memory",
    "blocked_s": "held back by limits",
    "idle_s": "idle",
}


def rows_of_statistics(statistics: LoaderStatistics) -> list[tuple[str, str]]:
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
    rows.append(("made", _made(statistics)))
    if statistics.num_workers:
        where = counted(len(statistics.made_on) or statistics.num_cpus, "machine" if statistics.made_on else "CPU")
        alone = f"; each has opened the dataset: {statistics.opened_alone}" if statistics.opened_alone else ""
        rows.append(("workers", f"{statistics.num_workers} on {where}{alone}"))
    rows += [(f"on {machine}", f"{making.num:,}; {making}") for machine, making in sorted(statistics.made_on.items())]
    rows += [
        (f"from {name}", f"{counted(seen.delivered, 'microbatch')}, begun {counted(seen.passes, 'time')}")
        for name, seen in statistics.seen.items()
    ]
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
    if statistics.worker_restarts or statistics.skipped_shards or statistics.skipped_samples:
        replaced, skipped = counted(statistics.worker_restarts, "worker"), counted(statistics.skipped_shards, "shard")
        faults = f"{replaced} replaced, {skipped} skipped"
        if statistics.skipped_samples:
            faults += f", {counted(statistics.skipped_samples, 'sample')} left out"
        rows.append(("faults", faults))
    return [*rows, ("verdict", str(statistics.verdict))]


def _made(statistics: LoaderStatistics) -> str:
    made = f"{counted(statistics.produced, 'microbatch')}, {statistics.queue_depth:,} of them ready"
    if statistics.produced_by_caller:
        made += f", {statistics.produced_by_caller:,} made by the caller while workers started"
    return f"{made}; {statistics.making}" if statistics.making.num else made


def text_table(rows: list[tuple[str, str]]) -> str:
    """Return rows as lines of at most ``LINE_CHARACTERS``, with the texts below one another."""
    width = max(len(name) for name, _ in rows) + 2
    lines: list[str] = []
    for name, text in rows:
        first, *more = wrap(text, LINE_CHARACTERS - width) or [""]
        lines += [f"{name:<{width}}{first}", *(" " * width + line for line in more)]
    return "\n".join(lines)

"""The verdict: what limits a training loop, and what to change. A function of numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from fkat_data.errors.wording import readable_duration, readable_share
from fkat_data.observe.counters import LoaderCounters
from fkat_data.observe.durations import Durations

LIMITS = ("none", "start", "store", "build", "produce", "transport", "copy", "caller")
"""What may limit a loop: unknown yet; the first microbatch; stored bytes; the factory; the production of microbatches;
shared memory; copies to the device; the caller."""

# Below this share of time waited, making the loader faster would not be noticed.
_NOTICED_SHARE = 0.02
# Above this share of the time, copies limit the loop.
_COPYING_SHARE = 0.8
# A machine that takes this many times as long as another is named.
_SLOW_TIMES = 2.0
# Below this share of the time, busy workers need no others beside them.
_BUSY_SHARE = 0.6
# Waiting for bytes takes no CPU: more workers than CPUs can do it.
_STORE_WORKERS_PER_CPU = 4
# Above this share of the waiting, what held it up was one microbatch, with others ready behind it.
_BEHIND_SHARE = 0.5
# Above this share of the waiting, the first microbatches are its cause.
_FIRST_SHARE = 0.5

_DOING = {
    "store": "waiting for stored bytes",
    "build": "opening shards, in the factory",
    "produce": "making microbatches, in the DataLoader and `__getitem__`",
    "transport": "writing microbatches into shared memory",
}
_CHEAPER = {
    "store": "keep the files nearer, or read them in larger pieces",
    "build": "do less in the factory, or make larger shards",
    "produce": "do less for each sample, or prepare it beforehand",
    "transport": "send tensors of smaller dtypes, and few of them instead of many Python objects",
}


class Terms(NamedTuple):
    """A loader's names of the arguments that a verdict advises to change.

    Attributes:
        make_ahead: How to have workers.
        ahead: The argument for microbatches made ahead.
        ahead_default: Its default, and what that means.
        workers: The argument for workers; None: a loader of shards, which has two.
    """

    make_ahead: str
    ahead: str
    ahead_default: str
    workers: str | None = None


OF_SHARDS = Terms(
    "set multiprocessing=True, so that a worker makes microbatches ahead", "num_microbatch_prefetches", "-1"
)
"""Of a ``ShardedDataLoader``."""
OF_DATASETS = Terms(
    "set num_workers=1 or more, so that workers make microbatches ahead", "prefetch_factor", "None", "num_workers"
)
"""Of the loaders that have torch's arguments."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The limit of a loop's speed. ``str`` of it is a sentence, and so is what a notebook shows.

    Attributes:
        limit: One of ``LIMITS``.
        waited_share: The share of the time that the caller waited, from 0 to 1.
        limit_share: The share of their time that the workers spent on it; for ``copy``, of the caller's time; for
            ``start``, of the time waited, what was for the first microbatch of an iteration; for ``caller`` and ``none``, 0.
        advice: What to change; empty where there is nothing.
        text: The sentence.
    """

    limit: str
    waited_share: float
    limit_share: float
    advice: str
    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Verdict(limit={self.limit!r}, text={self.text!r})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.text)}</p>"


def judge(statistics: LoaderCounters, terms: Terms = OF_SHARDS) -> Verdict:
    """Return what limits the loop that has these numbers, in the terms of its loader."""
    if not statistics.delivered or statistics.elapsed_s <= 0:
        return Verdict("none", 0.0, 0.0, "", "no microbatch was delivered yet")
    share = statistics.waited_share
    waited = f"the trainer waited {readable_share(share)} of the time"
    copying = statistics.copied_s / statistics.elapsed_s
    if copying >= _COPYING_SHARE:
        advice = "send smaller dtypes and convert them on the device"
        text = f"{waited}; copies to the device were under way for {readable_share(copying)} of it: {advice}"
        return Verdict("copy", share, copying, advice, text)
    if share < _NOTICED_SHARE:
        return Verdict("caller", share, 0.0, "", f"{waited}: the loader keeps up, and training itself limits the speed")
    return _of_start(statistics, waited) or _of_workers(statistics, waited, terms)


def _of_start(statistics: LoaderCounters, waited: str) -> Verdict | None:
    """Return the verdict on a loop that waits for first microbatches above all; None: it does not."""
    first_s = statistics.waited_first_s
    rest_s = max(0.0, statistics.waited_s - first_s)
    after_s = statistics.elapsed_s - first_s
    steady = min(1.0, rest_s / after_s) if after_s > 0 else 0.0
    of_waited = first_s / statistics.waited_s
    if 2 * statistics.produced_by_caller >= statistics.delivered:
        made = f"its own thread made {statistics.produced_by_caller:,} of {statistics.delivered:,} microbatches"
        advice = "one loader should serve all epochs, and a longer run shows what limits it"
        text = f"{waited}: {made}, as no worker had started; {advice}"
        return Verdict("start", statistics.waited_share, of_waited, advice, text)
    if _waits_alike(statistics):
        return None
    if steady < _NOTICED_SHARE:
        advice = "a longer run needs no change, and one loader should serve all epochs"
    elif of_waited >= _FIRST_SHARE and statistics.num_workers:
        advice = "one loader should serve all epochs, and a longer run shows what limits the rest"
    else:
        return None
    first = f"{readable_duration(first_s)} of {readable_duration(statistics.waited_s)} for the first microbatch"
    text = f"{waited}: {first}, then {readable_share(steady)} of the rest; {advice}"
    return Verdict("start", statistics.waited_share, of_waited, advice, text)


def _waits_alike(statistics: LoaderCounters) -> bool:
    """Return whether most microbatches are waited for as the first ones are, as where an epoch has one or two."""
    usual_s = statistics.waiting.p50_s * statistics.delivered
    return statistics.delivered > 1 and usual_s >= _FIRST_SHARE * statistics.waited_s


def _of_workers(statistics: LoaderCounters, waited: str, terms: Terms) -> Verdict:
    seconds = {
        "store": statistics.store_s,
        "build": statistics.build_s,
        "produce": statistics.produce_s + statistics.replay_s,
        "transport": statistics.encode_s,
    }
    busy_s = sum(seconds.values())
    total_s = busy_s + statistics.blocked_s + statistics.idle_s
    limit = max(seconds, key=lambda name: seconds[name])
    if total_s <= 0:
        text = f"{waited}; the workers' activity is unknown"
        return Verdict("none", statistics.waited_share, 0.0, "", text)
    share = seconds[limit] / total_s
    who = "the worker" if statistics.num_workers < 2 else f"the {statistics.num_workers} workers"
    doing = f"{who} spent {readable_share(share)} of the time {_DOING[limit]}"
    if statistics.num_workers == 0:
        doing = f"{readable_share(share)} of that went into {_DOING[limit]}"
        advice = terms.make_ahead
    elif statistics.waited_behind_s / statistics.waited_s >= _BEHIND_SHARE:
        behind = readable_share(statistics.waited_behind_s / statistics.waited_s)
        spread = f" ({statistics.making})" if statistics.making.num else ""
        doing = f"for {behind} of that, one slow microbatch held up others that were ready{spread}; {doing}"
        advice = f"make the slow ones cheaper, or look further ahead: raise {terms.ahead} or memory_limit_bytes"
    elif busy_s / total_s < _BUSY_SHARE:
        advice = _let_them_run(statistics, terms)
        standing = readable_share((statistics.blocked_s + statistics.idle_s) / total_s)
        doing = f"{who} stood still for {standing} of it"
    else:
        advice = _more_of_them(statistics, terms, busy_s, limit)
    if slow := _slow_machine(statistics.made_on):
        doing = f"{doing}; {slow}"
    return Verdict(limit, statistics.waited_share, share, advice, f"{waited}; {doing}: {advice}")


def _slow_machine(made_on: Mapping[str, Durations]) -> str:
    """Return which machine takes much longer for a microbatch than the fastest one, in words; nothing if none does."""
    medians_s = sorted((making.p50_s, machine) for machine, making in made_on.items() if making.num)
    if len(medians_s) < 2 or medians_s[-1][0] < _SLOW_TIMES * medians_s[0][0]:
        return ""
    (least_s, fast), *_, (most_s, slow) = medians_s
    return f"{slow} needs {readable_duration(most_s)} for a microbatch, and {fast} {readable_duration(least_s)}"


def _let_them_run(statistics: LoaderCounters, terms: Terms) -> str:
    """Return how to use workers that could do more."""
    if statistics.blocked_s > statistics.idle_s:
        return f"let them prefetch more: raise {terms.ahead} ({terms.ahead_default}: as many as help) or memory_limit_bytes"
    if terms.workers is not None:
        return "let epochs follow one another sooner"
    if statistics.num_shard_prefetches == 0:
        return "raise num_shard_prefetches from 0 to 1, so that the next shard begins before the caller needs it"
    return "there are too few shards in an epoch for them: make smaller ones, or let epochs follow one another sooner"


def _more_of_them(statistics: LoaderCounters, terms: Terms, busy_s: float, limit: str) -> str:
    """Return how many workers would keep up, if there are CPUs for them."""
    now = statistics.num_workers
    # How many a cluster has room for, its scheduler knows.
    most = math.inf if statistics.made_on else statistics.num_cpus * (_STORE_WORKERS_PER_CPU if limit == "store" else 1)
    if now >= most:
        return f"more than {now} would not help on {statistics.num_cpus} CPUs: {_CHEAPER[limit]}"
    caller_s = max(statistics.elapsed_s - statistics.waited_s, 1e-6) / statistics.delivered
    needed = math.ceil(busy_s / max(1, statistics.produced) / caller_s)
    wanted = int(min(max(needed, now + 1), most))
    advice = f"raise num_shard_prefetches from {statistics.num_shard_prefetches} to {wanted}"
    if terms.workers is not None:
        advice = f"raise {terms.workers} from {now} to {wanted}"
    elif statistics.num_workers_per_shard > 1:
        groups = max(1, statistics.num_shard_prefetches)
        wanted = math.ceil(wanted / groups)
        advice = f"raise num_workers_per_shard from {statistics.num_workers_per_shard} to {wanted}"
    return f"{advice}, and {_CHEAPER[limit]}" if needed > most else advice

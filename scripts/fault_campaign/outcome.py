"""The outcome of one case, and the report on all."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fault_campaign.ledger import Audit

_DETECTED_WITHIN_S = 1.0


class Hit(NamedTuple):
    """One signal that reached one process.

    Attributes:
        pid: The process.
        victim: The strike's victim.
        role: "trainer", "worker" or "grandchild"; in a strike at all, every process below the trainer is a "worker".
        signal: The signal's name.
        at_s: When, by the monotonic clock.
    """

    pid: int
    victim: str
    role: str
    signal: str
    at_s: float

    @property
    def is_deadly(self) -> bool:
        """Whether it ends its process."""
        deaf = {"worker": ("TERM", "INT", "STOP", "CONT"), "grandchild": ("INT", "STOP", "CONT")}
        return self.signal not in deaf.get(self.role, ("STOP", "CONT"))


@dataclass
class Outcome:
    """The outcome of one case.

    Attributes:
        number: The case's number.
        lives: Trainers that were started.
        hits: Every signal that reached a process.
        detected_s: Seconds from a worker's kill, or from the begin of the trainer's wait for it, until the trainer knew.
        restarted_s: Seconds from then until the trainer received the next microbatch.
        gone_s: Seconds from each trainer's end until all its processes were gone.
        num_events: How often the trainer reported each kind of event.
        leftovers: Processes and files that were left behind.
        torchs_leftovers: Files that killed workers of nested DataLoaders left, and Python's probes of a folder.
        audits: What was wrong with the ledgers.
        failures: What was wrong at all.
        folder: The case's files, kept after a failure.
    """

    number: int
    lives: int = 0
    hits: list[Hit] = field(default_factory=list)
    detected_s: list[float] = field(default_factory=list)
    restarted_s: list[float] = field(default_factory=list)
    gone_s: list[float] = field(default_factory=list)
    num_events: Counter[str] = field(default_factory=Counter)
    leftovers: int = 0
    torchs_leftovers: int = 0
    audits: list[Audit] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    folder: str = ""

    @property
    def num_kills(self) -> int:
        """Strikes that killed their victim; one at all counts once."""
        kills = [hit for hit in self.hits if hit.is_deadly and hit.victim != "all"]
        return len(kills) + len(
            {hit.pid for hit in self.hits if hit.victim == "all" and hit.role == "trainer" and hit.is_deadly}
        )

    def add_events(self, events: Sequence[dict[str, Any]], *, has_nested: bool) -> None:
        """Add the times of the trainer's events."""
        self.num_events.update(event["what"] for event in events)
        stops = [hit.at_s for hit in self.hits if hit.role == "trainer" and hit.signal in ("STOP", "CONT")]
        killed_s = {hit.pid: hit.at_s for hit in self.hits if hit.signal not in ("STOP", "CONT")}
        replaced_s: float | None = None
        for event in events:
            if event["what"] in ("died", "replaced") and event["pid"] in killed_s:
                began_s = max(killed_s[event["pid"]], event["began_s"])
                # With several workers, the trainer may have waited for another one first; a stopped trainer knows nothing.
                if event["num_workers"] == 1 and not any(began_s <= stop <= event["at_s"] for stop in stops):
                    self.detected_s.append(event["at_s"] - began_s)
            if event["what"] == "recovered" and replaced_s is not None and not has_nested:
                self.restarted_s.append(event["at_s"] - replaced_s)
            replaced_s = event["at_s"] if event["what"] == "replaced" else None


def report(outcomes: Sequence[Outcome], seed: int, took_s: float) -> dict[str, Any]:
    """Return the figures of all cases."""
    hits = [hit for outcome in outcomes for hit in outcome.hits]
    audits = [found for outcome in outcomes for found in outcome.audits]
    detected_s = [second for outcome in outcomes for second in outcome.detected_s]
    failures = [
        {"case": outcome.number, "folder": outcome.folder, **failure}
        for outcome in outcomes
        for failure in outcome.failures
    ]
    return {
        "seed": seed,
        "took_s": round(took_s, 1),
        "cases": len(outcomes),
        "trainers": sum(outcome.lives for outcome in outcomes),
        "kills": sum(outcome.num_kills for outcome in outcomes),
        "signals": dict(sorted(Counter(f"{hit.victim}/{hit.signal}" for hit in hits).items())),
        "events": dict(sorted(sum((outcome.num_events for outcome in outcomes), Counter[str]()).items())),
        "hangs": sum(failure["what"] == "hang" for failure in failures),
        **{name: sum(getattr(found, name) for found in audits) for name in Audit._fields},
        "leftovers": sum(outcome.leftovers for outcome in outcomes),
        "torchs_leftovers": sum(outcome.torchs_leftovers for outcome in outcomes),
        "detected_s": _spread(detected_s),
        "detected_late": sum(second > _DETECTED_WITHIN_S for second in detected_s),
        "restarted_s": _spread(second for outcome in outcomes for second in outcome.restarted_s),
        "gone_s": _spread(second for outcome in outcomes for second in outcome.gone_s),
        "failures": failures,
    }


def _spread(values: Iterable[float]) -> dict[str, float | int]:
    ordered = sorted(values)
    if not ordered:
        return {"count": 0}
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {"count": len(ordered)} | {name: round(ordered[round(place * last)], 4) for name, place in places.items()}

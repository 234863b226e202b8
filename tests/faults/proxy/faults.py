"""What can go wrong with an answer, and when it does."""

import random
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ENDING_KINDS", "KINDS", "Fault", "RandomPlan", "fault"]

#: What each kind does, with its settings.
KINDS = {
    "latency": "the answer comes seconds=0.1 later",
    "bandwidth": "the body comes at bytes_per_s=100_000",
    "status": "status=503 instead of the object, with retry_after=None",
    "reset_first": "RST instead of an answer",
    "reset": "RST after=0.5 of the body",
    "end": "FIN after=0.5 of the body, whose length was promised",
    "end_unsized": "FIN after=0.5 of the body, whose length was not told: it looks complete",
    "chunked_cut": "chunks, and FIN after=0.5 of the body",
    "stall_first": "nothing for seconds=60",
    "stall": "nothing for seconds=60 after=0.5 of the body",
    "trickle": "one byte each seconds=0.1 after=0.5 of the body",
    "flip": "one byte of the body, after=0.5, is another",
    "xml": "200 with a document that says there is an error",
    "wrong_range": "206 with a Content-Range of other bytes, and those",
    "no_range": "200 with the whole object, whatever range was asked for",
    "other": "the bytes of another object, name=",
    "gzip": "a Content-Encoding that is not true",
    "longer": "the object, and something after it",
    "call": "function= is called, then the answer is right",
}


@dataclass(frozen=True)
class Fault:
    """One answer's fault."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)

    def get(self, name, default):
        return self.settings.get(name, default)


def fault(kind, **settings):
    """Return a fault of a kind in ``KINDS``."""
    assert kind in KINDS, kind
    return Fault(kind, settings)


#: Those that a transfer with a size and a hash must come through, each in little time.
ENDING_KINDS = {
    "latency": {"seconds": 0.02},
    "bandwidth": {"bytes_per_s": 2_000_000},
    "status": {},
    "reset_first": {},
    "reset": {},
    "end": {},
    "end_unsized": {},
    "chunked_cut": {},
    "flip": {},
    "xml": {},
    "wrong_range": {},
    "no_range": {},
    "gzip": {},
    "longer": {},
}


class RandomPlan:
    """Faults by chance, the same for the same seed, object and attempt; none after the first ``longest`` attempts.

    Args:
        seed: Decides all of it.
        probability: Of a fault, for each attempt.
        kinds: Settings of each kind that may be drawn.
        longest: Attempts of an object that may have a fault.
    """

    def __init__(self, seed, probability, kinds=None, longest=1000):
        self.seed = seed
        self.probability = probability
        self.kinds = ENDING_KINDS if kinds is None else kinds
        self.longest = longest

    def get(self, name, attempt):
        """Return the fault of an attempt, counted from 0, or None."""
        draw = random.Random(f"{self.seed}/{name}/{attempt}")
        if attempt >= self.longest or draw.random() >= self.probability:
            return None
        kind = draw.choice(sorted(self.kinds))
        return Fault(kind, {"after": draw.random(), **self.kinds[kind]})

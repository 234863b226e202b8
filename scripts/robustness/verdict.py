"""Judge a cell: from what its trainers recorded, say what the contestant did, and in how many seconds."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

_SHOUTED = ("lost", "repeated", "wrong data", "crashes", "hangs")
#: What a cell can say, best first.
KINDS = ("exact", "clear error", "unclear error", "ignores it", "leaves", *_SHOUTED, "not supported")


class Life(NamedTuple):
    """One trainer's process.

    Attributes:
        events: What it wrote down: ``what`` and ``at_s``, and facts.
        code: Its exit code; None: it did nothing for too long and was ended.
        ended_s: When it ended.
        gone_s: When its processes were gone, or were no longer waited for.
        struck_s: When a sample was reached that is at fault.
        num_processes_left: Its processes that outlived it.
        files_left: The files that it left.
        stderr: The end of what it printed.
    """

    events: Sequence[Mapping[str, Any]]
    code: int | None
    ended_s: float = 0.0
    gone_s: float = 0.0
    struck_s: float | None = None
    num_processes_left: int = 0
    files_left: Sequence[str] = ()
    stderr: str = ""


class Verdict(NamedTuple):
    """What a contestant did.

    Attributes:
        kind: One of ``KINDS``.
        seconds: How long it took to react, if it did.
        remark: The rest, in a few words.
        num_lost: Samples that were due and did not come, where the loop ended as if they had.
        num_repeated: Samples that came more often than they were due.
    """

    kind: str
    seconds: float | None = None
    remark: str = ""
    num_lost: int = 0
    num_repeated: int = 0


_Events = Sequence[Mapping[str, Any]]


def judge(fault: str, says: str, due: Sequence[int], lives: Sequence[Life]) -> Verdict:
    """Return what a contestant did.

    Args:
        fault: The fault's name.
        says: A pattern that an error matches if it names the cause.
        due: The samples of one epoch.
        lives: The trainers, in turn.
    """
    reasons = [event["why"] for life in lives for event in _of(life.events, "unsupported")]
    if reasons:
        return Verdict("not supported", remark=reasons[0])
    special = _SPECIAL.get(fault)
    return special(says, due, lives) if special else _of_loop(lives[0], lives[0].events, due, says)


def _of_loop(life: Life, events: _Events, due: Iterable[int], says: str = "") -> Verdict:
    """Judge a loop that should deliver each sample that is due once."""
    came = Counter(number for event in _of(events, "batch") for number in event["numbers"])
    wanted = Counter(due)
    num_missing, num_repeated = (wanted - came).total(), (came - wanted).total()
    stopped = _stopped(life, events, says)
    if not all(event["is_right"] for event in _of(events, "batch")):
        return Verdict("wrong data")
    if num_repeated:
        return Verdict("repeated", None, "", 0 if stopped else num_missing, num_repeated)
    if stopped:
        return stopped
    if num_missing:
        says_so = says and re.search(says, life.stderr)
        how = "after an error" if _of(events, "error") else "says so in its log" if says_so else "in silence"
        return Verdict("lost", None, how, num_missing)
    return Verdict("exact", _longest_wait_s(events, _last_strike_s(life)))


def _stopped(life: Life, events: _Events, says: str) -> Verdict | None:
    """Return how a loop stopped, or None if it came to its end."""
    raised, is_finished = _of(events, "raised"), bool(_of(events, "finished"))
    if life.code is None:
        return Verdict("hangs", remark=_where_it_hangs(life, events, says))
    if raised:
        return _error(raised[0], says, _last_strike_s(life))
    if is_finished and life.code == 0:
        return None
    return Verdict("crashes", remark=f"{'at exit, ' * is_finished}exit code {life.code}")


def _where_it_hangs(life: Life, events: _Events, says: str) -> str:
    for what, place in (("raised", "at exit, after "), ("error", "after ")):
        for event in _of(events, what)[:1]:
            kind = _error(event, says, None).kind
            return f"{place}a{'n' * kind.startswith('u')} {kind}"
    if _of(events, "finished"):
        return "at exit, after the last batch"
    return "says so in its log" if says and re.search(says, life.stderr) else ""


def _error(event: Mapping[str, Any], says: str, struck_s: float | None) -> Verdict:
    seconds = None if struck_s is None else event["at_s"] - struck_s
    if says and re.search(says, event["text"]):
        return Verdict("clear error", seconds)
    return Verdict("unclear error", seconds, re.split(r"[:\n]", event["text"], maxsplit=1)[0].rsplit(".", 1)[-1])


def _of_descriptors(says: str, due: Sequence[int], lives: Sequence[Life]) -> Verdict:
    (life,) = lives
    verdict = _of_loop(life, life.events, due, says)
    errors = _of(life.events, "error")
    if errors and verdict.kind == "exact":
        error = _error(errors[0], says, _last_strike_s(life))
        return error._replace(remark="; ".join(filter(None, (error.remark, "then exact"))))
    return verdict


def _of_interrupts(says: str, due: Sequence[int], lives: Sequence[Life]) -> Verdict:
    (life,) = lives
    verdict = _of_loop(life, life.events, due, says)
    struck, seen = _of(life.events, "struck"), _of(life.events, "interrupted")
    if verdict.kind != "exact":
        return verdict
    if len(seen) < len(struck):
        return Verdict("ignores it", remark=f"{len(struck) - len(seen)} of {len(struck)}")
    return verdict._replace(
        seconds=max(after["at_s"] - before["at_s"] for before, after in zip(struck, seen, strict=True))
    )


def _of_killed_trainer(says: str, due: Sequence[int], lives: Sequence[Life]) -> Verdict:
    killed, again = lives
    verdict = _of_loop(again, again.events, due, says)
    if verdict.kind != "exact":
        return verdict._replace(remark=": ".join(filter(None, ("at the next start", verdict.remark))))
    num_files = sum(file.startswith("/dev/shm/") for file in killed.files_left)  # noqa: S108 - the place itself
    left = [
        *[_number(killed.num_processes_left, "process", "es")] * bool(killed.num_processes_left),
        *[f"{_number(num_files, 'file', 's')} in /dev/shm"] * bool(num_files),
    ]
    return Verdict("leaves", remark=", ".join(left)) if left else Verdict("exact", killed.gone_s - killed.ended_s)


def _of_break(says: str, due: Sequence[int], lives: Sequence[Life]) -> Verdict:
    """Judge the two whole loops after the two that ended early."""
    (life,) = lives
    loops: list[list[Mapping[str, Any]]] = []
    for event in life.events:
        if event["what"] == "epoch":
            loops.append([])
        elif loops:
            loops[-1].append(event)
    if len(loops) < 4:
        return _of_loop(life, _of(life.events, "raised"), (), says)
    # The third loop came to its end, since a fourth began.
    third = _of_loop(life._replace(code=0), [*loops[2], {"what": "finished"}], due, says)
    fourth = _of_loop(life, loops[3], due, says)
    return _worst((third, fourth))._replace(seconds=_longest_wait_s(life.events, _last_strike_s(life)))


def _of_resumed(says: str, due: Sequence[int], lives: Sequence[Life]) -> Verdict:
    first, *resumed = lives
    if not resumed:
        return _of_loop(first, first.events, [*due, *due], says)
    verdicts = [
        _of_loop(life, life.events, _rest_of_epoch(first.events, f"state-{number}"), says)
        for number, life in enumerate(resumed, 1)
    ]
    worst = _worst(verdicts)
    if worst.kind in ("lost", "repeated"):
        num_lost = sum(verdict.num_lost for verdict in verdicts)
        return worst._replace(num_lost=num_lost, num_repeated=sum(verdict.num_repeated for verdict in verdicts))
    # The first event of a life is that it began.
    starts_s = [found[0]["at_s"] - life.events[0]["at_s"] for life in resumed if (found := _of(life.events, "batch"))]
    return worst._replace(seconds=max(starts_s, default=None)) if worst.kind == "exact" else worst


def _rest_of_epoch(events: _Events, name: str) -> list[int]:
    """Return the samples that followed a saved state in its epoch."""
    saved = next(index for index, event in enumerate(events) if event.get("name") == name)
    epoch = takewhile(lambda event: event["what"] != "epoch", events[saved:])
    return [number for event in epoch if event["what"] == "batch" for number in event["numbers"]]


def _of(events: _Events, what: str) -> list[Mapping[str, Any]]:
    return [event for event in events if event["what"] == what]


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: KINDS.index(verdict.kind))


def _number(count: int, word: str, plural: str) -> str:
    return f"{count} {word}{plural if count != 1 else ''}"


def _last_strike_s(life: Life) -> float | None:
    if life.struck_s is not None:
        return life.struck_s
    struck = _of(life.events, "struck")
    return struck[-1]["at_s"] if struck else None


def _longest_wait_s(events: _Events, struck_s: float | None) -> float | None:
    """Return the longest wait for a batch, from the strike on."""
    if struck_s is None:
        return None
    times = [struck_s, *(event["at_s"] for event in _of(events, "batch") if event["at_s"] > struck_s)]
    return max((after - before for before, after in pairwise(times)), default=None)


_SPECIAL: dict[str, Callable[[str, Sequence[int], Sequence[Life]], Verdict]] = {
    "broken-off": _of_break,
    "descriptors": _of_descriptors,
    "interrupted": _of_interrupts,
    "resumed": _of_resumed,
    "trainer-killed": _of_killed_trainer,
}


def text_of(verdict: Verdict) -> str:
    """Return a cell's text."""
    counts = [(verdict.num_lost, "lost"), (verdict.num_repeated, "repeated")]
    kind = ", ".join(f"{count} {word}" for count, word in counts if count) or verdict.kind
    said = f"**{kind}**" if verdict.kind in _SHOUTED else kind
    if verdict.remark:
        said += f" ({verdict.remark})"
    if verdict.seconds is None:
        return said
    return f"{said}, {verdict.seconds:.1f} s" if verdict.seconds >= 0.05 else f"{said}, at once"

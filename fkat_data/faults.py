"""Named points at which a test has this process fail, so that every instant of a run can be its last.

``FKAT_DATA_FAULT=point:n:action[:claim]`` arms one point: when it is passed for the n-th time in a process, the
action happens. With ``claim``, a path, it happens in the first process alone that can create that file. Nothing
is armed, and a point costs one look at an empty tuple, where the variable is not set.
"""

import errno
import os
import signal
import time
from typing import NamedTuple

__all__ = ["ACTIONS", "POINTS", "fault", "parse_fault"]

POINTS = (
    "worker.started",
    "worker.ready",
    "worker.assigned",
    "worker.build",
    "worker.built",
    "worker.produced",
    "worker.encoded",
    "worker.take_segment",
    "worker.reserve",
    "worker.reserved",
    "worker.announced",
    "worker.writing",
    "worker.written",
    "worker.sent",
    "worker.starved",
    "worker.credited",
    "worker.end",
    "worker.ended",
    "worker.failure",
    "worker.cancelled",
    "worker.leaving",
    "trainer.spawn",
    "trainer.spawned",
    "trainer.assign",
    "trainer.assigned",
    "trainer.receive",
    "trainer.map",
    "trainer.mapped",
    "trainer.decode",
    "trainer.decoded",
    "trainer.lease",
    "trainer.credit",
    "trainer.taken",
    "trainer.deliver",
    "trainer.delivered",
    "trainer.end_shard",
    "trainer.replace",
    "trainer.replaced",
    "trainer.close",
    "trainer.closed",
    "cache.claim",
    "cache.claimed",
    "cache.reserve",
    "cache.evict",
    "cache.evicted",
    "cache.reserved",
    "cache.allocated",
    "cache.filled",
    "cache.synced",
    "cache.moved",
    "cache.empty",
    "cache.emptied",
    "cache.recorded",
)
"""Every point, in about the order in which a run passes them."""

ACTIONS = ("kill", "segv", "exit0", "raise", "ENOSPC", "EIO", "sleep")
"""What may happen at a point; ``sleep`` is for a quarter of a second."""

_SLEEP_S = 0.25


class _Fault(NamedTuple):
    point: str
    occurrence: int
    action: str
    claim: str


def parse_fault(text: str) -> _Fault:
    """Return what ``FKAT_DATA_FAULT`` asks for.

    Raises:
        ValueError: There is no such point or action, or the text has another form.
    """
    point, occurrence, action, *claim = text.split(":", 3)
    if point not in POINTS or action not in ACTIONS or not occurrence.isdigit():
        raise ValueError(
            f"FKAT_DATA_FAULT={text}: expected point:n:action with a point of {POINTS} and an action of {ACTIONS}"
        )
    return _Fault(point, int(occurrence), action, claim[0] if claim else "")


_armed = tuple(parse_fault(text) for text in os.environ.get("FKAT_DATA_FAULT", "").split(",") if text)
_passed: dict[str, int] = {}


def fault(point: str) -> None:
    """Pass a point.

    Raises:
        RuntimeError: The point is armed with ``raise``.
        OSError: It is armed with the name of a system error.
    """
    if _armed:
        _pass(point)


def _pass(point: str) -> None:
    _passed[point] = _passed.get(point, 0) + 1
    for armed in _armed:
        if armed.point == point and armed.occurrence == _passed[point] and _is_claimed(armed.claim):
            _act(armed.action, point)


def _is_claimed(path: str) -> bool:
    if not path:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _act(action: str, point: str) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit0":
            os._exit(0)
        case "sleep":
            time.sleep(_SLEEP_S)
        case "raise":
            raise RuntimeError(f"injected at {point}")
        case _:
            number = getattr(errno, action)
            raise OSError(number, f"injected at {point}: {os.strerror(number)}")

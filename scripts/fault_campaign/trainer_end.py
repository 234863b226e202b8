"""Whether a trainer's exit is explained by the strikes."""

import signal
from collections.abc import Sequence
from typing import Any

from fault_campaign.outcome import Hit
from fault_campaign.trainer import AGAIN

# How Python ends after Ctrl-C: by the signal, with its exit code, or, early in the start, with a plain error.
_AFTER_INTERRUPT = (-signal.SIGINT, 128 + signal.SIGINT, 1)


def complaint_about_end(code: int, trainer: int, hits: Sequence[Hit], events: Sequence[dict[str, Any]]) -> str:
    """Return what is wrong with a trainer's end, or "".

    Args:
        code: Its exit code, as ``subprocess`` gives it.
        trainer: Its process id.
        hits: The signals that reached it and its workers.
        events: The events that it reported.
    """
    names = {hit.signal for hit in hits if hit.pid == trainer}
    for event in events:
        complaint = _complaint_about(event, hits)
        if complaint:
            return complaint
    if code == 0 or (code < 0 and signal.Signals(-code).name.removeprefix("SIG") in names):
        return ""
    if "INT" in names and code in _AFTER_INTERRUPT:
        return ""
    if code == AGAIN and any(event["what"] in ("died", "failed") for event in events):
        return ""
    return f"the trainer ended with {code}, after {sorted(names)}"


def _complaint_about(event: dict[str, Any], hits: Sequence[Hit]) -> str:
    match event["what"]:
        case "died" | "replaced":
            signals = {
                int(signal.Signals[f"SIG{hit.signal}"]) for hit in hits if hit.pid == event["pid"] and hit.is_deadly
            }
            if event["exit_code"] is None or -event["exit_code"] not in signals:
                return f"a worker ended with {event['exit_code']}, hit by {sorted(signals)}"
        case "failed":
            if not any(hit.victim in ("grandchild", "all") for hit in hits):
                return f"an error that nothing explains: {event['error']}"
        case "logged":
            is_of_templates = "template processes ended before they had started a worker" in event["message"]
            if is_of_templates and sum(hit.is_deadly for hit in hits) > 1:
                return ""  # the strikes met them
            return f"a warning that nothing explains: {event['message']}"
        case _:
            pass
    return ""

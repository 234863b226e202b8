"""Events of a timeline, as Chrome's and Perfetto's trace format has them: one JSON object each.

A process collects its events and turns them into text many at a time. Where microbatches come faster than a person
can look at them, only some are drawn.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

MAIN_THREAD, PRODUCTION_THREAD, COPY_THREAD = 1, 2, 3
"""The tracks of a process: its main thread; production in the trainer's own process; copies to a device."""

BEGINS_CYCLE = frozenset({"produce", "replay", "next", "copy"})
"""The names of the events that begin a microbatch."""

CYCLE_S = 0.0005
"""At most 2,000 microbatches a second are drawn for each process."""

LONG_S = 0.0001
"""Longer events are always drawn."""

_BATCH_EVENTS = 512
_BATCH_S = 0.5


class EventRecorder:
    """A collector of the events of one thread of a process, which gives them out in batches; used by one thread.

    Args:
        process: The process's number.
        thread: The track's number in the process.
    """

    def __init__(self, process: int, thread: int) -> None:
        self._track = f'"pid":{process},"tid":{thread}'
        self._events: list[tuple[str, float, float, int, str]] = []
        self._due_s = time.perf_counter() + _BATCH_S
        self._next_cycle_s = 0.0
        self._is_drawn = True

    def add(self, name: str, began_s: float, ended_s: float, index: int = -1, label: str = "") -> None:
        """Collect what lasted from ``began_s`` to ``ended_s``, on the clock of ``time.perf_counter``."""
        if name in BEGINS_CYCLE:
            self._is_drawn = began_s >= self._next_cycle_s
            if self._is_drawn:
                self._next_cycle_s = began_s + CYCLE_S
        if self._is_drawn or ended_s - began_s > LONG_S:
            self._events.append((name, began_s, ended_s, index, label))

    @property
    def is_due(self) -> bool:
        """Whether it is time to take what was collected."""
        return len(self._events) >= _BATCH_EVENTS or (bool(self._events) and self._events[-1][2] > self._due_s)

    def take(self) -> bytes:
        """Return what was collected since the last call, as text: each event ends with ``,`` and a new line."""
        events, self._events = self._events, []
        self._due_s = time.perf_counter() + _BATCH_S
        return "".join(self._texts(events)).encode()

    def _texts(self, events: list[tuple[str, float, float, int, str]]) -> Iterator[str]:
        track = self._track
        for name, began_s, ended_s, index, label in events:
            arguments = f',"args":{{"index":{index}}}' if index >= 0 else ""
            if label:
                arguments = f',"args":{{"index":{index},"shard":{json.dumps(label)}}}'
            duration_us = 1e6 * (ended_s - began_s)
            yield f'{{"name":"{name}","ph":"X","ts":{1e6 * began_s:.1f},"dur":{duration_us:.1f},{track}{arguments}}},\n'


def named_event(kind: str, process: int, thread: int, name: str) -> bytes:
    """Return the event that names a process or a thread: ``kind`` is ``process_name`` or ``thread_name``."""
    return _text({"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}})


def counter_event(name: str, at_s: float, process: int, values: Mapping[str, float]) -> bytes:
    """Return the event that shows the present values of numbers."""
    return _text({"name": name, "ph": "C", "ts": 1e6 * at_s, "pid": process, "tid": 0, "args": dict(values)})


def instant_event(name: str, at_s: float, process: int, arguments: Mapping[str, Any]) -> bytes:
    """Return the event of a moment."""
    return _text(
        {"name": name, "ph": "i", "s": "p", "ts": 1e6 * at_s, "pid": process, "tid": 1, "args": dict(arguments)}
    )


def _text(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b",\n"

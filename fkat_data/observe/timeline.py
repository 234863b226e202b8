"""The timeline of a run: a file of trace events that Perfetto, Chrome and ``fkat-data report`` read.

One process writes the file, the trainer; workers send it their events. After every write it is a whole JSON array, so
it can be loaded while the run goes on, and after a run that was killed. Between two writes, the file is not open.
"""

import logging
import os
import time
from pathlib import Path
from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.observe.events import MAIN_THREAD, EventRecorder, counter_event, instant_event, named_event
from fkat_data.observe.statistics import DURATIONS, LoaderStatistics
from fkat_data.runtime.interruption import genuine
from fkat_data.storage.location import machine_path

logger: logging.Logger = logging.getLogger(__name__)

READY, HELD, SECONDS = "microbatches ready", "shared memory held", "seconds spent"
"""The names of the counters."""

TOTALS = ("waited_s", "store_s", "build_s", "produce_s", "replay_s", "encode_s", "blocked_s", "idle_s")
"""Those of ``LoaderStatistics`` that ``SECONDS`` counts."""

_END = b"\n]\n"
_LARGEST_BYTES = 256 << 20


class Timeline:
    """The writer of a timeline's file; belongs to the trainer's process and to one thread of it. A child of a fork writes nothing.

    Args:
        path: The file; one that exists is replaced.
        name: What the trainer's process is called.

    Raises:
        ConfigurationError: The file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        self._path = Path(path).absolute()
        try:
            self._path.write_bytes(b"")
        except genuine(OSError, ValueError) as error:
            raise ConfigurationError("trace", path, f"the path of a file that can be written ({error})") from error
        self._pid = os.getpid()
        self._size_bytes = 0
        self._is_ended = False
        self._write(b"[\n" + named_event("process_name", self._pid, MAIN_THREAD, name))
        self._recorders: list[EventRecorder] = []
        self.recorder: EventRecorder = self.recorder_of(MAIN_THREAD, "training loop")
        """For what the training loop does."""

    def recorder_of(self, thread: int, name: str) -> EventRecorder:
        """Return what collects the events of another track of the trainer's process."""
        self.name_thread(self._pid, thread, name)
        self._recorders.append(EventRecorder(self._pid, thread))
        return self._recorders[-1]

    def write(self, events: bytes) -> None:
        """Append events, each of which ends with ``,`` and a new line; nothing where there are none."""
        if not events or self._is_ended or os.getpid() != self._pid:
            return
        if self._size_bytes + len(events) > _LARGEST_BYTES:
            self._end(f"it has {_LARGEST_BYTES >> 20} MiB")
        else:
            self._write(events)

    def name_process(self, pid: int, name: str) -> None:
        """Say what a process is called."""
        self.write(named_event("process_name", pid, MAIN_THREAD, name))

    def name_thread(self, pid: int, thread: int, name: str) -> None:
        """Say what a track of a process is called."""
        self.write(named_event("thread_name", pid, thread, name))

    def sample(self, statistics: LoaderStatistics) -> None:
        """Draw how many microbatches are ready, how much memory is held, and where the time has gone."""
        now_s = time.perf_counter()
        seconds = {name: round(getattr(statistics, name), 6) for name in TOTALS}
        counters = (
            counter_event(READY, now_s, self._pid, {"ready": statistics.queue_depth}),
            counter_event(HELD, now_s, self._pid, {"MiB": round(statistics.held_bytes / (1 << 20), 3)}),
            counter_event(SECONDS, now_s, self._pid, seconds),
        )
        self.write(b"".join(counters))

    def record(self, name: str, statistics: LoaderStatistics, **more: Any) -> None:
        """Write all events collected so far, and the numbers of this moment under a name that Perfetto shows."""
        for recorder in self._recorders:
            self.write(recorder.take())
        durations = {each: getattr(statistics, each).as_dict() for each in DURATIONS}
        numbers = {**more, "kind": type(statistics).__name__, **statistics.as_dict(), **durations}
        self.write(instant_event(name, time.perf_counter(), self._pid, numbers))

    def _end(self, reason: object) -> None:
        # A full disk is no reason to end a training run.
        self._is_ended = True
        logger.warning("the timeline %s ends here: %s", self._path, reason)

    def _write(self, events: bytes) -> None:
        # What follows overwrites the array's end, and the comma before it, with a comma and its own events.
        start = self._size_bytes
        content = (b",\n" if start else b"") + events.removesuffix(b",\n") + _END
        try:
            with self._path.open("r+b") as file:
                if file.seek(0, os.SEEK_END) != (start and start + len(_END)):
                    raise OSError("another loader or program writes to this file, too")
                file.seek(start)
                file.write(content)
        except genuine(OSError) as error:
            self._end(error)
        self._size_bytes = start + len(content) - len(_END)


def open_timeline(path: str | os.PathLike[str], rank: int, world_size: int) -> Timeline:
    """Return the timeline of a rank: ``run.json``, or of several ranks ``run-rank3.json``.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise ConfigurationError("trace", path, "the path of a file, or null")
    own = machine_path("trace", path, "the path of a file")
    if world_size == 1:
        return Timeline(own, "trainer")
    return Timeline(own.with_name(f"{own.stem}-rank{rank}{own.suffix}"), f"trainer, rank {rank}")

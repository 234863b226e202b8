"""Refuses the start of a process or a server in a test that uses no fixture which permits one."""

import functools
import multiprocessing.util
import sys

import pytest

__all__ = ["Guard"]

_PROCESSES = {
    *("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"),
    *("multiprocessing.util.spawnv_passfds", "fkat_data.worker.process.forkserver._Registry.find"),
}
_MESSAGE = (
    "this test starts a {what} ({event}), which no test of the fast lane may do: use the fixture `processes`, "
    "or `shared_processes` in a fixture of a wider scope"
)


class Guard:
    """What the running test may start; it hears of each start by Python's audit events.

    Attributes:
        processes: Whether it may start processes.
        servers: Whether it may listen on an address.
        offences: The messages of what it started without permission.
    """

    def __init__(self):
        self.processes = self.servers = True
        self.offences = []
        sys.addaudithook(self._hear)
        # What starts the processes of multiprocessing's method "spawn" raises no event.
        multiprocessing.util.spawnv_passfds = self.watched(multiprocessing.util.spawnv_passfds)

    def watched(self, start):
        """Return a function that starts processes without an event, as one that the guard hears of."""
        event = f"{start.__module__}.{start.__qualname__}"

        @functools.wraps(start)
        def watched(*arguments):
            self._hear(event, arguments)
            return start(*arguments)

        return watched

    def _hear(self, event, arguments):
        if event in _PROCESSES:
            if not self.processes:
                self._refuse(_MESSAGE.format(what="process", event=event))
        elif event == "socket.bind" and not self.servers:
            self._refuse(_MESSAGE.format(what="server", event=event))

    def _refuse(self, message):
        self.offences.append(message)
        raise pytest.fail.Exception(message, pytrace=True)

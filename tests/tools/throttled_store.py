"""A web server of files on a line of so many bytes a second, which its transfers share, and with a latency."""

import threading
import time

from proxy import FaultServer

_CHUNK_BYTES = 16 << 10


class ThrottledStore(FaultServer):
    """Serves a directory; what it sends waits for its turn on the line.

    Args:
        directory: The directory.
        bytes_per_s: What is sent, all transfers together.
        latency_s: Seconds before each answer.
    """

    def __init__(self, directory, bytes_per_s, latency_s=0.0):
        super().__init__(directory)
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._line = threading.Lock()
        self._free_at_s = 0.0

    def _answer(self, *request):
        time.sleep(self._latency_s)
        super()._answer(*request)

    def _send_slowly(self, connection, data, fault):
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = data[start : start + _CHUNK_BYTES]
            with self._line:
                # Chunk by chunk in turn: so all who send have an equal part.
                self._free_at_s = max(time.monotonic(), self._free_at_s) + len(chunk) / self._bytes_per_s
                ends_s = self._free_at_s
            time.sleep(max(0.0, ends_s - time.monotonic()))
            connection.sendall(chunk)

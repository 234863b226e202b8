"""A web server of files on a line of so many bytes a second, which its transfers share, and with a latency."""

import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

_CHUNK_BYTES = 16 << 10


class ThrottledStore:
    """Serves a directory.

    Args:
        directory: The directory.
        bytes_per_s: What is sent, all transfers together.
        latency_s: Seconds before each answer.
    """

    def __init__(self, directory, bytes_per_s, latency_s=0.0):
        self._directory = Path(directory)
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0
        self._threads = []
        self.counts = Counter()
        self.sent_bytes = 0

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._acceptor, *self._threads):
            thread.join(5)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        # A client may go away in the middle: an epoch's read-ahead ends with the epoch.
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection.makefile("rb") as file:
                method, target, _ = file.readline().decode("latin-1").split()
                while file.readline() not in (b"\r\n", b""):
                    pass
            name = unquote(urlsplit(target).path).lstrip("/")
            path = self._directory / name
            self.counts[method, name] += 1
            time.sleep(self._latency_s)
            if not path.is_file():
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            data = path.read_bytes()
            head = f'HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\nETag: "{path.stat().st_mtime_ns}"\r\n'
            connection.sendall(f"{head}Connection: close\r\n\r\n".encode("latin-1"))
            if method == "GET":
                self._send(connection, data)

    def _send(self, connection, data):
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = data[start : start + _CHUNK_BYTES]
            with self._lock:
                # Chunk by chunk in turn: so all who send have an equal part.
                begins_s = max(time.monotonic(), self._free_at_s)
                self._free_at_s = begins_s + len(chunk) / self._bytes_per_s
                ends_s = self._free_at_s
                self.sent_bytes += len(chunk)
            time.sleep(max(0.0, ends_s - time.monotonic()))
            connection.sendall(chunk)

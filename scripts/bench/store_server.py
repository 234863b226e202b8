"""A throttled store on loopback: S3's unsigned GET and HEAD, of whole objects and ranges.

    python scripts/bench/store_server.py DIRECTORY BYTES_PER_S LATENCY_S

It prints its port. ``/sent`` says how many bytes of objects were sent since it was last asked, and ``/cost`` how many
requests it has answered, and the seconds of CPU that it took. All connections together get BYTES_PER_S, and each
response starts after LATENCY_S. The first part of the path is the bucket, and can be anything.

It shares the machine with what is measured: so it is one loop over sockets, which knows of HTTP what it needs.
"""

import contextlib
import hashlib
import mmap
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote

_PIECE_BYTES = 64 << 10
_RECEIVED_BYTES = 64 << 10
_NONE = memoryview(b"")


class _Object:
    """A file, and what each answer says of it."""

    def __init__(self, path: Path) -> None:
        self.size_bytes = path.stat().st_size
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if self.size_bytes else b""
        self.content = memoryview(content)
        tag = hashlib.md5(str(path.stat()).encode(), usedforsecurity=False).hexdigest()
        modified = formatdate(path.stat().st_mtime, usegmt=True)
        self.headers = f'ETag: "{tag}"\r\nLast-Modified: {modified}\r\nAccept-Ranges: bytes\r\n'


class _Connection:
    """A client, the request that it is sending, and what is left of the answer to it."""

    def __init__(self, client: socket.socket) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client = client
        self.received = b""
        self.head = b""
        self.left = _NONE
        self.is_full = False


class Store:
    """Answers requests until the process ends.

    Args:
        directory: The objects' files.
        bytes_per_s: What all connections get together.
        latency_s: How long each answer waits before it begins.
    """

    def __init__(self, directory: Path, bytes_per_s: float, latency_s: float) -> None:
        self._directory = directory
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._objects: dict[str, _Object | None] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        # All wait equally long, so who has asked first is answered first.
        self._waiting: deque[tuple[float, _Connection]] = deque()
        self._sending: deque[_Connection] = deque()
        self._free_at_s = 0.0
        self._num_sent = self._num_answers = 0

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.getsockname()[1]

    def run(self) -> None:
        """Serve."""
        while True:
            for descriptor, _ in self._poll.poll(self._wait_s()):
                if descriptor == self._listener.fileno():
                    connection = _Connection(self._listener.accept()[0])
                    self._connections[connection.client.fileno()] = connection
                    self._poll.register(connection.client, select.EPOLLIN)
                elif (connection := self._connections.get(descriptor)) is not None:
                    self._hear(connection)
            now_s = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now_s:
                self._begin(self._waiting.popleft()[1], now_s)
            self._send_on()

    def _wait_s(self) -> float | None:
        due = [self._waiting[0][0]] if self._waiting else []
        if self._sending:
            due.append(self._free_at_s)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _hear(self, connection: _Connection) -> None:
        if connection.is_full:  # its client takes more again
            connection.is_full = False
            self._poll.modify(connection.client, select.EPOLLIN)
            self._sending.append(connection)
            return
        try:
            received = connection.client.recv(_RECEIVED_BYTES)
        except OSError:
            received = b""
        if not received:
            self._drop(connection)
            return
        connection.received += received
        if connection.received.endswith(b"\r\n\r\n"):
            self._waiting.append((time.monotonic() + self._latency_s, connection))

    def _begin(self, connection: _Connection, now_s: float) -> None:
        request, connection.received = connection.received.decode("latin-1"), b""
        method, path, _ = request.split(" ", 2)
        path = path.partition("?")[0]
        self._num_answers += 1
        if path in ("/sent", "/cost"):
            text = f"{self._num_sent}" if path == "/sent" else f"{self._num_answers} {time.process_time()}"
            self._num_sent = self._num_sent if path == "/cost" else 0
            self._send_whole(connection, f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            return
        found = self._object(path)
        if found is None:
            self._send_whole(connection, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        status, first, end, size_bytes = "200 OK", 0, found.size_bytes, found.size_bytes
        at = request.lower().find("\r\nrange: bytes=")
        if at >= 0:
            start, _, last = request[at + 15 : request.index("\r\n", at + 2)].partition("-")
            first = int(start) if start else max(0, size_bytes - int(last))
            end = min(size_bytes, int(last) + 1) if start and last else size_bytes
            status = f"206 Partial Content\r\nContent-Range: bytes {first}-{end - 1}/{size_bytes}"
        head = f"HTTP/1.1 {status}\r\nContent-Length: {end - first}\r\n{found.headers}\r\n".encode()
        content = found.content[first:end] if method == "GET" else _NONE
        self._num_sent += len(content)
        if len(content) <= _PIECE_BYTES and not self._sending and self._free_at_s <= now_s:
            self._free_at_s = now_s + len(content) / self._bytes_per_s
            self._send_whole(connection, head, content)
        else:
            connection.head, connection.left = head, content
            self._sending.append(connection)

    def _object(self, path: str) -> _Object | None:
        if path not in self._objects:
            file = self._directory / unquote(path).lstrip("/").partition("/")[2]
            self._objects[path] = _Object(file) if file.is_file() else None
        return self._objects[path]

    def _send_whole(self, connection: _Connection, head: bytes, content: memoryview = _NONE) -> None:
        try:
            sent = connection.client.sendmsg((head, content))
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        if sent < len(head) + len(content):
            self._keep(connection, head[sent:], content[max(0, sent - len(head)) :])

    def _keep(self, connection: _Connection, head: bytes, content: memoryview) -> None:
        """Go on once a client takes more."""
        connection.head = b""
        connection.left = memoryview(head + bytes(content)) if head else content
        connection.is_full = True
        self._poll.modify(connection.client, select.EPOLLOUT)

    def _send_on(self) -> None:
        """Send pieces in turn, each once the link that all share is free."""
        while self._sending and self._free_at_s <= (now_s := time.monotonic()):
            connection = self._sending.popleft()
            head, left = connection.head, connection.left
            try:
                sent = connection.client.sendmsg((head, left[:_PIECE_BYTES]))
            except BlockingIOError:
                self._keep(connection, head, left)
                continue
            except OSError:
                self._drop(connection)
                continue
            # A wait that was a little too long does not lose the link's time.
            self._free_at_s = max(self._free_at_s, now_s - 0.001) + sent / self._bytes_per_s
            connection.head, connection.left = head[sent:], left[max(0, sent - len(head)) :]
            if connection.head or connection.left:
                self._sending.append(connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.client.fileno(), None)
        connection.client.close()


@contextlib.contextmanager
def served(data: Path, bytes_per_s: float, latency_s: float) -> Iterator[int]:
    """Serve a directory from a process of its own; yield the port."""
    command = [sys.executable, __file__, str(data), str(bytes_per_s), str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(server.stdout.readline() if server.stdout else 0)
        finally:
            server.kill()


if __name__ == "__main__":
    store = Store(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
    print(store.port, flush=True)
    store.run()

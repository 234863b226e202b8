"""The server: one thread for each connection, one request on each."""

import contextlib
import http.client
import socket
import struct
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

from proxy.answers import Answer, from_directory, from_server
from proxy.faults import Fault

__all__ = ["FaultServer"]

_XML = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>We encountered an error</Message></Error>'


class FaultServer:
    """Serves a directory, or what another server has, with faults.

    Args:
        source: A directory, or the URL of a server, ``http://host:port``.
        plan: From an object's name (the last part of its path) to the faults of its GETs, one after the other; or
            anything with ``get(name, attempt)``. ``"HEAD name"`` is for HEAD.
        forever: Whether the last fault of a name's list stays.
    """

    def __init__(self, source, plan=None, *, forever=False):
        self._source = source
        self.plan = plan or {}
        self._forever = forever
        self.counts = Counter()
        self.sent_bytes = Counter()
        #: The Range header of each GET, None where there was none.
        self.ranges = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._down = False
        self._connections = set()
        self._threads = []

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.host, self.port = self._listener.getsockname()
        self.url = f"http://{self.host}:{self.port}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(5)
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def down(self, is_down=True):
        """Refuse every request by RST, or no longer."""
        self._down = is_down

    def count(self, name, method="GET"):
        """Return how many requests there were for an object."""
        return self.counts[method, name]

    def _accept(self):
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            self._threads = [other for other in self._threads if other.is_alive() or other is thread]
            thread.start()

    def _serve(self, connection):
        self._connections.add(connection)
        # A client that goes away in the middle is what many tests are about.
        with contextlib.suppress(OSError, http.client.HTTPException), connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._down:
                _reset(connection)
                return
            with connection.makefile("rb") as file:
                request = file.readline().decode("latin-1").split()
                headers = http.client.parse_headers(file)
            if len(request) == 3:
                self._answer(connection, request[0], request[1], headers)
        self._connections.discard(connection)

    def _answer(self, connection, method, target, headers):
        name = unquote(urlsplit(target).path).rsplit("/", 1)[-1]
        fault = self._next_fault(method, name, headers.get("Range"))
        if fault.kind == "call":
            fault.settings["function"]()
        if fault.kind in ("latency", "stall_first"):
            self._stopped.wait(fault.get("seconds", 0.1 if fault.kind == "latency" else 60))
        if fault.kind == "reset_first" or self._stopped.is_set():
            _reset(connection)
            return
        if fault.kind == "no_range":
            del headers["Range"]
        if fault.kind == "other":
            target = target.removesuffix(name) + fault.settings["name"]
        fetch = from_directory if isinstance(self._source, Path) else from_server
        answer = _changed(fetch(self._source, method, target, headers), fault)
        self._send(connection, name, answer, fault, has_body=method != "HEAD")

    def _next_fault(self, method, name, asked_range):
        with self._lock:
            attempt = self.counts[method, name]
            self.counts[method, name] += 1
            if method == "GET":
                self.ranges.setdefault(name, []).append(asked_range)
        key = name if method == "GET" else f"{method} {name}"
        if not isinstance(self.plan, dict):
            return (self.plan.get(name, attempt) if method == "GET" else None) or Fault("none")
        script = self.plan.get(key, [])
        if attempt >= len(script) and not (self._forever and script):
            return Fault("none")
        return script[min(attempt, len(script) - 1)] or Fault("none")

    def _send(self, connection, name, answer, fault, *, has_body):
        body = answer.body
        headers = {"Content-Length": str(len(body)), **answer.headers, "Connection": "close"}
        if fault.kind == "longer":
            body += b"and more"
            headers["Content-Length"] = str(len(body))
        if fault.kind in ("end_unsized", "chunked_cut"):
            del headers["Content-Length"]
        if fault.kind == "chunked_cut":
            headers["Transfer-Encoding"] = "chunked"
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{key}: {value}" for key, value in headers.items())]
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if has_body:
            self._send_body(connection, name, body, fault)

    def _send_body(self, connection, name, body, fault):
        cut = min(int(len(body) * fault.get("after", 0.5)), max(len(body) - 1, 0))
        first, rest = body, b""
        if fault.kind in ("reset", "end", "end_unsized", "stall", "trickle"):
            first, rest = body[:cut], body[cut:]
        if fault.kind == "chunked_cut":
            first = b"%x\r\n%b\r\n" % (cut, body[:cut]) if cut else b""
        self._send_slowly(connection, first, fault)
        with self._lock:
            self.sent_bytes[name] += len(first)
        if fault.kind == "stall":
            self._stopped.wait(fault.get("seconds", 60))
        if fault.kind == "trickle":
            self._trickle(connection, rest, fault.get("seconds", 0.1))
        if fault.kind in ("reset", "end", "end_unsized", "chunked_cut"):
            # Clients throw away what they have not read when the connection breaks.
            self._stopped.wait(0.05)
        if fault.kind == "reset":
            _reset(connection)

    def _trickle(self, connection, data, pause_s):
        for place in range(len(data)):
            connection.sendall(data[place : place + 1])
            if self._stopped.wait(pause_s):
                return

    def _send_slowly(self, connection, data, fault):
        if fault.kind != "bandwidth":
            connection.sendall(data)
            return
        step = max(1, fault.get("bytes_per_s", 100_000) // 20)
        for place in range(0, len(data), step):
            connection.sendall(data[place : place + step])
            if self._stopped.wait(0.05):
                return


def _changed(answer: Answer, fault: Fault) -> Answer:
    """Return an answer as the fault makes it."""
    kind, size = fault.kind, len(answer.body)
    if kind == "status":
        headers = {} if fault.get("retry_after", None) is None else {"Retry-After": str(fault.settings["retry_after"])}
        return Answer(fault.get("status", 503), "Faulty", headers, fault.get("body", _XML))
    if kind == "xml":
        return Answer(200, "OK", {"Content-Type": "application/xml"}, _XML)
    if kind == "gzip":
        return Answer(answer.status, answer.reason, {**answer.headers, "Content-Encoding": "gzip"}, answer.body)
    if kind == "flip" and size:
        place = min(int(size * fault.get("after", 0.5)), size - 1)
        flipped = bytes([answer.body[place] ^ 255])
        body = answer.body[:place] + flipped + answer.body[place + 1 :]
        return Answer(answer.status, answer.reason, answer.headers, body)
    if kind == "wrong_range" and size > 1:
        headers = {**answer.headers, "Content-Range": f"bytes 1-{size - 1}/{size}"}
        return Answer(206, "Partial Content", headers, answer.body[1:])
    return answer


def _reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()

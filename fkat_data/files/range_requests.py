"""Read ranges of a file of a web server, or of S3 by a signed URL: one request each, on connections that stay open.

A request takes a tenth of the CPU time that aiohttp's takes: it is written and read by the thread that needs it, without
an event loop, and all answers wait in the kernel's memory meanwhile.
"""

import os
import re
import socket
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Self, TypeAlias, cast
from urllib.parse import urlsplit

from fkat_data.runtime.background import in_parallel
from fkat_data.runtime.interruption import genuine, suppress
from fkat_data.runtime.lifetime import WeakTable
from fkat_data.runtime.machine import call_in_forks

Span: TypeAlias = tuple[int, int]
"""The first byte of a range, and the one behind its last."""

Content: TypeAlias = bytes | memoryview
"""The bytes of a range; of a long one, a view of the memory that they were received into."""

_EXPIRES_S, _RENEWED_S = 3600, 1800
_CONNECT_S, _SILENCE_S = 5.0, 30.0
#: The longest time for an answer, however slowly it comes: a request is for 8 MiB at most.
_ANSWER_S = 60.0
#: A server closes a connection that is not used: from here on, a new one is quicker than to find that out.
_IDLE_S = 15.0
MOST_AT_ONCE = 64
"""Requests of one batch of ranges that are under way at a time, each on a connection of its own."""
#: Connections of a process that wait for the next request, and those that are opened at a time.
_MOST_IDLE, _NUM_THREADS = 256, 16
_LONGEST_HEAD, _RECEIVED_BYTES = 16 << 10, 256 << 10
#: Received at once of a long answer: after each call, a thread waits up to 5 ms for one that computes.
_MOST_RECEIVED_BYTES = 8 << 20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+) *\r\n")
_ENCODING = re.compile(rb"\r\ncontent-encoding: *(?!identity *\r)")
_PORTS = {"http": 80, "https": 443}
#: Answers that say nothing of other requests: no such file, a time-out, another version, no such range, too many requests.
_OF_ONE_REQUEST = (b"404", b"408", b"412", b"416", b"429")
#: Arguments of s3fs's client that a signed URL has in it.
_IN_URL = {"endpoint_url", "region_name", "use_ssl"}
#: File systems whose stores refuse such requests, and web servers that do.
_refusing: WeakTable[int, Any] = WeakTable()
_refusing_servers: set["_Server"] = set()


class _Server(NamedTuple):
    scheme: str
    host: str
    port: int


class _Socket(socket.socket):
    """A socket that closes when nothing holds it: one call of C."""

    __del__: Callable[[Self], None] = socket.SocketType.close


class _SslSocket(ssl.SSLSocket):
    """The same, encrypted."""

    __del__: Callable[[Self], None] = socket.SocketType.close


@cache
def _ssl_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _SslSocket
    return context


class _Connection:
    """A connection that sends one request at a time, and has received all of the answer before the next.

    It closes when it is dropped: after an error or an interruption, what would come next is not known.
    """

    __slots__ = ("is_idle", "server", "socket", "used_s")

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.is_idle = False  # the server may have closed it since its last answer
        self.used_s = 0.0
        self.socket = _connected(server)

    def send(self, request: bytes) -> None:
        """Send a request; where that fails, so does receiving the answer."""
        with suppress(OSError):
            self.socket.sendall(request)

    def receive(self, start: int, stop: int, size_bytes: int) -> Content | None:
        """Return the bytes of a range that was asked for, and have the connection wait for the next request.

        Args:
            start: The first byte.
            stop: The one behind the last.
            size_bytes: The size of the file.

        Returns:
            The bytes; None: the server does not send them, but may send others.

        Raises:
            _RefusedError: It answers in another way.
            OSError: The connection has failed.
        """
        size, receive = stop - start, self.socket.recv
        late_s = time.monotonic() + _ANSWER_S
        received = receive(min(size + 2048, _RECEIVED_BYTES))
        if received:
            self.is_idle = False
        while (end := received.find(b"\r\n\r\n")) < 0:
            part = receive(_RECEIVED_BYTES)
            _check_time(late_s)
            if not part or len(received) > _LONGEST_HEAD:
                raise ConnectionError
            received += part
        head = received[: end + 2].lower()
        if not _brings(head, start, stop, size_bytes):
            return None
        content: Content = received[end + 4 :]
        if len(content) > size:
            return None
        if len(content) < size:
            content = self._all_of(content, size, late_s)
        if b"\r\nconnection: close\r\n" not in head:
            self.is_idle, self.used_s = True, time.monotonic()
            idle = _idle_of(self.server)
            idle.append(self)
            if len(idle) > _MOST_IDLE:
                idle.popleft()
        return content

    def _all_of(self, content: bytes, size: int, late_s: float) -> Content:
        """Return a content of which the beginning was received."""
        # One buffer, of which nothing is copied again.
        buffer = memoryview(bytearray(size))
        at = len(content)
        buffer[:at] = content
        while at < size:
            num_received = self.socket.recv_into(buffer[at : at + _MOST_RECEIVED_BYTES])
            _check_time(late_s)
            if not num_received:
                raise ConnectionError
            at += num_received
        return bytes(buffer) if size <= _RECEIVED_BYTES else buffer.toreadonly()


def _check_time(late_s: float) -> None:
    if time.monotonic() > late_s:
        raise TimeoutError


def _brings(head: bytes, start: int, stop: int, size_bytes: int) -> bool:
    """Return whether the head of an answer, in small letters, says that the bytes of a range follow, and no others.

    Raises:
        _RefusedError: It says that the server knows no such requests.
    """
    if not head.startswith(b"http/1.1 206"):
        status = head[9:12]
        if status.startswith(b"5") or status in _OF_ONE_REQUEST:
            return False
        raise _RefusedError
    length = _LENGTH.search(head)
    if length is None or b"\r\ntransfer-encoding:" in head or _ENCODING.search(head):
        raise _RefusedError
    has_size = int(length[1]) == stop - start
    return has_size and b"\r\ncontent-range: bytes %d-%d/%d\r\n" % (start, stop - 1, size_bytes) in head


class _RefusedError(Exception):
    """A server answers a request otherwise than by the range that was asked for."""


#: Of this process: a fork has the same sockets, and must not use them.
_idle: dict[_Server, deque[_Connection]] = {}
call_in_forks(_idle.clear)


def _idle_of(server: _Server) -> deque[_Connection]:
    return _idle.setdefault(server, deque())


def _connected(server: _Server) -> socket.socket:
    error: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM):
        found = _Socket(family, kind, protocol)
        found.settimeout(_CONNECT_S)
        try:
            found.connect(address)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if server.scheme == "https":
                found = _ssl_context().wrap_socket(found, server_hostname=server.host)
        except genuine(OSError) as raised:
            error = raised
            continue
        found.settimeout(_SILENCE_S)
        return found
    raise error or OSError


def _connections(server: _Server, count: int) -> list[_Connection]:
    """Return connections to a server that are not in use; fewer where it takes no more."""
    found: list[_Connection] = []
    idle, oldest_s = _idle_of(server), time.monotonic() - _IDLE_S
    while idle and len(found) < count:
        try:
            connection = idle.pop()
        except genuine(IndexError):  # another thread has taken it
            break
        if connection.used_s < oldest_s:
            idle.clear()  # those before it are older
            break
        found.append(connection)
    with suppress(OSError):  # what is not asked for here, another client asks for, and says what is wrong
        if len(found) == count - 1:
            found.append(_Connection(server))
        elif len(found) < count:
            in_parallel(lambda _: found.append(_Connection(server)), range(count - len(found)), _NUM_THREADS)
    return found


class Requests:
    """Requests for ranges of a file that are under way.

    It makes no second attempt and raises nothing: what it does not get, the caller asks another client for, which says
    why. To drop it closes its connections.

    Args:
        server: Who is asked.
        request: The beginning of each request, up to the range.
        spans: The ranges.
        size_bytes: The size of the file.
    """

    def __init__(self, server: _Server, request: bytes, spans: Sequence[Span], size_bytes: int) -> None:
        self._server = server
        self._request = request
        self._spans = spans
        self._size_bytes = size_bytes
        self._num_sent = 0
        self._sent: deque[_Connection] = deque()
        self.is_refused: bool = False
        """Whether the server has answered in another way."""
        for connection in _connections(server, min(len(spans), MOST_AT_ONCE)):
            self._send(connection)

    def contents(self) -> list[Content | None]:
        """Return the bytes of the ranges, once; None for those that did not come, and all that follow one that was late."""
        found: list[Content | None] = []
        for span in self._spans:
            content = self._received(self._sent.popleft(), span) if self._sent else None
            found.append(content)
            if self._num_sent < len(self._spans) and content is not None:
                for connection in _connections(self._server, 1):
                    self._send(connection)
        return found

    def _send(self, connection: _Connection) -> None:
        connection.send(self._of(self._spans[self._num_sent]))
        self._num_sent += 1
        self._sent.append(connection)

    def _of(self, span: Span) -> bytes:
        return b"%b%d-%d\r\n\r\n" % (self._request, span[0], span[1] - 1)

    def _received(self, connection: _Connection, span: Span) -> Content | None:
        try:
            try:
                return connection.receive(*span, self._size_bytes)
            except genuine(ConnectionError):
                if not connection.is_idle:
                    raise
            connection = _Connection(self._server)
            connection.send(self._of(span))
            return connection.receive(*span, self._size_bytes)
        except genuine(_RefusedError):
            self.is_refused = True
        except genuine(TimeoutError):
            self._sent.clear()  # each would take as long
            self._num_sent = len(self._spans)
        except genuine(OSError):
            pass  # the caller's other client says what is wrong
        return None


class RangeRequests:
    """The requests for ranges of one file, as it was when it was opened.

    Args:
        url: Returns the file's URL, which holds for an hour.
        headers: Go with each request.
        size_bytes: The size of the file.
        owner: The file system, where its other files are refused with this one; None: those of the same server are.
    """

    def __init__(self, url: Callable[[], str], headers: Mapping[str, str], size_bytes: int, owner: Any) -> None:
        self._url = url
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "fkat_data", **headers}
        self._size_bytes = size_bytes
        self._owner = owner
        self._server: _Server | None = None
        self._request = b""
        self._made_s = 0.0

    @classmethod
    def of(cls, file_system: Any, name: str, details: Mapping[str, Any]) -> "RangeRequests | None":
        """Return the requests for an open file of fsspec.

        Args:
            file_system: Its file system.
            name: Its name there.
            details: What the store has said of it.

        Returns:
            The requests; None: the store is another one, refuses them, or has options that they do not know.
        """
        if "s3" in file_system.protocol:
            return cls._of_s3(file_system, name, details)
        return cls._of_web(file_system, name, details) if "http" in file_system.protocol else None

    @classmethod
    def _of_s3(cls, file_system: Any, name: str, details: Mapping[str, Any]) -> "RangeRequests | None":
        if not details.get("ETag") or _refusing.get(id(file_system)) is not None:
            return None
        options = [getattr(file_system, kind, True) for kind in ("config_kwargs", "s3_additional_kwargs", "req_kw")]
        is_simple = not any(options) and set(getattr(file_system, "client_kwargs", {"?"})) <= _IN_URL
        endpoint = str(getattr(file_system, "endpoint_url", None) or "https:")
        has_detour = urllib.request.getproxies() or (os.environ.get("AWS_CA_BUNDLE") and endpoint.startswith("https:"))
        is_plain = not file_system.anon and not getattr(file_system, "version_aware", True)
        if not is_simple or not is_plain or has_detour:
            return None
        headers = {"If-Match": str(details["ETag"])}
        return cls(lambda: file_system.url(name, expires=_EXPIRES_S), headers, details["size"], file_system)

    @classmethod
    def _of_web(cls, file_system: Any, name: str, details: Mapping[str, Any]) -> "RangeRequests | None":
        # Imported here, because only files of web servers need it and a worker must start quickly.
        from fsspec.implementations import http  # noqa: PLC0415 - see above

        own_client = cast("Any", http).get_client
        if type(file_system) is not http.HTTPFileSystem or cast("Any", file_system).get_client is not own_client:
            return None
        known = cast("Any", file_system)
        headers: dict[str, str] = dict(known.kwargs.get("headers") or {})
        url = str(known.encode_url(name)).partition("#")[0]
        is_simple = set(known.kwargs) <= {"headers"} and not known.client_kwargs
        return cls(lambda: url, headers, details["size"], None) if is_simple else None

    def begin(self, spans: Sequence[Span]) -> Requests | None:
        """Ask for ranges; None: the store refuses such requests."""
        try:
            if self._server is None or time.monotonic() > self._made_s + _RENEWED_S:
                self._made_s = time.monotonic()
                self._server, self._request = _request_of(self._url(), self._headers)
            if self._server not in _refusing_servers:
                return Requests(self._server, self._request, spans, self._size_bytes)
        except genuine(Exception):  # the store's other client says what is wrong
            self.refuse()
        return None

    def refuse(self) -> None:
        """Make no more such requests to the store: it answers others."""
        if self._owner is not None:
            _refusing[id(self._owner)] = self._owner
        elif self._server is not None:
            _refusing_servers.add(self._server)


def _request_of(url: str, headers: Mapping[str, str]) -> tuple[_Server, bytes]:
    """Return whom to ask for a URL, and the beginning of a request for a range of it.

    Raises:
        ValueError: It cannot be sent as it is.
    """
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    host = parts.hostname or ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    name = f"[{host}]" if ":" in host else host
    fields = {"Host": name if port == _PORTS[parts.scheme] else f"{name}:{port}", **headers}
    lines = [f"GET {target} HTTP/1.1", *(f"{field}: {value}" for field, value in fields.items()), "Range: bytes="]
    if "@" in parts.netloc or " " in target or not host or not all(line.isprintable() for line in lines):
        raise ValueError(url)
    return _Server(parts.scheme, host, port), "\r\n".join(lines).encode("ascii")

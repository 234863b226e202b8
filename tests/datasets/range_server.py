"""A web server with ranges, whose answers a test may change."""

import contextlib
import json
import socketserver
import threading

ROWS = [{"number": number, "text": f"row {number} " * 20} for number in range(200)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


class Server(socketserver.ThreadingTCPServer):
    """Serves a file; ``answer`` says what becomes of an answer for a range, if it was asked for as this package does."""

    daemon_threads = True
    allow_reuse_address = True
    answer = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/rows.jsonl"
        self.num_connections = self.num_ranges = self.num_others = 0


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.server.num_connections += 1
        with contextlib.suppress(OSError):
            while self.answered():
                pass

    def answered(self):
        lines = []
        while (line := self.rfile.readline()).strip():
            lines.append(line.decode().strip())
        if not lines:
            return False
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        start, stop = 0, len(LINES)
        if "range" in fields:
            start, last = map(int, fields["range"].removeprefix("bytes=").split("-"))
            stop = min(last + 1, len(LINES))
        if "rows.jsonl " not in lines[0]:
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        kind = "206 Partial Content" if "range" in fields else "200 OK"
        head = {"Content-Length": stop - start, "ETag": '"1"', "Accept-Ranges": "bytes"}
        if "range" in fields:
            head["Content-Range"] = f"bytes {start}-{stop - 1}/{len(LINES)}"
        body, goes_on = LINES[start:stop], True
        if lines[0].startswith("HEAD"):
            body = b""
        elif fields.get("user-agent") == "fkat_data":
            self.server.num_ranges += 1
            if self.server.answer is not None:
                kind, body, goes_on = self.server.answer(start, stop, head) or (kind, body, goes_on)
        else:
            self.server.num_others += 1
        if kind:
            text = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            self.wfile.write(f"HTTP/1.1 {kind}\r\n{text}\r\n".encode())
        self.wfile.write(body)
        return goes_on


@contextlib.contextmanager
def serving():
    """Serve ``LINES`` as /rows.jsonl, from a thread."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

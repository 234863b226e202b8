"""A throttled store on loopback: S3's unsigned GET and HEAD, of whole objects and ranges.

    python scripts/bench/store_server.py DIRECTORY BYTES_PER_S LATENCY_S

It prints its port. All connections together get BYTES_PER_S, and each response starts after LATENCY_S. The first part of
the path is the bucket, and can be anything.
"""

import hashlib
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_PIECE_BYTES = 64 << 10


class Link:
    """The bandwidth that all connections share. Each piece waits for its turn."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def wait(self, num_bytes: int) -> None:
        with self._lock:
            self._free_at_s = max(self._free_at_s, time.monotonic()) + num_bytes / self._bytes_per_s
            due_s = self._free_at_s
        time.sleep(max(0.0, due_s - time.monotonic()))


def handler_of(directory: Path, link: Link, latency_s: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(has_body=True)

        def do_HEAD(self) -> None:
            self._answer(has_body=False)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, has_body: bool) -> None:
            time.sleep(latency_s)
            path = directory / unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]
            if not path.is_file():
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = path.read_bytes()
            requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first, last = 0, len(content) - 1
            if requested:
                first, last = int(requested[1]), min(int(requested[2] or last), last)
            self.send_response(206 if requested else 200)
            if requested:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{hashlib.md5(str(path.stat()).encode(), usedforsecurity=False).hexdigest()}"')
            self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
            self.end_headers()
            if has_body:
                body = memoryview(content)[first : last + 1]
                for start in range(0, len(body), _PIECE_BYTES):
                    piece = body[start : start + _PIECE_BYTES]
                    link.wait(len(piece))
                    self.wfile.write(piece)

    return Handler


def main() -> None:
    directory, bytes_per_s, latency_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(directory, Link(bytes_per_s), latency_s))
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

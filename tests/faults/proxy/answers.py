"""Right answers: from a directory, or from the server behind."""

import hashlib
import http.client
import re
from dataclasses import dataclass
from email.utils import formatdate
from urllib.parse import unquote, urlsplit

__all__ = ["Answer", "from_directory", "from_server"]


@dataclass(frozen=True)
class Answer:
    """What is sent. Its length is not among the headers."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes


def from_directory(directory, method, target, headers):
    path = directory / unquote(urlsplit(target).path).lstrip("/")
    if not path.is_file():
        return Answer(404, "Not Found", {}, b"")
    content = path.read_bytes()
    tag = f'"{hashlib.md5(content).hexdigest()}"'
    known = {"ETag": tag, "Accept-Ranges": "bytes", "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range", ""))
    if asked is None or headers.get("If-Range", tag) != tag:
        return _answer(200, "OK", known, content, method)
    first, last = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
    if first > last:
        return Answer(416, "Range Not Satisfiable", {"Content-Range": f"bytes */{len(content)}"}, b"")
    known["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
    return _answer(206, "Partial Content", known, content[first : last + 1], method)


def _answer(status, reason, headers, body, method):
    if method == "HEAD":
        # It has the length of a body that is not there.
        return Answer(status, reason, {**headers, "Content-Length": str(len(body))}, b"")
    return Answer(status, reason, headers, body)


def from_server(url, method, target, headers):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for key, value in headers.items():
            if key.lower() not in ("connection", "expect"):
                connection.putheader(key, value)
        connection.putheader("Connection", "close")
        connection.endheaders()
        response = connection.getresponse()
        body = response.read()
        dropped = {"connection", "transfer-encoding", "keep-alive", "date"} | (
            set() if method == "HEAD" else {"content-length"}
        )
        kept = {key.title(): value for key, value in response.getheaders() if key.lower() not in dropped}
        return Answer(response.status, response.reason, kept, body)
    finally:
        connection.close()

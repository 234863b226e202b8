"""A small Hugging Face hub on loopback, with the hub's routes: commits, lists of files, files, and a CDN beside it."""

import hashlib
import importlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

__all__ = ["Hub", "be_the_hub", "hub_server"]

_API = re.compile(r"/api/datasets/(?P<name>[^/]+/[^/]+)/(?P<verb>revision|tree)/(?P<rest>.+)")
_FILE = re.compile(r"/datasets/(?P<name>[^/]+/[^/]+)/resolve/(?P<commit>[^/]+)/(?P<path>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
SIGNATURE = "X-Amz-Signature=0123456789abcdef"


class Hub:
    """What the server has, and what it was asked."""

    def __init__(self):
        self.repositories = {"owner/name": {}}  # name -> revision or commit -> path -> content
        self.branches = {}  # (name, revision) -> commit
        self.token = None
        self.faults = []  # (text in the URL, status, headers): each once
        self.requests = []  # (method, URL, Authorization, Range)
        self.page_size = 1000
        self.cdn_lives = True
        self.url = self.cdn_url = ""
        self.lock = threading.Lock()

    def push(self, files, revision="main", name="owner/name"):
        """Make a commit of all files of a revision; return its name."""
        content = {path: bytes(data) for path, data in files.items()}
        text = repr((revision, sorted(content.items()), len(self.repositories[name])))
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.repositories[name][commit] = content
        self.branches[name, revision] = commit
        return commit

    def asked(self, text, method=None):
        return [asked for asked in self.requests if text in asked[1] and method in (None, asked[0])]


def oid_of(content):
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def is_large(path):
    return path.endswith((".parquet", ".mds"))


def hash_of(content):
    return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.server.hub
        asked = (self.command, self.path, self.headers.get("Authorization"), self.headers.get("Range"))
        with hub.lock:
            hub.requests.append(asked)
            fault = next((fault for fault in hub.faults if fault[0] in self.path), None)
            if fault:
                hub.faults.remove(fault)
        if fault:
            return self._send(fault[1], b"", fault[2])
        url = urlsplit(self.path)
        if url.path.startswith("/cdn/"):
            return self._cdn(url)
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._error(401, "RepoNotFound", "Repository not found")
        found = _API.fullmatch(url.path)
        if found:
            return self._api(found, parse_qs(url.query))
        found = _FILE.fullmatch(url.path)
        return self._file(found) if found else self._error(404, "RepoNotFound", "Repository not found")

    do_HEAD = do_GET  # noqa: N815 - the name that http.server asks for

    def _api(self, found, query):
        hub = self.server.hub
        name, verb, rest = found["name"], found["verb"], found["rest"]
        if name not in hub.repositories:
            return self._error(404, "RepoNotFound", "Repository not found")
        commits = hub.repositories[name]
        if verb == "revision":
            revision = unquote(rest)
            commit = hub.branches.get((name, revision), revision if revision in commits else None)
            if commit is None:
                return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return self._json({"id": name, "sha": commit, "private": False})
        commit, _, folder = rest.partition("/")
        if commit not in commits:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {commit}")
        return self._tree(commits[commit], unquote(folder), query)

    def _tree(self, files, folder, query):
        below = f"{folder}/" if folder else ""
        is_recursive = query.get("recursive") == ["true"]
        entries = {}
        for path, content in sorted(files.items()):
            if not path.startswith(below):
                continue
            parts = path.removeprefix(below).split("/")
            for depth in range(1, len(parts)):
                inner = below + "/".join(parts[:depth])
                members = sorted((other, data) for other, data in files.items() if other.startswith(f"{inner}/"))
                if is_recursive or depth == 1:
                    entries[inner] = {
                        "type": "directory",
                        "oid": oid_of(repr(members).encode()),
                        "size": 0,
                        "path": inner,
                    }
            if is_recursive or len(parts) == 1:
                entries[path] = {"type": "file", "oid": oid_of(content), "size": len(content), "path": path}
                if is_large(path):
                    pointer = hash_of(content).encode()
                    large = {"oid": hash_of(content), "size": len(content), "pointerSize": 134}
                    entries[path] |= {"oid": oid_of(pointer), "lfs": large}
        if not entries and folder:
            return self._error(404, "EntryNotFound", f"{folder} does not exist")
        items = list(entries.values())
        start = int(query.get("cursor", ["0"])[0])
        size = self.server.hub.page_size
        headers = {}
        if start + size < len(items):
            path = urlsplit(self.path).path
            more = f"{self.server.hub.url}{path}?recursive={query['recursive'][0]}&cursor={start + size}"
            headers["Link"] = f'<{more}>; rel="next"'
        return self._json(items[start : start + size], headers)

    def _file(self, found):
        hub = self.server.hub
        commit, path = found["commit"], unquote(found["path"])
        commit = hub.branches.get((found["name"], unquote(commit)), commit)
        files = hub.repositories.get(found["name"], {}).get(commit)
        if files is None:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {commit}")
        if path not in files:
            return self._error(404, "EntryNotFound", "Entry not found")
        content = files[path]
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not is_large(path):
            return self._content(content, headers | {"ETag": f'"{oid_of(content)}"'})
        headers |= {"X-Linked-ETag": f'"{hash_of(content)}"', "X-Linked-Size": str(len(content))}
        signed = f"{hub.cdn_url}/cdn/{quote(found['name'])}/{commit}/{quote(path)}?{SIGNATURE}"
        return self._send(302, b"", headers | {"Location": signed})

    def _cdn(self, url):
        hub = self.server.hub
        owner, name, commit, path = url.path.removeprefix("/cdn/").split("/", 3)
        if self.command != "GET" or url.query != SIGNATURE or not hub.cdn_lives:
            return self._send(403, b"")
        content = hub.repositories[f"{owner}/{name}"][commit][unquote(path)]
        return self._content(content, {"ETag": '"of-the-cdn"'})

    def _content(self, content, headers):
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        if not found:
            return self._send(200, content, headers)
        start, stop = int(found[1]), int(found[2] or len(content) - 1) + 1
        if start >= len(content):
            return self._send(416, b"")
        part = content[start:stop]
        at = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        return self._send(206, part, headers | {"Content-Range": at})

    def _json(self, found, headers=None):
        self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _error(self, status, code, message):
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status, body, headers=None):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub):
        self.hub = hub
        super().__init__(("127.0.0.1", 0), _Handler)


@contextmanager
def hub_server():
    """A hub, and a CDN of another origin."""
    hub = Hub()
    servers = [_Server(hub) for _ in range(2)]
    hub.url, hub.cdn_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def be_the_hub(hub, monkeypatch, folder):
    """Have the hub's library know this hub, and no token."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)

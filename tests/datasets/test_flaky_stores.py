"""Map-style datasets of a server that fails now and then, is silent or slow: right samples, or an error in bounded time."""

import contextlib
import http.server
import random
import threading
import time
from collections import Counter

import numpy as np
import pytest
from archive_examples import archive
from small_files import json_lines, npy, parquet, rows

from fkat_data.datasets import IterableParquetDataset, JsonDataset, ParquetDataset, TarDataset, TokenWindows
from fkat_data.errors import DownloadError, ShardNotFoundError
from fkat_data.files import range_requests
from fkat_data.samplers import FsShardSampler
from fkat_data.storage import store_errors

ROWS = rows(300)
FILES = {
    "/rows.jsonl": json_lines(ROWS),
    "/rows.parquet": parquet(ROWS, row_group_size=30),
    "/rows.tar": archive([(f"{number}.txt", b"hello %d" % number) for number in range(300)]),
    "/tokens.npy": npy(np.arange(400, dtype=np.uint16)),
}


def by_index(kind, *arguments):
    def read(url):
        dataset = kind(url, *arguments)
        order = list(range(len(dataset)))
        random.Random(1).shuffle(order)
        batches = [dataset.__getitems__(order[start : start + 7]) for start in range(0, 28, 7)]
        return [str(sample) for batch in batches for sample in batch] + [str(dataset[0])]

    return read


READERS = {
    "lines": (by_index(JsonDataset), "rows.jsonl"),
    "Parquet": (by_index(ParquetDataset), "rows.parquet"),
    "Parquet in order": (lambda url: [str(row) for row in IterableParquetDataset(url)], "rows.parquet"),
    "tar": (by_index(TarDataset), "rows.tar"),
    "tokens": (by_index(TokenWindows, 4), "tokens.npy"),
    "a listing": (lambda url: list(map(str, FsShardSampler(url))), "rows.jsonl"),
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_GET(self):
        server, content, span = self.server, FILES.get(self.path), self.headers.get("Range", "")
        key = self.command, self.path, span
        server.num_asked[key] += 1
        fail = server.fail if server.num_asked[key] <= server.num_failures else None
        if fail is not None and (span or not server.is_of_ranges):
            fail(self)
            return
        if content is None:
            self.send_error(404)
            return
        start, _, last = span.removeprefix("bytes=").partition("-")
        part = content[int(start) : int(last) + 1] if span else content
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    def log_message(self, *_):
        pass


def says(status):
    def fail(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return fail


def closes(handler):
    handler.close_connection = True


def is_silent(handler):
    handler.server.is_over.wait(20)
    handler.close_connection = True


def trickles(handler):
    if handler.command == "HEAD":
        is_silent(handler)
        return
    handler.send_response(206)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.server.is_over.wait(0.05):
            handler.wfile.write(b"x")
    handler.close_connection = True


@contextlib.contextmanager
def serving(fail=None, num_failures=0, *, is_of_ranges=False):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.num_asked, server.fail, server.num_failures = Counter(), fail, num_failures
        server.is_of_ranges, server.is_over = is_of_ranges, threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.is_over.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _quick(monkeypatch, processes):
    monkeypatch.setattr(random.SystemRandom, "uniform", lambda *_: 0.0)
    monkeypatch.setattr(range_requests, "_refusing_servers", set())


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fail", [says(503), closes], ids=["503", "closed"])
@pytest.mark.parametrize("num_failures", [1, 2])
def test_a_request_that_fails_is_made_again(reader, fail, num_failures):
    read, name = READERS[reader]
    with serving() as (_, url):
        expected = [text.removeprefix(url) for text in read(f"{url}/{name}")]
    with serving(fail, num_failures) as (server, url):
        assert [text.removeprefix(url) for text in read(f"{url}/{name}")] == expected
        assert max(server.num_asked.values()) > num_failures


@pytest.mark.parametrize("reader", ["lines", "Parquet", "tar"])
@pytest.mark.parametrize("fail", [is_silent, trickles])
@pytest.mark.parametrize("is_of_ranges", [False, True])
def test_a_server_that_is_silent_or_slow_is_an_error_in_time(reader, fail, is_of_ranges, monkeypatch):
    monkeypatch.setattr(store_errors, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(range_requests, "_SILENCE_S", 0.3)
    monkeypatch.setattr(range_requests, "_ANSWER_S", 0.3)
    read, name = READERS[reader]
    with serving(fail, 10**9, is_of_ranges=is_of_ranges) as (_, url):
        began_s = time.monotonic()
        with pytest.raises(DownloadError, match=rf"{name}.*download failed after 3 attempts") as caught:
            read(f"{url}/{name}")
        assert time.monotonic() - began_s < 10
        assert [text for text, _ in caught.value.causes] == ["no answer within 0.3 s"] * 3


def test_a_server_that_always_fails_is_an_error_that_names_each_attempt():
    with serving(says(503), 10**9) as (_, url), pytest.raises(DownloadError) as caught:
        JsonDataset(f"{url}/rows.jsonl")
    assert caught.value.num_attempts == 3
    assert all("503" in text for text, _ in caught.value.causes)


def test_what_is_refused_or_missing_is_asked_for_once():
    with serving(says(403), 10**9) as (_, url), pytest.raises(DownloadError, match="403") as caught:
        ParquetDataset(f"{url}/rows.parquet")
    assert caught.value.is_refused
    assert caught.value.num_attempts == 1
    with serving() as (server, url), pytest.raises(ShardNotFoundError):
        ParquetDataset(f"{url}/none.parquet")
    assert server.num_asked["HEAD", "/none.parquet", ""] == 1

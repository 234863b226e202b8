"""Files of web servers as they are: without ranges, without a size, with a Content-Encoding, with percents in their URLs."""

import contextlib
import gzip
import http.server
import random
import threading
from urllib.parse import unquote

import numpy as np
import pytest
from archive_examples import archive
from small_files import json_lines, npy, parquet, rows

from fkat_data.datasets import (
    IterableJsonDataset,
    IterableParquetDataset,
    JsonDataset,
    ParquetDataset,
    TarDataset,
    TokenWindows,
)
from fkat_data.errors import ConfigurationError, DownloadError, ShardNotFoundError
from fkat_data.streaming import Stream, StreamingDataset

ROWS = rows(200)
LINES = json_lines(ROWS)
#: fsspec asks for as much at a time: the files are larger.
BLOCK_BYTES = 1000
OPTIONS = {"block_size": BLOCK_BYTES}


def table(samples=ROWS):
    return parquet(samples, compression="none", use_dictionary=False)


@contextlib.contextmanager
def serving(files, *, has_ranges=False, has_size=True, encodes="never", headers=(), cut_bytes=0):
    """Serve files by name; yields the URL of their folder and the paths that were asked for.

    ``encodes``: "never", "asked" for gzip, or "always", whatever was asked for.
    """
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked.append(self.path)
            content = files.get(unquote(self.path).removeprefix("/folder/"))
            if content is None:
                self.send_error(404)
                return
            takes_gzip = "gzip" in self.headers.get("Accept-Encoding", "")
            is_encoded = encodes == "always" or (encodes == "asked" and takes_gzip)
            body = gzip.compress(content) if is_encoded else content
            span = self.headers.get("Range")
            if has_ranges and span and not is_encoded:
                first, _, last = span.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last) + 1 if last else len(body), len(body))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(body)}")
                body = body[start:stop]
            else:
                self.send_response(200)
            if is_encoded:
                self.send_header("Content-Encoding", "gzip")
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("ETag", '"1"')
            self.send_header("Connection", "close")
            if has_size:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.close_connection = True
            if self.command == "GET":
                self.wfile.write(body[: len(body) - cut_bytes])

        do_HEAD = do_GET  # noqa: N815 - as http.server has it

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/folder", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


SERVERS = {
    "no ranges": {},
    "no ranges, and says so": {"headers": [("Accept-Ranges", "none")]},
    "no ranges, no size": {"has_size": False},
    "compresses, whatever is asked for": {"encodes": "always"},
    "compresses where it may, and has no ranges then": {"encodes": "asked", "has_ranges": True},
}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_lines_are_read_of_any_server(server, name, processes):
    content = LINES if name.endswith("l") else gzip.compress(LINES)
    with serving({name: content}, **SERVERS[server]) as (url, _):
        assert list(IterableJsonDataset(f"{url}/{name}", storage_options=OPTIONS)) == ROWS
        dataset = JsonDataset(f"{url}/{name}", storage_options=OPTIONS)
        assert dataset.__getitems__([199, 0, 100]) == [ROWS[199], ROWS[0], ROWS[100]]
        assert [dataset[index] for index in (0, 199)] == [ROWS[0], ROWS[199]]


@pytest.mark.parametrize("server", ["no ranges", "no ranges, and says so", "no ranges, no size"])
def test_a_reader_that_needs_ranges_says_so_with_the_url(server, processes):
    # More than is read of a file's end at once.
    texts = [{"text": random.Random(number).randbytes(2000).hex()} for number in range(100)]
    files = {
        "rows.parquet": table(texts),
        "rows.tar": archive([(f"{number}.txt", bytes(5000)) for number in range(9)]),
        "tokens.npy": npy(np.zeros(400_000, np.uint16)),
    }
    with serving(files, **SERVERS[server]) as (url, _):
        for read, name in [
            (ParquetDataset, "rows.parquet"),
            (lambda path, **options: list(IterableParquetDataset(path, **options)), "rows.parquet"),
            (lambda path, **options: TokenWindows(path, 10, **options).__getitems__([30_000]), "tokens.npy"),
            (lambda path, **options: TarDataset(path, **options)[8], "rows.tar"),
        ]:
            with pytest.raises(ConfigurationError, match=rf"folder/{name}.*ranges.*download the file"):
                read(f"{url}/{name}", storage_options=OPTIONS)


def test_an_answer_that_is_cut_off_is_an_error_with_the_url_and_no_shorter_file(processes):
    with serving({"rows.jsonl": LINES}, cut_bytes=500) as (url, _):
        for read in (JsonDataset, lambda *arguments, **options: list(IterableJsonDataset(*arguments, **options))):
            with pytest.raises(DownloadError, match=r"folder/rows\.jsonl"):
                read(f"{url}/rows.jsonl", storage_options=OPTIONS)


def test_a_missing_file_of_a_server_is_not_found(processes):
    with serving({}) as (url, _), pytest.raises(ShardNotFoundError, match=r"folder/rows\.jsonl"):
        list(IterableJsonDataset(f"{url}/rows.jsonl"))


NAMES = ["a b.parquet", "a%20b.parquet", "100%.parquet", "é.parquet", "a+b.parquet", "a#b.parquet"]


@pytest.mark.parametrize(
    "written", ["a%20b", "a b", "%C3%A9", "é", "a+b", "a%2Bb", "100%25", "a%23b", "a%3Fb", "run%5B1%5D"]
)
def test_a_url_means_the_same_file_for_datasets_and_streams(tmp_path, written, processes):
    name = f"{unquote(written)}.parquet"
    with serving({name: table()}, has_ranges=True) as (url, _):
        location = f"{url}/{written}.parquet"
        assert ParquetDataset(location)[0] == ROWS[0]
        stream = Stream(remote=location, local=str(tmp_path), download_retry=0)
        assert StreamingDataset(streams=[stream], batch_size=1)[0] == ROWS[0]


def test_a_stream_of_files_that_a_server_compresses_is_an_error_that_says_so(tmp_path, processes):
    with serving({"rows.parquet": table()}, encodes="always") as (url, _):
        stream = Stream(remote=f"{url}/rows.parquet", local=str(tmp_path), download_retry=0)
        with pytest.raises(ConfigurationError, match=r"folder/rows\.parquet.*Content-Encoding: gzip"):
            StreamingDataset(streams=[stream], batch_size=1)

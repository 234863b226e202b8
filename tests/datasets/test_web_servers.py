"""Files of web servers as they are: without ranges, without a size, with a Content-Encoding, with percents in their URLs."""

import contextlib
import gzip
import http.server
import random
import threading
from functools import cache, partial
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
from fkat_data.errors import ConfigurationError, DownloadError, ShardCorruptError, ShardNotFoundError
from fkat_data.samplers import FsShardSampler
from fkat_data.streaming import Stream, StreamingDataset
from fkat_data.tools import convert

ROWS = rows(200)
LINES = json_lines(ROWS)
#: fsspec asks for as much at a time: the files are larger.
BLOCK_BYTES = 1000
OPTIONS = {"block_size": BLOCK_BYTES}


def table(samples=ROWS):
    return parquet(samples, compression="none", use_dictionary=False)


@contextlib.contextmanager
def serving(
    files,
    *,
    has_ranges=False,
    has_size=True,
    encodes="never",
    headers=(),
    cut_bytes=0,
    head=200,
    moves=False,
    plain=(),
    knows_size=True,
):
    """Serve files by name; yields the URL of their folder and the paths that were asked for.

    ``encodes``: "never", "asked" for gzip, or "always", whatever was asked for. ``head``: the status of answers to HEAD.
    ``moves``: whether a file is found where another answer leads to. ``plain``: ends of names that are never encoded.
    ``has_size``: whether answers have a Content-Length; "ranges": those to requests for ranges alone. ``knows_size``:
    whether a Content-Range has the size of the file.
    """
    asked = []
    encoded = cache(partial(gzip.compress, compresslevel=1))

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked.append(self.path)
            content = files.get(unquote(self.path).replace("/moved/", "/folder/").removeprefix("/folder/"))
            status = head if self.command == "HEAD" else 200
            status = 302 if moves and "/moved/" not in self.path and status == 200 else status
            status = 404 if content is None and status == 200 else status
            if status == 200:
                self.answer(content)
                return
            self.send_response(status)
            self.send_header("Location", self.path.replace("/folder/", "/moved/"))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def answer(self, content):
            takes_gzip = "gzip" in self.headers.get("Accept-Encoding", "")
            is_encoded = encodes == "always" or (encodes == "asked" and takes_gzip)
            is_encoded = is_encoded and not self.path.endswith(plain or "?")
            body = encoded(content) if is_encoded else content
            span = self.headers.get("Range")
            if has_ranges and span and not is_encoded:
                first, _, last = span.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last) + 1 if last else len(body), len(body))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(body) if knows_size else '*'}")
                body = body[start:stop]
            else:
                self.send_response(200)
            if is_encoded:
                self.send_header("Content-Encoding", "gzip")
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("ETag", '"1"')
            self.send_header("Connection", "close")
            if has_size is True or (has_size and body is not content):
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
    "no size, also with ranges": {"has_size": False, "has_ranges": True, "knows_size": False},
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


def test_an_empty_file_of_a_server_is_empty_and_has_nothing_to_do_with_ranges(processes):
    for server in SERVERS.values():
        with serving({"rows.parquet": b"", "rows.jsonl": b""}, **server) as (url, _):
            assert len(JsonDataset(f"{url}/rows.jsonl")) == len(list(IterableJsonDataset(f"{url}/rows.jsonl"))) == 0
    with (
        serving({"rows.parquet": b""}) as (url, _),
        pytest.raises(ShardCorruptError, match=r"rows\.parquet.*not a Par"),
    ):
        ParquetDataset(f"{url}/rows.parquet")


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


TEXTS = [{"number": number, "text": random.Random(number).randbytes(2000).hex()} for number in range(100)]
#: What each reader gives of the server, and where its file is.
READERS = {
    "lines by index": ("rows.jsonl", lambda url, _: [JsonDataset(url)[index]["number"] for index in (99, 0)]),
    "lines in order": ("rows.jsonl", lambda url, _: [row["number"] for row in IterableJsonDataset(url)][::-99]),
    "Parquet by index": ("rows.parquet", lambda url, _: [ParquetDataset(url)[index]["number"] for index in (99, 0)]),
    "Parquet in order": ("rows.parquet", lambda url, _: [row["number"] for row in IterableParquetDataset(url)][::-99]),
    "tar": ("rows.tar", lambda url, _: [TarDataset(url, ["cls"], decode="integer")[index]["cls"] for index in (99, 0)]),
    "tokens": ("rows.npy", lambda url, _: [TokenWindows(url, 1)[index].item() // 1000 for index in (99_999, 0)]),
    "sampler": (
        "rows.jsonl",
        lambda url, _: [JsonDataset(shard)[index]["number"] for shard in FsShardSampler(url) for index in (99, 0)],
    ),
    "stream of Parquet": ("rows.parquet", lambda url, out: streamed(url, out, "number")),
    "stream of tar": ("rows.tar", lambda url, out: streamed(url, out, "cls")),
    "stream of tokens": (
        "rows.npy",
        lambda url, out: [index // 1000 for index in streamed(url, out, "tokens", tokens={"window_size": 1})],
    ),
    "stream of shards": ("shards", lambda url, out: streamed(url, out, "number")),
    "stream of compressed shards": ("compressed", lambda url, out: streamed(url, out, "number")),
}


def streamed(url, out, column, **settings):
    dataset = StreamingDataset(streams=[Stream(remote=url, local=str(out), download_retry=0, **settings)], batch_size=1)
    return [np.asarray(dataset[index][column]).item() for index in (len(dataset) - 1, 0)]


@pytest.fixture(scope="module")
def web_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    (folder / "rows.jsonl").write_bytes(json_lines(TEXTS))
    convert(folder / "rows.jsonl", str(folder / "shards"))
    convert(folder / "rows.jsonl", str(folder / "compressed"), compression="zstd")
    (folder / "rows.parquet").write_bytes(parquet(TEXTS, row_group_size=25))
    (folder / "rows.tar").write_bytes(
        archive(
            [(f"{n:03}.{end}", b"%d" % n + b" " * 9000 * (end == "txt")) for n in range(100) for end in ("cls", "txt")]
        )
    )
    (folder / "rows.npy").write_bytes(npy(np.arange(100_000, dtype=np.uint32)))
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


RANGES, ENCODING, SIZE = "answers requests for ranges.*download the file", "Content-Encoding: gzip", "says its size"
INDEX_ENCODING = "first bytes are gzip.*Content-Encoding"
#: By server: what it is, and what those who cannot read of it say. The others read it.
SWEPT = {
    "ranges": ({"has_ranges": True}, {}),
    "compresses where it may": ({"has_ranges": True, "encodes": "asked"}, {}),
    "redirects": ({"has_ranges": True, "moves": True}, {}),
    "no HEAD": ({"has_ranges": True, "head": 405}, {}),
    "HEAD is not implemented": ({"has_ranges": True, "head": 501}, {}),
    "signed for GET": ({"has_ranges": True, "head": 403}, {}),
    "a size with ranges alone": ({"has_ranges": True, "has_size": "ranges"}, {}),
    "a size in Content-Range alone": ({"has_ranges": True, "has_size": False}, {}),
    "no HEAD, and a size with ranges alone": ({"has_ranges": True, "head": 405, "has_size": "ranges"}, {}),
    "no HEAD, and a size in Content-Range alone": ({"has_ranges": True, "head": 405, "has_size": False}, {}),
    "no size": (
        {"has_ranges": True, "has_size": False, "knows_size": False},
        {
            "Parquet": RANGES,
            "tar": RANGES,
            "tokens": RANGES,
            **{f"stream of {kind}": SIZE for kind in ("Parquet", "tar", "tokens")},
        },
    ),
    "no ranges": (
        {},
        {"Parquet": RANGES, "tar": RANGES, "tokens": RANGES, "stream of Parquet": RANGES, "stream of tokens": RANGES},
    ),
    "no ranges, and says so": (
        {"headers": [("Accept-Ranges", "none")]},
        {"Parquet": RANGES, "tar": RANGES, "tokens": RANGES, "stream of Parquet": RANGES, "stream of tokens": RANGES},
    ),
    "no ranges, and says it has": (
        {"headers": [("Accept-Ranges", "bytes")]},
        {"Parquet": RANGES, "tar": RANGES, "tokens": RANGES, "stream of Parquet": RANGES, "stream of tokens": RANGES},
    ),
    "redirects, no ranges": (
        {"moves": True},
        {"Parquet": RANGES, "tar": RANGES, "tokens": RANGES, "stream of Parquet": RANGES, "stream of tokens": RANGES},
    ),
    "neither size nor ranges": (
        {"has_size": False},
        {
            "Parquet": RANGES,
            "tar": RANGES,
            "tokens": RANGES,
            **{f"stream of {kind}": SIZE for kind in ("Parquet", "tar", "tokens")},
        },
    ),
    "compresses all": (
        {"encodes": "always"},
        {
            "Parquet": RANGES,
            "tar": RANGES,
            "tokens": RANGES,
            **{f"stream of {kind}": ENCODING for kind in ("Parquet", "tar", "tokens")},
            **{f"stream of {kind}": INDEX_ENCODING for kind in ("shards", "compressed shards")},
        },
    ),
}


@pytest.mark.parametrize("server", SWEPT)
def test_all_readers_read_a_servers_files_or_say_what_is_wrong_with_it(tmp_path, server, web_files, processes):
    settings, wrong = SWEPT[server]
    with serving(web_files, **settings) as (url, _):
        for number, (reader, (name, read)) in enumerate(READERS.items()):
            said = next((wrong[kind] for kind in wrong if reader.startswith(kind)), None)
            if said is None:
                assert read(f"{url}/{name}", tmp_path / str(number)) == [99, 0], reader
                continue
            with pytest.raises((ConfigurationError, DownloadError), match=rf"(?s)folder/{name}.*{said}"):
                read(f"{url}/{name}", tmp_path / str(number))


def test_a_folder_of_a_server_is_listed_and_a_file_of_it_is_one_shard(processes):
    page = b'<html><a href="a%20b.jsonl">a b</a> <a href="c.jsonl">c</a></html>'
    files = {"": page, "a b.jsonl": LINES, "c.jsonl": LINES}
    with serving(files, headers=[("Content-Type", "text/html; charset=utf-8")]) as (url, _):
        assert sorted(FsShardSampler(f"{url}/")) == [f"{url}/a%20b.jsonl", f"{url}/c.jsonl"]
        for shard in FsShardSampler(f"{url}/"):
            assert list(IterableJsonDataset(shard)) == ROWS
    with serving(files) as (url, _):
        for written in ("a%20b", "a b"):
            assert list(FsShardSampler(f"{url}/{written}.jsonl")) == [f"{url}/{written}.jsonl"]
            assert list(JsonDataset(f"{url}/{written}.jsonl")) == ROWS
        with pytest.raises(ConfigurationError, match=r"folder/none\.jsonl"):
            FsShardSampler(f"{url}/none.jsonl")


def test_shards_that_a_server_compresses_are_an_error_that_says_so(tmp_path, web_files, processes):
    files = {name: content for name, content in web_files.items() if name.startswith("shards/")}
    said = pytest.raises(DownloadError, match=r"(?s)shard\.00000\.mds.*Content-Encoding: gzip")
    with serving(files, encodes="always", plain=("index.json",)) as (url, _), said:
        streamed(f"{url}/shards", tmp_path, "number")

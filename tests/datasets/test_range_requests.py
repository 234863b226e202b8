"""Ranges of web servers are asked for on connections that stay open; what a server does not send so, fsspec asks for."""

import contextlib
import json
import socketserver
import threading

import pytest

from fkat_data.datasets import JsonDataset

ROWS = [{"number": number, "text": f"row {number} " * 20} for number in range(200)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


class Server(socketserver.ThreadingTCPServer):
    """Serves a file; ``answer`` says what becomes of an answer for a range, if it was asked for as this package does."""

    daemon_threads = True
    allow_reuse_address = True
    answer = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
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


@pytest.fixture
def server(processes):
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def opened(server):
    return JsonDataset(f"http://127.0.0.1:{server.server_address[1]}/rows.jsonl")


BATCHES = [[199, 0, 100], [42], [7, 150, 90, 8, 30, 199], [199, 0, 100]]


def check(dataset):
    for batch in BATCHES:
        assert dataset.__getitems__(batch) == [ROWS[index] for index in batch]


def test_ranges_come_on_connections_that_stay_open(server):
    dataset = opened(server)
    check(dataset)
    num_connections, num_others = server.num_connections, server.num_others
    for _ in range(10):
        check(dataset)
    assert server.num_connections == num_connections
    assert server.num_others == num_others


def test_a_connection_that_the_server_has_closed_is_opened_again(server):
    def answer(start, stop, head):
        return "206 Partial Content", LINES[start:stop], False

    server.answer = answer
    dataset = opened(server)
    num_others = server.num_others
    check(dataset)
    check(dataset)
    assert server.num_others == num_others


def whole(start, stop, head):
    del head["Content-Range"]
    head["Content-Length"] = len(LINES)
    return "200 OK", LINES, True


def another_range(start, stop, head):
    head["Content-Range"] = f"bytes {start + 1}-{stop}/{len(LINES)}"
    return "206 Partial Content", LINES[start + 1 : stop + 1].ljust(stop - start), True


def of_another_file(start, stop, head):
    head["Content-Range"] = f"bytes {start}-{stop - 1}/{len(LINES) + 7}"
    return "206 Partial Content", b"x" * (stop - start), True


def shorter(start, stop, head):
    head["Content-Length"] = stop - start - 1
    return "206 Partial Content", LINES[start : stop - 1], True


def longer(start, stop, head):
    return "206 Partial Content", LINES[start:stop] + b"x", True


def in_chunks(start, stop, head):
    head["Transfer-Encoding"] = "chunked"
    size = f"{stop - start:x}\r\n".encode()
    return "206 Partial Content", size + LINES[start:stop] + b"\r\n0\r\n\r\n", True


def encoded(start, stop, head):
    head["Content-Encoding"] = "gzip"
    return "206 Partial Content", b"x" * (stop - start), True


def cut_off(start, stop, head):
    return "206 Partial Content", LINES[start : stop - 1], False


def said_to_close(start, stop, head):
    head["Connection"] = "close"
    return "206 Partial Content", LINES[start:stop], False


def led_elsewhere(start, stop, head):
    head |= {"Location": "/other", "Content-Length": 0}
    return "302 Found", b"", True


def busy(start, stop, head):
    head["Content-Length"] = 0
    return "503 Slow Down", b"", True


def no_http(start, stop, head):
    return "", b"no http\r\n\r\n", False


def endless_head(start, stop, head):
    return "", b"HTTP/1.1 206 x\r\n" + b"x: y\r\n" * 9999, False


def nothing(start, stop, head):
    return "", b"", False


ANSWERS = [whole, another_range, of_another_file, shorter, longer, in_chunks, encoded, cut_off, said_to_close]
ANSWERS += [led_elsewhere, busy, no_http, endless_head, nothing]


@pytest.mark.parametrize("answer", ANSWERS)
def test_whatever_a_server_answers_samples_are_those_of_the_file(server, answer):
    server.answer = answer
    check(opened(server))


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_between_good_ones_costs_no_sample(server, answer):
    def now_and_then(start, stop, head):
        return answer(start, stop, head) if server.num_ranges % 3 == 0 else None

    server.answer = now_and_then
    dataset = opened(server)
    check(dataset)
    check(dataset)


def test_a_server_that_does_not_know_such_requests_is_not_asked_again(server):
    server.answer = whole
    check(opened(server))
    num_ranges = server.num_ranges
    check(opened(server))
    assert server.num_ranges == num_ranges

"""Ranges of web servers are asked for on connections that stay open; what a server does not send so, fsspec asks for."""

import pytest
from range_server import LINES, ROWS, serving

from fkat_data.datasets import JsonDataset


@pytest.fixture
def server(processes):
    with serving() as server:
        yield server


def opened(server):
    return JsonDataset(server.url)


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

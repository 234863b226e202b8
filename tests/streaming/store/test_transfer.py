import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_files import info_of

from fkat_data.streaming.store.attempts import FinalError
from fkat_data.streaming.store.client import ChangedError, ContentError, TransferError
from fkat_data.streaming.store.transfer import Transfer

CONTENT = bytes(range(256)) * 4
OTHER = CONTENT[::-1]


class ScriptedBody:
    def __init__(self, answer, start):
        content, version, cut, step, has_size, shift = answer
        self.start = start if start == 0 or shift is None else min(start + shift, len(content))
        if shift == "whole":
            self.start = 0
        self.size_bytes = len(content) if has_size else None
        self.version = version
        self._rest = content[self.start :]
        self._left = len(self._rest) if cut is None else cut
        self._is_cut = cut is not None and cut < len(self._rest)
        self._step = step

    def read(self, timeout_s):
        assert timeout_s > 0
        if self._left <= 0 and self._is_cut:
            raise ConnectionResetError("cut")
        chunk = self._rest[: min(self._step, self._left)]
        self._rest = self._rest[len(chunk) :]
        self._left -= len(chunk)
        return chunk

    def close(self):
        pass


class ScriptedClient:
    """Gives the answers of a list, then right ones."""

    def __init__(self, answers, final):
        self.answers = list(answers)
        self.final = final
        self.starts = []

    def open(self, name, start, version, timeout_s):
        self.starts.append(start)
        answer = self.answers.pop(0) if self.answers else self.final
        if answer is None:
            raise TimeoutError
        shift = answer[5]
        if start and shift is None:
            return ScriptedBody((*answer[:5], "whole"), 0)
        return ScriptedBody(answer, start)


RIGHT = (CONTENT, '"1"', None, 100, True, 0)
answers = st.one_of(
    st.none(),
    st.tuples(
        st.one_of(
            st.sampled_from([CONTENT, OTHER, CONTENT[:-1], CONTENT + b"x", b""]),
            st.binary(max_size=2000),
        ),
        st.sampled_from(['"1"', '"2"', ""]),
        st.one_of(st.none(), st.integers(0, 1500)),
        st.integers(1, 700),
        st.booleans(),
        st.sampled_from([0, None, 1, 10_000]),
    ),
)


def transfer_of(client, target, algorithm="sha256"):
    info = info_of("x", CONTENT)
    return Transfer(
        client,
        "x",
        target,
        size_bytes=info.bytes,
        most_bytes=info.bytes,
        algorithm=algorithm,
        digest=info.hashes["sha256"],
    )


class Bounded(io.BytesIO):
    """A file that notices more bytes than it may have."""

    def write(self, data):
        written = super().write(data)
        assert self.tell() <= len(CONTENT)
        return written


@settings(max_examples=400, deadline=None)
@given(st.lists(answers, max_size=6))
def test_whatever_comes_what_is_accepted_is_right_and_it_is_accepted_once_answers_are_right(script):
    client = ScriptedClient(script, RIGHT)
    target = Bounded()
    transfer = transfer_of(client, target)
    for _ in range(len(script) + 2):
        try:
            transfer.attempt(1.0)
        except (TransferError, ConnectionResetError):
            continue
        break
    else:
        pytest.fail(f"not accepted after {client.starts}")
    assert target.getvalue() == CONTENT
    assert transfer.version in ('"1"', '"2"', "")


@settings(max_examples=200, deadline=None)
@given(st.lists(answers, max_size=6))
def test_a_wrong_object_is_never_accepted(script):
    client = ScriptedClient(script, (OTHER, '"1"', None, 100, True, 0))
    transfer = transfer_of(client, target := Bounded())
    for _ in range(len(script) + 4):
        try:
            transfer.attempt(1.0)
        except (TransferError, ConnectionResetError):
            continue
        assert target.getvalue() == CONTENT
        break


def test_a_transfer_goes_on_where_it_broke():
    client = ScriptedClient([(CONTENT, '"1"', 300, 100, True, 0)], RIGHT)
    transfer = transfer_of(client, target := io.BytesIO())
    with pytest.raises(ConnectionResetError):
        transfer.attempt(1.0)
    transfer.attempt(1.0)
    assert client.starts == [0, 300]
    assert target.getvalue() == CONTENT


def test_without_a_version_it_begins_anew():
    client = ScriptedClient([(CONTENT, "", 300, 100, True, 0)], RIGHT)
    transfer = transfer_of(client, target := io.BytesIO())
    with pytest.raises(ConnectionResetError):
        transfer.attempt(1.0)
    transfer.attempt(1.0)
    assert client.starts == [0, 0]
    assert target.getvalue() == CONTENT


def test_of_an_object_that_was_replaced_nothing_is_kept():
    client = ScriptedClient(
        [(OTHER, '"2"', 300, 100, True, 0)],
        RIGHT,
    )
    transfer = transfer_of(client, target := io.BytesIO())
    with pytest.raises(ConnectionResetError):
        transfer.attempt(1.0)
    with pytest.raises(ChangedError, match="replaced"):
        transfer.attempt(1.0)
    transfer.attempt(1.0)
    assert client.starts == [0, 300, 0]
    assert target.getvalue() == CONTENT


def test_without_a_size_nothing_beyond_the_limit_is_written():
    for has_size in (True, False):
        client = ScriptedClient([], (CONTENT, "", None, 100, has_size, 0))
        target = io.BytesIO()
        transfer = Transfer(client, "x", target, size_bytes=None, most_bytes=250, algorithm=None, digest="")
        with pytest.raises(ContentError, match="250"):
            transfer.attempt(1.0)
        assert len(target.getvalue()) <= 250


@pytest.mark.parametrize("content", [b"<?xml version='1.0'?><Error/>", b"\n<!DOCTYPE html><html>", b"<html></html>"])
def test_a_document_about_an_error_is_no_index(content):
    client = ScriptedClient([], (content, "", None, 100, True, 0))
    transfer = Transfer(client, "x", io.BytesIO(), size_bytes=None, most_bytes=250, algorithm=None, digest="")
    with pytest.raises(ContentError, match="document"):
        transfer.attempt(1.0)


def test_an_empty_file_arrives():
    client = ScriptedClient([], (b"", '"1"', None, 100, True, 0))
    info = info_of("x", b"")
    transfer = Transfer(
        client, "x", io.BytesIO(), size_bytes=0, most_bytes=0, algorithm="sha256", digest=info.hashes["sha256"]
    )
    transfer.attempt(1.0)
    transfer.attempt(1.0)


def test_a_disk_that_is_full_is_no_failure_of_the_store():
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(FinalError) as caught:
        transfer_of(ScriptedClient([], RIGHT), Full()).attempt(1.0)
    assert caught.value.error.errno == 28

import contextlib
import io
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import CONTENT, OTHER, ScriptedClient, store_of
from stored_files import info_of

from fkat_data.errors import DownloadError

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


def fetched(script, final, target, num_retries=8):
    client = ScriptedClient(script, final)
    store_of(client, num_retries).download("x", target, info_of("x", CONTENT), "sha256")
    assert target.getvalue() == CONTENT
    return client.starts


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


class Bounded(io.BytesIO):
    """A file that notices more bytes than it may have."""

    def write(self, data):
        written = super().write(data)
        assert self.tell() <= len(CONTENT)
        return written


SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@settings(max_examples=400, **SETTINGS)
@given(st.lists(answers, max_size=6))
def test_whatever_comes_what_is_accepted_is_right_and_it_is_accepted_once_answers_are_right(script):
    fetched(script, RIGHT, Bounded())


@settings(max_examples=200, **SETTINGS)
@given(st.lists(answers, max_size=6))
def test_a_wrong_object_is_never_accepted(script):
    with contextlib.suppress(DownloadError):
        fetched(script, (OTHER, '"1"', None, 100, True, 0), Bounded())


@pytest.mark.parametrize(
    ("version", "starts"), [('"1"', [0, 300]), ("", [0, 0])], ids=["goes on", "without a version, begins anew"]
)
def test_a_transfer_goes_on_where_it_broke(version, starts):
    assert fetched([(CONTENT, version, 300, 100, True, 0)], RIGHT, io.BytesIO()) == starts


def test_of_an_object_that_was_replaced_nothing_is_kept():
    assert fetched([(OTHER, '"2"', 300, 100, True, 0)], RIGHT, io.BytesIO()) == [0, 300, 0]


@pytest.mark.parametrize("has_size", [True, False])
def test_without_a_size_nothing_beyond_the_limit_is_read(has_size):
    with pytest.raises(DownloadError, match="250"):
        store_of(ScriptedClient([], (CONTENT, "", None, 100, has_size, 0))).read("x", 250)


@pytest.mark.parametrize("content", [b"<?xml version='1.0'?><Error/>", b"\n<!DOCTYPE html><html>", b"<html></html>"])
def test_a_document_about_an_error_is_no_index(content):
    with pytest.raises(DownloadError, match="document"):
        store_of(ScriptedClient([], (content, "", None, 100, True, 0))).read("x", 250)


def test_an_empty_file_arrives():
    store = store_of(ScriptedClient([], (b"", '"1"', None, 100, True, 0)))
    store.download("x", io.BytesIO(), info_of("x", b""), "sha256")
    assert store.read("x", 10) == (b"", '"1"')

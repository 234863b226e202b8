import logging
import pickle

import pytest
from proxy import FaultServer, fault

from fkat_data.errors import DownloadError
from fkat_data.streaming.store import Redaction, open_store

SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        (f"http://me:{SECRET}@host/x", {}, f"no http://me:{SECRET}@host/x/a"),
        (f"http://me:{SECRET}@host/x", {}, f"password {SECRET} is wrong"),
        ("http://me:s3cr3t%2Dvalue@host/x", {}, f"password {SECRET} is wrong"),
        (f"https://host/x?sig={SECRET}&v=1", {}, f"403 for https://host/x/a?sig={SECRET}&v=1"),
        ("s3://b", {}, f"url='https://b.s3/x?X-Amz-Signature={SECRET}'"),
        ("s3://b", {}, f"X-Amz-Security-Token: {SECRET}"),
        ("s3://b", {}, f"Authorization: Bearer {SECRET}"),
        ("s3://b", {}, f"AWS_SECRET_ACCESS_KEY={SECRET}"),
        ("s3://b", {"secret": SECRET}, f"got {SECRET!r}"),
        ("s3://b", {"client_kwargs": {"headers": [("x", SECRET.encode())]}}, f"got {SECRET!r}"),
    ],
)
def test_no_message_has_a_secret(url, options, text):
    redaction = Redaction(url, options)
    assert SECRET not in redaction.text(text)
    assert SECRET not in redaction.url(url)
    assert SECRET not in pickle.loads(pickle.dumps(redaction)).text(text)


def test_a_message_is_one_line_that_still_says_what_happened():
    redaction = Redaction("s3://bucket/train", {"endpoint_url": "http://host:1", "key": "abc"})
    assert redaction.text("no\n  answer from\thttp://host:1/abc") == "no answer from http://host:1/abc"
    assert len(redaction.text("x" * 10_000)) < 600
    assert redaction.url("s3://bucket/train") == "s3://bucket/train"


def test_neither_errors_nor_logs_nor_the_store_show_a_secret(processes, tmp_path, caplog):
    plan = {"a": [fault("status", status=503), fault("status", status=403)]}
    with FaultServer(tmp_path, plan) as server, caplog.at_level(logging.DEBUG):
        url = server.url.replace("http://", f"http://me:{SECRET}@") + f"/x?sig={SECRET}"
        store = open_store(url, storage_options={"headers": {"X-Token": SECRET}}, num_retries=3, timeout_s=5.0)
        with pytest.raises(DownloadError) as caught:
            store.read("a", 10)
        store.close()
    assert caught.value.num_attempts == 2
    assert SECRET not in f"{caught.value} {caught.value!r} {store!r} {store.url} {caplog.text}"
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None

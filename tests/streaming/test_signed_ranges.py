"""Ranges of an object of S3, by a signed URL, and by s3fs where the store refuses that."""

import json

import pytest
from botocore.awsrequest import AWSRequest

from fkat_data.datasets import JsonDataset
from fkat_data.errors import DownloadError

VALUES = [{"row": row, "text": "x" * (row % 50)} for row in range(500)]


def lines(values):
    return "".join(json.dumps(value) + "\n" for value in values).encode()


@pytest.fixture
def dataset(bucket):
    key = f"{bucket.prefix}/a.jsonl"
    bucket.server.put(key, lines(VALUES))
    return JsonDataset(f"s3://bucket/{key}", storage_options=bucket.server.options()), key


def botocores(monkeypatch):
    """Return the requests that botocore sends from now on."""
    sent = []
    prepare = AWSRequest.prepare
    monkeypatch.setattr(AWSRequest, "prepare", lambda request: sent.append(request.url) or prepare(request))
    return sent


def test_a_signed_url_brings_ranges_of_s3_without_botocore(dataset, monkeypatch):
    opened, _ = dataset
    opened[3]
    sent = botocores(monkeypatch)
    assert opened.__getitems__([499, 7, 250, 8]) == [VALUES[499], VALUES[7], VALUES[250], VALUES[8]]
    assert not sent


def test_an_object_that_was_replaced_is_an_error_and_never_mixes_with_the_old_one(dataset, bucket):
    opened, key = dataset
    assert opened[3] == VALUES[3]
    bucket.server.put(key, lines(VALUES[::-1]))
    with pytest.raises(DownloadError, match=r"a\.jsonl"):
        opened.__getitems__([400, 100])


@pytest.mark.parametrize("kind", ["options that are not in a signed URL", "a proxy"])
def test_what_a_signed_url_does_not_know_leaves_the_requests_to_botocore(kind, dataset, bucket, monkeypatch):
    _, key = dataset
    options = bucket.server.options()
    if kind == "a proxy":
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    else:
        options["config_kwargs"] = {"retries": {"max_attempts": 2}}
    opened = JsonDataset(f"s3://bucket/{key}", storage_options=options)
    sent = botocores(monkeypatch)
    assert opened.__getitems__([499, 7]) == [VALUES[499], VALUES[7]]
    assert len(sent) >= 2


def test_where_signed_requests_are_refused_botocore_asks_and_none_is_sent_again(dataset, bucket, monkeypatch):
    _, key = dataset
    refused = []

    def url(file_system, name, **options):
        refused.append(name)
        raise PermissionError(name)

    monkeypatch.setattr("s3fs.S3FileSystem.url", url)
    opened = JsonDataset(
        f"s3://bucket/{key}", storage_options=bucket.server.options() | {"default_block_size": 6 << 20}
    )
    assert opened.__getitems__([499, 7]) == [VALUES[499], VALUES[7]]
    assert opened.__getitems__([250, 8]) == [VALUES[250], VALUES[8]]
    assert len(refused) == 1

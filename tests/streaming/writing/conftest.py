"""A bucket to write to."""

import pytest


@pytest.fixture
def bucket(processes, moto, monkeypatch):
    """An S3 server with an empty bucket, which the environment leads to as the reference's does."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("S3_ENDPOINT_URL", moto.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto.secret)
    yield moto
    client = moto.client()
    for found in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=found["Key"])

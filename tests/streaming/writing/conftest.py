"""A bucket to write to."""

import pytest


@pytest.fixture(scope="session")
def moto_server(shared_processes):
    import servers

    with servers.moto() as server:
        yield server


@pytest.fixture
def bucket(processes, moto_server, monkeypatch):
    """An S3 server with an empty bucket, which the environment leads to as the reference's does."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("S3_ENDPOINT_URL", moto_server.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto_server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto_server.secret)
    yield moto_server
    client = moto_server.client()
    for found in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=found["Key"])

import contextlib
import importlib.util
import os
from pathlib import Path

import pytest
from forks import in_child
from stored_files import CONTENTS, fetch, info_of, write_into

from fkat_data.errors import ConfigurationError, DownloadError, ShardCorruptError
from fkat_data.streaming.formats import FileInfo
from fkat_data.streaming.store import open_store

NAME = "shard.00000.mds"


def opened(url, storage_options=None, num_retries=2, timeout_s=5.0):
    return open_store(url, storage_options=storage_options, num_retries=num_retries, timeout_s=timeout_s)


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "a directory"
    path.mkdir()
    write_into(path)
    return path


@pytest.mark.parametrize("form", ["{0}", "file://{0}", "file://localhost{0}", "local://{0}"])
def test_a_directory_is_read_by_whatever_it_is_called(directory, tmp_path, form):
    store = opened(form.format(directory))
    assert fetch(store, tmp_path / "out") == store.read(NAME, 1 << 20)[0] == CONTENTS[NAME]
    assert not store.has("no")


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (FileInfo(NAME, 10, {"sha256": ""}), "size is 150,000 bytes: expected 10"),
        (FileInfo(NAME, 150_000, {"sha256": "00"}), "sha256 is .*: expected 00"),
    ],
    ids=["size", "hash"],
)
def test_a_wrong_file_of_this_machine_is_corrupt_at_once(directory, tmp_path, info, expected):
    with pytest.raises(ShardCorruptError, match=expected):
        fetch(opened(directory), tmp_path / "out", NAME, info=info)


def test_a_hash_that_the_index_lacks_is_asked_for_in_vain(directory, tmp_path):
    with pytest.raises(ConfigurationError, match=r"validate_hash.*md5.*sha256"):
        fetch(opened(directory), tmp_path / "out", algorithm="md5")


def test_what_is_no_regular_file_is_not_opened(directory, tmp_path):
    os.mkfifo(directory / "pipe")
    with pytest.raises(ShardCorruptError, match="not a regular file"):
        opened(directory).read("pipe", 10)


def test_a_target_that_cannot_be_written_is_its_own_error(directory, tmp_path):
    with (
        Path("/dev/full").open("w+b", buffering=0) as full,
        pytest.raises(OSError, match="No space left"),
    ):
        opened(directory).download(NAME, full, info_of(NAME), None)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\nb", "a\\..\\b", "a\0"])
def test_a_name_that_leaves_the_directory_is_refused(directory, tmp_path, name):
    store = opened(directory)
    for call in (store.version, lambda name: store.read(name, 10)):
        with pytest.raises(ShardCorruptError, match="name"):
            call(name)


@pytest.mark.parametrize(
    ("url", "options", "argument", "expected"),
    [
        ("nosuchscheme://x/y", None, "remote", "fsspec knows"),
        ("file://elsewhere/x", None, "remote", "this machine"),
        ("s3:///key", None, "remote", "bucket"),
        ("", None, "remote", "directory"),
        ("gs://bucket/x", None, "remote", r"fkat_data\[gs\]"),
        ("hf://datasets/a/b", None, "remote", r"fkat_data\[hf\]"),
        ("az://container/x", None, "remote", r"fkat_data\[az\]"),
        ("x", [1], "storage_options", "dict"),
    ],
)
def test_what_cannot_be_opened_is_said_at_once(url, options, argument, expected):
    package = {"gs": "gcsfs", "hf": "huggingface_hub", "az": "adlfs"}.get(str(url)[:2])
    if package and importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(ConfigurationError, match=rf"{argument} = .*{expected}"):
        opened(url, options)


@pytest.mark.parametrize("way", ["web-directory", "s3-moto"])
def test_a_process_that_was_forked_opens_connections_of_its_own(through, tmp_path, way):
    store, _ = through(way, timeout_s=20.0)
    assert store.has(NAME)
    assert in_child(lambda: fetch(store, tmp_path / "child") == CONTENTS[NAME]) == 0
    assert fetch(store, tmp_path / "out") == CONTENTS[NAME]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"])
def test_an_endpoint_may_come_from_the_environment(moto_server, monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, moto_server.endpoint_url)
    store = opened("s3://bucket/train", {"key": moto_server.key, "secret": moto_server.secret})
    assert fetch(store, tmp_path / "out") == CONTENTS[NAME]
    store.close()


OF_TEAM = "[team]\naws_access_key_id = of-the-team\naws_secret_access_key = secret\n"


@pytest.mark.parametrize(
    ("options", "header", "expected"),
    [
        ({"profile": "team"}, "Authorization", b"Credential=of-the-team/"),
        ({"profile": "team", "client_kwargs": {"region_name": "eu-north-1"}}, "Authorization", b"/eu-north-1/s3/"),
        ({"key": "mine", "secret": "secret"}, "Authorization", b"Credential=mine/"),
        ({"anon": True}, "Authorization", b""),
        ({"anon": True, "requester_pays": True}, "x-amz-request-payer", b"requester"),
        ({"anon": True, "s3_additional_kwargs": {"ACL": "private"}}, "x-amz-acl", b""),
        ({"anon": True, "s3_additional_kwargs": {"ExpectedBucketOwner": "7"}}, "x-amz-expected-bucket-owner", b"7"),
        ({"anon": True, "config_kwargs": {"user_agent_extra": "of-a-test"}}, "User-Agent", b"of-a-test"),
    ],
)
def test_every_option_of_s3fs_reaches_the_requests(moto_server, monkeypatch, tmp_path, options, header, expected):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(OF_TEAM)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    store = opened("s3://bucket/train", {**options, "endpoint_url": moto_server.endpoint_url}, num_retries=0)
    sent = []
    store.client()._s3.meta.events.register("before-send.s3", lambda request, **_: sent.append(dict(request.headers)))
    with contextlib.suppress(DownloadError):  # the server refuses who is anonymous
        store.read(NAME, 1 << 20)
    found = sent[0].get(header, b"")
    found = found.encode() if isinstance(found, str) else found
    assert found == expected if expected == b"" else expected in found
    store.close()


def test_missing_credentials_are_final_and_the_message_says_so(moto_server, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = opened("s3://bucket/train", {"endpoint_url": moto_server.endpoint_url})
    with pytest.raises(DownloadError, match=r"(?i)credentials") as caught:
        store.version(NAME)
    assert caught.value.num_attempts == 1
    store.close()

"""Clients of stores that are not directories of this machine: what imports fsspec, and is imported when it is needed."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.store.bucket import BucketClient
from fkat_data.streaming.store.client import Client
from fkat_data.streaming.store.filesystem import FilesystemClient
from fkat_data.streaming.store.redaction import Redaction
from fkat_data.streaming.store.web import WebClient

__all__ = ["remote_client"]

#: What to install for a scheme, where that is an extra of ours.
_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "http": "http",
    "https": "http",
    "gs": "gs",
    "gcs": "gs",
    "hf": "hf",
} | dict.fromkeys(("az", "abfs", "abfss", "adl"), "az")
#: Where s3fs, or what it stands on, does not look, but users of the reference have said it.
_REFERENCE_ENDPOINT = "S3_ENDPOINT_URL"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", _REFERENCE_ENDPOINT)


def remote_client(scheme: str, location: str, options: dict[str, Any], redaction: Redaction) -> Callable[[], Client]:
    """Return what makes a process's client of a URL's store.

    Args:
        scheme: The URL's scheme.
        location: The URL.
        options: Those of fsspec's file system.
        redaction: What messages must not show.

    Raises:
        ConfigurationError: There is no such scheme, a package for it is missing, or the URL has no bucket.
    """
    _check_scheme(scheme, redaction.url(location))
    if "::" not in location:
        if scheme in ("http", "https"):
            return partial(WebClient, location, options)
        if scheme in ("s3", "s3a"):
            return partial(_bucket_client, *_bucket_and_prefix(location, redaction), options)
    return partial(FilesystemClient, location, options)


def _check_scheme(scheme: str, shown: str) -> None:
    if scheme in fsspec.registry:  # loaded, or registered by whoever has it
        return
    if scheme not in known_implementations:
        raise ConfigurationError("remote", shown, "a path, or a URL of a scheme that fsspec knows")
    # Looked for, and not imported: s3fs takes a third of a second, and obstore may do without it.
    known = known_implementations[scheme]
    if find_spec(known["class"].partition(".")[0]) is None:
        install = (
            f"pip install 'fkat_data[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else "the package that fsspec names"
        )
        raise ConfigurationError("remote", shown, f"{install} first ({known.get('err', 'it is not installed')})")


def _bucket_and_prefix(location: str, redaction: Redaction) -> tuple[str, str]:
    # A key may contain what ends a path elsewhere: ? and #.
    bucket, _, prefix = location.partition("://")[2].partition("/")
    if not bucket:
        raise ConfigurationError("remote", redaction.url(location), "a URL with a bucket, as s3://bucket/directory")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def _bucket_client(bucket: str, prefix: str, options: dict[str, Any]) -> Client:
    given = dict(options)
    if not given.get("endpoint_url") and not (given.get("client_kwargs") or {}).get("endpoint_url"):
        endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
        if endpoint:
            given["endpoint_url"] = endpoint
    return BucketClient(bucket, prefix, given)

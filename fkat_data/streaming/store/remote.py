"""Choose the client of a remote store. Imports fsspec, and is itself imported when a store needs it."""

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

#: scheme -> the extra to install
_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "http": "http",
    "https": "http",
    "gs": "gs",
    "gcs": "gs",
    "hf": "hf",
} | dict.fromkeys(("az", "abfs", "abfss", "adl"), "az")
#: The reference reads its endpoint from here; s3fs does not.
_REFERENCE_ENDPOINT = "S3_ENDPOINT_URL"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", _REFERENCE_ENDPOINT)


def remote_client(scheme: str, location: str, options: dict[str, Any], redaction: Redaction) -> Callable[[], Client]:
    """Return a function that makes the client of a URL's store.

    Args:
        scheme: The URL's scheme.
        location: The URL.
        options: The options of fsspec's file system.
        redaction: Removes secrets from messages.

    Raises:
        ConfigurationError: The scheme is unknown, its package is missing, or the URL has no bucket.
    """
    _check_scheme(scheme, redaction.url(location))
    if "::" not in location:
        if scheme in ("http", "https"):
            return partial(WebClient, location, options)
        if scheme in ("s3", "s3a"):
            return partial(_bucket_client, *_bucket_and_prefix(location, redaction), options)
    return partial(FilesystemClient, location, options)


def _check_scheme(scheme: str, shown: str) -> None:
    if scheme in fsspec.registry:  # loaded before, or registered by a package
        return
    if scheme not in known_implementations:
        raise ConfigurationError("remote", shown, "a path, or a URL of a scheme that fsspec knows")
    # An import would take a third of a second here, in the constructor of a dataset.
    known = known_implementations[scheme]
    if find_spec(known["class"].partition(".")[0]) is None:
        install = (
            f"pip install 'fkat_data[{_EXTRAS[scheme]}]'"
            if scheme in _EXTRAS
            else "install the package that fsspec names"
        )
        raise ConfigurationError(
            "remote", shown, f"a URL whose package is installed: {install} ({known.get('err', 'not installed')})"
        )


def _bucket_and_prefix(location: str, redaction: Redaction) -> tuple[str, str]:
    # A key may contain ? and #, which end the path of other URLs.
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

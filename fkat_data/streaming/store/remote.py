"""Choose the client of a remote store. Imports fsspec, and is itself imported when a store needs it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.store.bucket import BucketClient
from fkat_data.streaming.store.client import Client
from fkat_data.streaming.store.filesystem import FilesystemClient
from fkat_data.streaming.store.redaction import Redaction
from fkat_data.streaming.store.schemes import check_scheme, with_endpoint
from fkat_data.streaming.store.web import WebClient

__all__ = ["remote_client"]


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
    check_scheme("remote", scheme, redaction.url(location))
    if "::" not in location:
        if scheme in ("http", "https"):
            return partial(WebClient, location, options)
        if scheme in ("s3", "s3a"):
            return partial(_bucket_client, *_bucket_and_prefix(location, redaction), options)
    return partial(FilesystemClient, location, options)


def _bucket_and_prefix(location: str, redaction: Redaction) -> tuple[str, str]:
    # A key may contain ? and #, which end the path of other URLs.
    bucket, _, prefix = location.partition("://")[2].partition("/")
    if not bucket:
        raise ConfigurationError("remote", redaction.url(location), "a URL with a bucket, as s3://bucket/directory")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def _bucket_client(bucket: str, prefix: str, options: dict[str, Any]) -> Client:
    return BucketClient(bucket, prefix, with_endpoint(options))

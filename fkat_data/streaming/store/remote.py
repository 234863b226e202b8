"""Choose the client of a remote store. Imports fsspec, and is itself imported when a store needs it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.store.bucket import BucketClient
from fkat_data.streaming.store.client import Client
from fkat_data.streaming.store.filesystem import FilesystemClient
from fkat_data.streaming.store.hub import HubOpener
from fkat_data.streaming.store.hub_location import hub_location
from fkat_data.streaming.store.redaction import Redaction
from fkat_data.streaming.store.schemes import check_scheme, with_endpoint
from fkat_data.streaming.store.web import WebClient

_HUB_OPTIONS = ("token", "endpoint", "revision")


def remote_client(
    scheme: str, location: str, options: dict[str, Any], redaction: Redaction, registered: Sequence[str]
) -> Callable[[], Client]:
    """Return a function that makes the client of a URL's store.

    Args:
        scheme: The URL's scheme.
        location: The URL.
        options: The options of fsspec's file system.
        redaction: Removes secrets from messages.
        registered: The schemes that have a client of the user's, for messages.

    Raises:
        ConfigurationError: The scheme is unknown, its package is missing, or the URL has no bucket.
    """
    check_scheme("remote", scheme, redaction.url(location), registered)
    if "::" not in location:
        if scheme in ("http", "https"):
            return partial(WebClient, location, options)
        if scheme in ("s3", "s3a"):
            return partial(_bucket_client, *_bucket_and_prefix(location, redaction), options)
        if scheme == "hf" and not location.startswith("hf://buckets/"):
            return _hub_opener(location, options)
    return partial(FilesystemClient, location, options)


def _bucket_and_prefix(location: str, redaction: Redaction) -> tuple[str, str]:
    # A key may contain ? and #, which end the path of other URLs.
    bucket, _, prefix = location.partition("://")[2].partition("/")
    if not bucket:
        raise ConfigurationError("remote", redaction.url(location), "a URL with a bucket, as s3://bucket/directory")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def _hub_opener(location: str, options: Mapping[str, Any]) -> HubOpener:
    unknown = [name for name in options if name not in _HUB_OPTIONS]
    if unknown:
        raise ConfigurationError("storage_options", unknown[0], f"options of the hub: {', '.join(_HUB_OPTIONS)}")
    return HubOpener(hub_location(location, options.get("revision")), options)


def _bucket_client(bucket: str, prefix: str, options: dict[str, Any]) -> Client:
    return BucketClient(bucket, prefix, with_endpoint(options))

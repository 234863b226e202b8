"""Choose the client of a remote store by the scheme of its address. Imports fsspec, and is itself imported when a store needs it."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.store.attempts import Redaction
from fkat_data.streaming.store.bucket import BucketClient
from fkat_data.streaming.store.client import Client
from fkat_data.streaming.store.filesystem import FilesystemClient
from fkat_data.streaming.store.hub import HubOpener
from fkat_data.streaming.store.hub_location import hub_location
from fkat_data.streaming.store.web import WebClient

#: The schemes whose paths begin with a bucket or a container, which only its owner creates.
BUCKET_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss"})
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


def check_scheme(argument: str, scheme: str, shown: str, registered: Sequence[str] = ()) -> None:
    """Check that fsspec knows a scheme and that its package is installed, without importing it.

    Args:
        argument: Name of the caller's argument, for messages.
        scheme: The URL's scheme.
        shown: The URL without secrets.
        registered: The schemes that have a client of the user's, for messages.

    Raises:
        ConfigurationError: The scheme is unknown, or its package is missing.
    """
    if scheme in fsspec.registry:  # loaded before, or registered by a package
        return
    if scheme not in known_implementations:
        own = f" or register_store has registered ({', '.join(registered)})" if registered else ""
        raise ConfigurationError(argument, shown, f"a path, or a URL of a scheme that fsspec knows{own}")
    # An import would take a third of a second here, in the constructor of a dataset.
    known = known_implementations[scheme]
    if find_spec(known["class"].partition(".")[0]) is None:
        install = (
            f"pip install 'fkat_data[{_EXTRAS[scheme]}]'"
            if scheme in _EXTRAS
            else "install the package that fsspec names"
        )
        raise ConfigurationError(
            argument, shown, f"a URL whose package is installed: {install} ({known.get('err', 'not installed')})"
        )


def with_endpoint(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an S3 file system with the endpoint of the environment, unless they have their own."""
    given = dict(options)
    if not given.get("endpoint_url") and not (given.get("client_kwargs") or {}).get("endpoint_url"):
        endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
        if endpoint:
            given["endpoint_url"] = endpoint
    return given


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

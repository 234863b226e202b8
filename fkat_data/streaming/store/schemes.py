"""Check the scheme of a remote store, and find its endpoint. Imports fsspec."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from fkat_data.errors import ConfigurationError

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

"""Open the store of a URL."""

import importlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.location import path_of, resolved
from fkat_data.streaming.store.client import Client
from fkat_data.streaming.store.directory_client import DirectoryClient
from fkat_data.streaming.store.options import given_options
from fkat_data.streaming.store.redaction import Redaction
from fkat_data.streaming.store.store import Store

__all__ = ["open_store"]


def open_store(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None, num_retries: int, timeout_s: float
) -> Store:
    """Return the store of a remote directory, without connecting to it yet.

    Args:
        url: A directory: a path, or a URL that fsspec opens, such as ``s3://bucket/directory``.
        storage_options: The options of fsspec's file system for the URL. Its library looks up the others in its usual
            places: the environment, ``~/.aws``, and so on.
        num_retries: How often a failed attempt is followed by another one.
        timeout_s: Seconds that an attempt may take for each 64 MiB.

    Raises:
        ConfigurationError: An argument is invalid, the scheme is unknown, or its package is missing.
    """
    arguments.integer("num_retries", num_retries, minimum=0)
    arguments.seconds("timeout_s", timeout_s)
    location = resolved("remote", url)
    options = given_options(storage_options)
    redaction = Redaction(location, options)
    make_client = _client_of(location, options, redaction)
    return Store(
        location,
        make_client,
        redaction,
        num_retries=num_retries,
        timeout_s=timeout_s,
        is_local=isinstance(make_client, partial) and make_client.func is DirectoryClient,
    )


def _client_of(location: str, options: dict[str, Any], redaction: Redaction) -> Callable[[], Client]:
    directory = path_of(location)
    if directory is not None:
        return partial(DirectoryClient, directory)
    scheme = urlsplit(location).scheme.lower()
    if "::" in location:
        scheme = location.partition("::")[0].partition("://")[0]
    if scheme == "file":
        raise ConfigurationError("remote", redaction.url(location), "a file:// URL of this machine")
    # Imported here: it takes time, and local data do not need it.
    remote = importlib.import_module("fkat_data.streaming.store.remote")
    return remote.remote_client(scheme, location, options, redaction)

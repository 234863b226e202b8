"""Open the store of a URL, with options as they are given."""

import importlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from fkat_data import arguments
from fkat_data.errors import ConfigurationError
from fkat_data.location import path_of, resolved
from fkat_data.registry import Registry
from fkat_data.streaming.store.attempts import Redaction
from fkat_data.streaming.store.client import Client
from fkat_data.streaming.store.directory_client import DirectoryClient
from fkat_data.streaming.store.store import Store


def given_options(storage_options: Any) -> dict[str, Any]:
    """Return ``storage_options`` as a dict, empty for None.

    Raises:
        ConfigurationError: They are no mapping with names as keys. The message shows no value.
    """
    if storage_options is None:
        return {}
    if isinstance(storage_options, Mapping):
        options = cast("Mapping[object, Any]", cast("object", storage_options))
        texts = {key: value for key, value in options.items() if isinstance(key, str)}
        if len(texts) == len(options):
            return texts
    # Its values may be secrets.
    shown = f"<{type(cast('object', storage_options)).__name__}>"
    raise ConfigurationError("storage_options", shown, "a dict of options of an fsspec file system, or None")


_registered: Registry[Callable[[str, dict[str, Any]], Client]] = Registry("store", lambda scheme: scheme == "file")


def register_store(name: str, make: Callable[[str, dict[str, Any]], Client]) -> None:
    """Let URLs of a scheme be read by a client of your own, in this process and in all that it starts for its data.

    It comes before what fsspec has for the scheme. Writers use file systems of fsspec and no client.

    Args:
        name: The scheme, in lower case: ``"sqlite"`` for ``sqlite:///data.db``.
        make: Makes the client, ``make(url, storage_options)``, in each process that reads: a class, or a function.

    Raises:
        ConfigurationError: ``make`` is not callable, or the name is malformed, not in lower case, or taken.
    """
    if isinstance(cast("object", name), str) and name != name.lower():
        raise ConfigurationError("name", name, "a scheme in lower case")
    _registered.add(name, make)


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
    own = _registered.get(scheme)
    if own is not None:
        return partial(own, location, options)
    if scheme == "file":
        raise ConfigurationError("remote", redaction.url(location), "a file:// URL of this machine")
    # Imported here: it takes time, and local data do not need it.
    remote = importlib.import_module("fkat_data.streaming.store.remote")
    return remote.remote_client(scheme, location, options, redaction, _registered.names)

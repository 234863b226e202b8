"""Read the files of a dataset's remote directory, and open the store of a URL."""

import importlib
import io
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError, arguments
from fkat_data.files.shard import FileInfo, Origin
from fkat_data.files.stored import hash_in_index
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.registry import Registry
from fkat_data.storage.attempts import ContentError, FinalError, Redaction, TransferError, with_attempts
from fkat_data.storage.folders import marks_of_folders
from fkat_data.storage.location import is_chain, path_of, resolved
from fkat_data.streaming.store.client import Client, ListedFile
from fkat_data.streaming.store.directory_client import DirectoryClient
from fkat_data.streaming.store.transfer import Transfer

_LARGEST_INDEX_BYTES = 256 << 20

# A forked process neither uses nor closes its copy of a client: the connections belong to the parent.
_inherited: list[Client] = []

_making = [threading.Lock()]


def _forget_threads() -> None:
    _making[0] = threading.Lock()


os.register_at_fork(after_in_child=_forget_threads)


class Store:
    """The files of one remote directory.

    A store pickles without its connections. Any number of threads may use it, and so may forked processes: each
    process opens its own connections.

    Args:
        location: URL or path of the directory.
        make_client: Makes the client of a process. It must pickle.
        redaction: Removes the secrets of the location and its options from messages.
        num_retries: How often a failed attempt is followed by another one.
        timeout_s: Seconds that an attempt may take for each 64 MiB.
        is_local: Whether this is a directory of this machine, where a failed attempt would fail again.

    Attributes:
        url: The directory without user, password and query, as messages show it.
        is_local: Whether this is a directory of this machine.
    """

    def __init__(
        self,
        location: str,
        make_client: Callable[[], Client],
        redaction: Redaction,
        *,
        num_retries: int,
        timeout_s: float,
        is_local: bool = False,
    ) -> None:
        self.url: str = redaction.url(location).removesuffix("?***")
        self._make_client = make_client
        self._redaction = redaction
        self._num_retries = num_retries
        self._timeout_s = timeout_s
        self.is_local = is_local
        self._clients: dict[int, Client] = {}

    @property
    def revision(self) -> tuple[str, str]:
        """The name of the revision that is read, and its commit; "" if the store has none, or was not asked yet."""
        return getattr(self._make_client, "revision", ("", ""))

    def download(self, name: str, target: BinaryIO, info: FileInfo | None, algorithm: str | None) -> None:
        """Write a file to ``target``, complete and as the index says.

        An attempt continues where the last one broke if the store has ranges and the file is still the same. After an
        error ``target`` holds what the attempts have written.

        An attempt has ``timeout_s`` for the first 64 MiB and as much for each further 64 MiB. It ends earlier if no
        byte arrives for 30 s, or fewer than 64 KiB/s over 30 s. A wait between attempts takes at most ``timeout_s``.
        So a file of at most 64 MiB takes at most ``(2 * num_retries + 1) * timeout_s``.

        Args:
            name: The file, relative to the directory, with slashes.
            target: An empty local file, open for writing, that can be truncated.
            info: What the index says about the file; None: unknown, and then the file may have up to 256 MiB.
            algorithm: The hash of ``info`` to compare; None: compare the size alone.

        Raises:
            ConfigurationError: ``info`` lacks the hash, or a package is missing.
            ShardNotFoundError: The file does not exist.
            ShardCorruptError: The name leaves the directory; or a file of this machine has another size or hash.
            DownloadError: Each attempt failed, or one failed in a way that another would repeat.
            OSError: ``target`` cannot be written, or a file of this machine cannot be read.
        """
        if info is None:
            self._transferred(name, target, size_bytes=None, most_bytes=_LARGEST_INDEX_BYTES)
            return
        self._transferred(
            name,
            target,
            size_bytes=info.bytes,
            most_bytes=info.bytes,
            algorithm=algorithm,
            digest="" if algorithm is None else hash_in_index(info, algorithm, name),
        )

    def read(self, name: str, limit_bytes: int) -> tuple[bytes, str]:
        """Return a small file and its version: the store's name for this content, "" if it has none.

        Args:
            name: The file, relative to the directory, with slashes.
            limit_bytes: The largest size that is accepted.

        Raises:
            Exception: What ``download`` raises, within the same time.
        """
        buffer = io.BytesIO()
        version = self._transferred(name, buffer, size_bytes=None, most_bytes=limit_bytes)
        return buffer.getvalue(), version

    def download_part(self, origin: Origin, target: BinaryIO) -> str:
        """Write ranges of a file to ``target``, one after another, all of the version that ``origin`` states; return that.

        Args:
            origin: The file and its ranges.
            target: An empty local file, open for writing.

        Raises:
            Exception: What ``download`` raises, within the same time; a ``DownloadError`` if the file was replaced.
        """
        return self._transferred(
            origin.name,
            target,
            size_bytes=origin.size_bytes,
            most_bytes=origin.size_bytes,
            ranges=origin.ranges,
            version=origin.version,
        )

    def read_range(self, name: str, start: int, stop: int, *, size_bytes: int, version: str) -> tuple[bytes, str]:
        """Return a range of a file, and the version of the file.

        Args:
            name: The file, relative to the directory, with slashes.
            start: The first byte.
            stop: The byte after the last one.
            size_bytes: The size of the file.
            version: The version that the file must have; "": any.

        Raises:
            Exception: What ``download_part`` raises.
        """
        buffer = io.BytesIO()
        found = self.download_part(Origin(name, size_bytes, version, ((start, stop),)), buffer)
        return buffer.getvalue(), found

    def listing(self, prefix: str = "", enters: Callable[[str], bool] | None = None) -> list[ListedFile]:
        """Return the files whose names begin with ``prefix``, at any depth, sorted by name.

        Empty objects that stand for folders are left out.

        Args:
            prefix: The beginning of the names; "": all files. A web server lists nothing: it knows the one file that
                ``prefix`` names.
            enters: Whether to list a folder, given its name, in a directory of this machine; None: all are listed.

        Raises:
            Exception: What ``version`` raises, with the time for each answer.
        """

        def ask(client: Client) -> list[ListedFile]:
            if isinstance(client, DirectoryClient):
                return client.listing(prefix, self._timeout_s, enters)
            return client.listing(prefix, self._timeout_s)

        found: list[ListedFile] = self._answered(prefix.rstrip("/") or "(listing)", ask)
        marks: set[str] = set() if self.is_local else marks_of_folders({file.name: file.size_bytes for file in found})
        return sorted(file for file in found if file.name not in marks)

    def version(self, name: str, *, is_timed: bool = False) -> str:
        """Return the version of a file without reading it: the store's name for its content, "" if it has none.

        Args:
            name: The file, relative to the directory, with slashes.
            is_timed: Whether the version includes the time of writing, so that equal content written again differs.

        Raises:
            Exception: What ``download`` raises, within the same time.
        """
        return self._answered(name, lambda client: client.version(name, self._timeout_s, is_timed=is_timed))

    def is_file(self, name: str) -> bool:
        """Return whether a name is that of a file. Raises what ``version`` raises, except for a missing file."""
        try:
            self._tried(name, lambda: self.client().open(name, 0, "", self._timeout_s, 1).close())
        except ShardNotFoundError:
            return False
        return True

    def has(self, name: str) -> bool:
        """Return whether a file exists. Raises what ``version`` raises, except for a missing file."""
        try:
            self.version(name)
        except ShardNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Close the connections of this process; they reopen when they are needed."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _transferred(self, name: str, target: BinaryIO, **wanted: Any) -> str:
        """Attempt a transfer, which the first attempt makes, until it is complete; return the version."""
        transfer: Transfer | None = None

        def attempt() -> str:
            nonlocal transfer
            transfer = transfer or Transfer(self.client(), name, target, **wanted)
            transfer.attempt(self._timeout_s)
            return transfer.version

        return self._tried(name, attempt)

    def _answered(self, name: str, ask: Callable[[Client], Any]) -> Any:
        def look() -> Any:
            try:
                return ask(self.client())
            except genuine(TimeoutError) as error:
                raise TransferError(f"no answer within {self._timeout_s:g} s (timeout_s)") from error

        return self._tried(name, look)

    def _tried(self, name: str, action: Callable[[], Any]) -> Any:
        reason = reason_against(name)
        url = f"{self.url.rstrip('/')}/{name}"
        if reason is not None:
            raise ShardCorruptError(self.url, f"file name {name[:200]!r}: {reason}")
        return with_attempts(
            (lambda: _once(action, url)) if self.is_local else action,
            url=url,
            num_retries=0 if self.is_local else self._num_retries,
            timeout_s=self._timeout_s,
            redaction=self._redaction,
        )

    def client(self) -> Client:
        """Return the client of this process, which is made by the first call. Raises what making it raises."""
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            # Making a client may take a second of computing: one thread does it and the others wait.
            with _making[0]:
                client = self._clients.get(pid)
                if client is None:
                    _inherited.extend(self._clients.values())
                    client = self._clients[pid] = self._make_client()
        return client

    def __getstate__(self) -> Mapping[str, Any]:
        return self.__dict__ | {"_clients": {}}

    def __repr__(self) -> str:
        return f"Store({self.url!r})"


def _once(action: Callable[[], Any], url: str) -> Any:
    """Act on a directory of this machine, with the errors that reading its files directly would raise."""
    try:
        return action()
    except ContentError as error:
        raise FinalError(ShardCorruptError(url, str(error))) from error
    except FileNotFoundError:
        raise
    except genuine(OSError) as error:
        raise FinalError(error) from error


def reason_against(name: str) -> str | None:
    """Return why a file cannot be read by this name, relative to its directory; None if it can."""
    parts = name.split("/")
    if not name or name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        return "expected a relative path that stays in its directory"
    if any(ord(letter) < 32 or letter == "\\" for letter in name):
        return "expected a path without control characters or backslashes"
    return None


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
            locations: the environment, ``~/.aws``, and so on.
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
    if is_chain(location):
        scheme = location.partition("::")[0].partition("://")[0]
    own = _registered.get(scheme)
    if own is not None:
        return partial(own, location, options)
    if scheme == "file":
        raise ConfigurationError("remote", redaction.url(location), "a file:// URL of this machine")
    # Imported here: it takes time, and local data do not need it.
    remote = importlib.import_module("fkat_data.streaming.store.remote")
    return remote.remote_client(scheme, location, options, redaction, _registered.names)

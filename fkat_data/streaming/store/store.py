"""Read the files of a dataset's remote directory."""

import io
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.files.shard import FileInfo, Origin
from fkat_data.interruption import genuine
from fkat_data.streaming.store.attempts import FinalError, Redaction, with_attempts
from fkat_data.streaming.store.client import Body, ChangedError, Client, ContentError, ListedFile, TransferError
from fkat_data.streaming.store.pace import Pace
from fkat_data.streaming.store.transfer import Transfer, append, flush


class RangeTransfer:
    """The state of a transfer of ranges. Each attempt continues where the last one broke.

    Args:
        client: The store's client.
        origin: The object, its size and version, and the ranges. Without a version, any will do.
        target: An open, empty file, where the ranges go one after another.

    Attributes:
        version: The version of the object; known once an attempt has returned.
    """

    def __init__(self, client: Client, origin: Origin, target: BinaryIO) -> None:
        self._client = client
        self._name = origin.name
        self._target = target
        self._left = [(start, stop) for start, stop in origin.ranges if start < stop]
        self._size_bytes = origin.size_bytes
        self.version: str = origin.version

    def attempt(self, timeout_s: float) -> None:
        """Fetch the missing bytes; on return the target has all of them.

        Args:
            timeout_s: Seconds for each 64 MiB.

        Raises:
            TransferError: The transfer broke. What has arrived stays.
            FinalError: The target cannot be written.
            Exception: Whatever the client library raises.
        """
        pace = Pace(timeout_s)
        while self._left:
            start, stop = self._left[0]
            request = partial(self._client.open, self._name, start, self.version, stop=stop)
            body = pace.opened(request)
            try:
                self._check(body, start)
                self._receive(body, start, stop, pace)
            finally:
                body.close()
            self._left.pop(0)
        flush(self._target)

    def _check(self, body: Body, start: int) -> None:
        if body.size_bytes not in (None, self._size_bytes):
            raise ChangedError(
                f"size is {body.size_bytes:,} bytes: expected {self._size_bytes:,}, as when the index was made; "
                "the file was replaced, or the answer is wrong"
            )
        if self.version and body.version != self.version:
            raise ChangedError("the file was replaced after its index was made")
        if body.start != start:
            raise ContentError(f"the store sent bytes from {body.start:,} on: expected those from {start:,} on")
        self.version = body.version

    def _receive(self, body: Body, start: int, stop: int, pace: Pace) -> None:
        while start < stop:
            chunk = pace.next_bytes(body)
            if not chunk:
                raise TransferError(f"the connection ended before byte {start:,} of a range up to {stop:,}")
            chunk = chunk[: stop - start]
            append(self._target, chunk)
            start += len(chunk)
            self._left[0] = (start, stop)


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
        self._transfer(name, target, info, algorithm, _LARGEST_INDEX_BYTES)

    def read(self, name: str, limit_bytes: int) -> tuple[bytes, str]:
        """Return a small file and its version: the store's name for this content, "" if it has none.

        Args:
            name: The file, relative to the directory, with slashes.
            limit_bytes: The largest size that is accepted.

        Raises:
            Exception: What ``download`` raises, within the same time.
        """
        buffer = io.BytesIO()
        version = self._transfer(name, buffer, None, None, limit_bytes)
        return buffer.getvalue(), version

    def download_part(self, origin: Origin, target: BinaryIO) -> None:
        """Write the ranges of a file to ``target``, one after another, and all of the version that ``origin`` states.

        Args:
            origin: The file and its ranges.
            target: An empty local file, open for writing.

        Raises:
            Exception: What ``download`` raises, within the same time; a ``DownloadError`` if the file was replaced.
        """
        self._transfer_ranges(origin, target)

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
        found = self._transfer_ranges(Origin(name, size_bytes, version, ((start, stop),)), buffer)
        return buffer.getvalue(), found

    def listing(self, prefix: str = "") -> list[ListedFile]:
        """Return the files whose names begin with ``prefix``, at any depth, sorted by name.

        Args:
            prefix: The beginning of the names; "": all files. A web server lists nothing: it knows the one file that
                ``prefix`` names.

        Raises:
            Exception: What ``version`` raises, with the time for each answer.
        """

        def look() -> list[ListedFile]:
            try:
                return self.client().listing(prefix, self._timeout_s)
            except genuine(TimeoutError) as error:
                raise TransferError(f"no answer within {self._timeout_s:g} s (timeout_s)") from error

        return sorted(self._tried(prefix.rstrip("/") or "(listing)", look))

    def version(self, name: str, *, is_timed: bool = False) -> str:
        """Return the version of a file without reading it: the store's name for its content, "" if it has none.

        Args:
            name: The file, relative to the directory, with slashes.
            is_timed: Whether the version includes the time of writing, so that equal content written again differs.

        Raises:
            Exception: What ``download`` raises, within the same time.
        """

        def look() -> str:
            try:
                return self.client().version(name, self._timeout_s, is_timed=is_timed)
            except genuine(TimeoutError) as error:
                raise TransferError(f"no answer within {self._timeout_s:g} s (timeout_s)") from error

        return self._tried(name, look)

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

    def _transfer(
        self, name: str, target: BinaryIO, info: FileInfo | None, algorithm: str | None, most_bytes: int
    ) -> str:
        if info is None or algorithm is None:
            algorithm, digest = None, ""
        elif algorithm in info.hashes:
            digest = info.hashes[algorithm]
        else:
            known = ", ".join(info.hashes) or "none"
            raise ConfigurationError("validate_hash", algorithm, f"a hash that the index has for {name} ({known})")
        return self._transferred(
            name,
            lambda client: Transfer(
                client,
                name,
                target,
                size_bytes=None if info is None else info.bytes,
                most_bytes=most_bytes if info is None else info.bytes,
                algorithm=algorithm,
                digest=digest,
            ),
        )

    def _transfer_ranges(self, origin: Origin, target: BinaryIO) -> str:
        return self._transferred(origin.name, lambda client: RangeTransfer(client, origin, target))

    def _transferred(self, name: str, make: Callable[[Client], Transfer | RangeTransfer]) -> str:
        """Attempt a transfer, which the first attempt makes, until it is complete; return the version."""
        transfer: Transfer | RangeTransfer | None = None

        def attempt() -> str:
            nonlocal transfer
            transfer = transfer or make(self.client())
            transfer.attempt(self._timeout_s)
            return transfer.version

        return self._tried(name, attempt)

    def _tried(self, name: str, action: Callable[[], Any]) -> Any:
        reason = _reason_against(name)
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


def _reason_against(name: str) -> str | None:
    parts = name.split("/")
    if not name or name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        return "expected a relative path that stays in its directory"
    if any(ord(letter) < 32 or letter == "\\" for letter in name):
        return "expected a path without control characters or backslashes"
    return None

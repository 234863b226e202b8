"""A remote directory of a dataset, and its files one by one."""

import io
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from fkat_data.errors import ConfigurationError, ShardCorruptError, ShardNotFoundError
from fkat_data.streaming.formats.entry import FileInfo
from fkat_data.streaming.store.attempts import FinalError, with_attempts
from fkat_data.streaming.store.client import Client, ContentError, TransferError
from fkat_data.streaming.store.redaction import Redaction
from fkat_data.streaming.store.transfer import Transfer

__all__ = ["Store"]

_LARGEST_INDEX_BYTES = 256 << 20

# A client that a fork has copied is never used, and never closed: its connections are the parent's.
_inherited: list[Client] = []

_making = [threading.Lock()]


def _forget_threads() -> None:
    _making[0] = threading.Lock()


os.register_at_fork(after_in_child=_forget_threads)


class Store:
    """The files of one remote directory.

    It pickles without its connections. Any number of threads may use it, and processes that were forked after it was
    made: each process opens connections of its own.

    Args:
        location: URL or path of the directory.
        make_client: Makes a process's client; it pickles.
        redaction: What messages must not show of the location and its options.
        num_retries: How often an attempt that failed is followed by another one.
        timeout_s: Seconds that an attempt may take for each 64 MiB.
        is_local: Whether it is a directory of this machine, where what failed once fails again.

    Attributes:
        url: The directory, without user, password and query; messages name it.
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
        self.url = redaction.url(location).removesuffix("?***")
        self._make_client = make_client
        self._redaction = redaction
        self._num_retries = num_retries
        self._timeout_s = timeout_s
        self._is_local = is_local
        self._clients: dict[int, Client] = {}

    def download(self, name: str, target: BinaryIO, info: FileInfo | None, algorithm: str | None) -> None:
        """Write a file's bytes to ``target``; on return they are all there, and as the index says.

        An attempt goes on where the last one broke, if the store has ranges and the file is still the same. What was
        written by an attempt that failed is in ``target`` when this raises.

        An attempt has ``timeout_s`` for the first 64 MiB, as much for each further 64 MiB, and ends earlier if no
        byte comes for 30 s, or fewer than 64 KiB/s over 30 s. Waits between attempts are no longer than
        ``timeout_s``. So a file of at most 64 MiB takes ``(2 * num_retries + 1) * timeout_s`` at the very most.

        Args:
            name: The file, relative to the directory, with slashes.
            target: An empty local file, open for writing, that can be truncated.
            info: What the index says of the file; None: it is not known, and may have 256 MiB.
            algorithm: The hash of ``info`` to compare; None: the size alone.

        Raises:
            ConfigurationError: ``info`` has no such hash, or a package is missing.
            ShardNotFoundError: There is no such file.
            ShardCorruptError: The name leaves the directory; or a file of this machine has another size or hash.
            DownloadError: Each attempt failed, or one in a way that another would repeat.
            OSError: ``target`` cannot be written, or a file of this machine cannot be read.
        """
        self._transfer(name, target, info, algorithm, _LARGEST_INDEX_BYTES)

    def read(self, name: str, limit_bytes: int) -> tuple[bytes, str]:
        """Return a small file, and what the store calls this content ("" if it has no name for it).

        Args:
            name: The file, relative to the directory, with slashes.
            limit_bytes: It may not be larger.

        Raises:
            Exception: What ``download`` raises, in the same time.
        """
        buffer = io.BytesIO()
        version = self._transfer(name, buffer, None, None, limit_bytes)
        return buffer.getvalue(), version

    def version(self, name: str, *, is_timed: bool = False) -> str:
        """Return what the store calls a file's content, without reading it; "" if it has no name for it.

        Args:
            name: The file, relative to the directory, with slashes.
            is_timed: Whether the time at which it was written counts: the same content, written again, has another.

        Raises:
            Exception: What ``download`` raises, in the same time.
        """

        def look() -> str:
            try:
                return self._client().version(name, self._timeout_s, is_timed=is_timed)
            except TimeoutError as error:
                raise TransferError(f"no answer within {self._timeout_s:g} s (timeout_s)") from error

        return self._tried(name, look)

    def has(self, name: str) -> bool:
        """Return whether there is such a file; raises what ``version`` does, but for a file that is missing."""
        try:
            self.version(name)
        except ShardNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Close this process's connections; they open again when they are needed."""
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
            there = ", ".join(info.hashes) or "none"
            raise ConfigurationError("validate_hash", algorithm, f"a hash that the index has of {name} ({there})")
        transfer: Transfer | None = None

        def attempt() -> str:
            nonlocal transfer
            if transfer is None:
                transfer = Transfer(
                    self._client(),
                    name,
                    target,
                    size_bytes=None if info is None else info.bytes,
                    most_bytes=most_bytes if info is None else info.bytes,
                    algorithm=algorithm,
                    digest=digest,
                )
            transfer.attempt(self._timeout_s)
            return transfer.version

        return self._tried(name, attempt)

    def _tried(self, name: str, action: Callable[[], Any]) -> Any:
        reason = _reason_against(name)
        url = f"{self.url.rstrip('/')}/{name}"
        if reason is not None:
            raise ShardCorruptError(self.url, f"file name {name[:200]!r}: {reason}")
        return with_attempts(
            (lambda: _once(action, url)) if self._is_local else action,
            url=url,
            num_retries=0 if self._is_local else self._num_retries,
            timeout_s=self._timeout_s,
            redaction=self._redaction,
        )

    def _client(self) -> Client:
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            # Some take a second of computing: one is made, and the threads that need it too wait for it.
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
    """Do what is done with a directory of this machine: errors are the ones that a reader of the file would get."""
    try:
        return action()
    except ContentError as error:
        raise FinalError(ShardCorruptError(url, str(error))) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FinalError(error) from error


def _reason_against(name: str) -> str | None:
    parts = name.split("/")
    if not name or name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        return "expected a relative path of plain components, which stays in its directory"
    if any(ord(letter) < 32 or letter == "\\" for letter in name):
        return "expected a path without control characters and backslashes"
    return None

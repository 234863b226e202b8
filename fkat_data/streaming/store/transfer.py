"""Transfer one object to a local file, over as many attempts as it takes."""

from typing import Any, BinaryIO

from fkat_data.files.stored import new_hash
from fkat_data.interruption import genuine
from fkat_data.streaming.store.attempts import FinalError
from fkat_data.streaming.store.client import Body, ChangedError, Client, ContentError, TransferError
from fkat_data.streaming.store.pace import Pace


def append(target: BinaryIO, chunk: bytes) -> None:
    """Write bytes at the position of a file.

    Raises:
        FinalError: The file cannot be written.
    """
    try:
        view = memoryview(chunk)
        while view:
            view = view[target.write(view) :]
    except genuine(OSError) as error:
        raise FinalError(error) from error


def flush(target: BinaryIO) -> None:
    """Write what a file has buffered.

    Raises:
        FinalError: The file cannot be written.
    """
    try:
        target.flush()
    except genuine(OSError) as error:
        raise FinalError(error) from error


_HEAD_BYTES = 64
_MARKUP = (b"<?xml", b"<!doctype", b"<html", b"<error")


class Transfer:
    """The state of a transfer. Each attempt continues where the last one broke if the object is still the same.

    Args:
        client: The store's client.
        name: The object, relative to the client's directory.
        target: An open, empty, seekable file.
        size_bytes: The expected size; None: the size that the store reports.
        most_bytes: The transfer never writes more than this.
        algorithm: The hash to compare; None: compare the size alone.
        digest: The expected hash.

    Attributes:
        version: The store's name for the content; known once an attempt has returned.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        target: BinaryIO,
        *,
        size_bytes: int | None,
        most_bytes: int,
        algorithm: str | None,
        digest: str,
    ) -> None:
        self._client = client
        self._name = name
        self._target = target
        self._size_bytes = size_bytes
        self._most_bytes = most_bytes
        self._algorithm = algorithm
        self._digest = digest
        self._received_bytes = 0
        self.version: str = ""
        self._head = b""
        self._hash: Any = None if algorithm is None else new_hash(algorithm)

    def attempt(self, timeout_s: float) -> None:
        """Fetch the missing bytes; on return the target is complete and verified.

        Args:
            timeout_s: Seconds for each 64 MiB.

        Raises:
            TransferError: The transfer broke. What has arrived stays.
            ContentError: The content is wrong. The next attempt begins at the first byte.
            FinalError: The target cannot be written.
            Exception: Whatever the client library raises.
        """
        try:
            self._attempt(Pace(timeout_s))
        except ContentError:
            self._restart()
            raise

    def _attempt(self, pace: Pace) -> None:
        # Without a version, the rest might belong to another content.
        if not self.version or self._received_bytes == self._size_bytes:
            self._restart()
        body = pace.opened(
            lambda silence_s: self._client.open(self._name, self._received_bytes, self.version, silence_s)
        )
        try:
            self._check_beginning(body)
            self._receive(body, pace)
        finally:
            body.close()
        self._check_end()

    def _check_beginning(self, body: Body) -> None:
        if body.start not in (0, self._received_bytes):
            raise ContentError(
                f"the store sent bytes from {body.start:,} on: expected those from {self._received_bytes:,} on"
            )
        if body.start == 0:
            self._restart()
        elif body.version != self.version:
            raise ChangedError("the object was replaced during the transfer")
        self.version = body.version
        if body.size_bytes is None:
            return
        if self._size_bytes is None:
            if body.size_bytes > self._most_bytes:
                raise ContentError(f"size is {body.size_bytes:,} bytes: expected at most {self._most_bytes:,}")
        elif body.size_bytes != self._size_bytes:
            raise ContentError(f"size is {body.size_bytes:,} bytes: expected {self._size_bytes:,}, as in the index")

    def _receive(self, body: Body, pace: Pace) -> None:
        size_bytes = self._size_bytes if body.size_bytes is None else body.size_bytes
        # A server that has sent the announced number of bytes need not close the connection.
        while body.size_bytes is None or self._received_bytes < body.size_bytes:
            chunk = pace.next_bytes(body)
            if not chunk:
                break
            if self._received_bytes + len(chunk) > (self._most_bytes if size_bytes is None else size_bytes):
                raise ContentError(
                    f"the store sent more than {self._most_bytes if size_bytes is None else size_bytes:,} bytes"
                )
            self._write(chunk)
        if size_bytes is not None and self._received_bytes < size_bytes:
            raise TransferError(f"the connection ended after {self._received_bytes:,} of {size_bytes:,} bytes")

    def _check_end(self) -> None:
        if self._size_bytes is None and self._head.lstrip().lower().startswith(_MARKUP):
            raise ContentError(f"the store sent an XML or HTML document: {self._head!r}")
        if self._hash is not None and self._hash.hexdigest() != self._digest:
            raise ContentError(
                f"{self._algorithm} is {self._hash.hexdigest()}: expected {self._digest}, as in the index"
            )
        flush(self._target)

    def _write(self, chunk: bytes) -> None:
        append(self._target, chunk)
        self._received_bytes += len(chunk)
        self._head += chunk[: _HEAD_BYTES - len(self._head)]
        if self._hash is not None:
            self._hash.update(chunk)

    def _restart(self) -> None:
        if self._received_bytes:
            try:
                self._target.seek(0)
                self._target.truncate()
            except genuine(OSError) as error:
                raise FinalError(error) from error
        self._received_bytes = 0
        self.version = ""
        self._head = b""
        self._hash = None if self._algorithm is None else new_hash(self._algorithm)

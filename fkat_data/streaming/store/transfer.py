"""Transfer one object, or ranges of it, to a local file, over as many attempts as it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from fkat_data.files.stored import new_hash
from fkat_data.runtime.interruption import genuine
from fkat_data.storage.attempts import ChangedError, ContentError, FinalError, TransferError
from fkat_data.streaming.store.client import Body, Client, TransferClock

_HEAD_BYTES = 64
#: Behind what a server has sent from the first byte on.
_NO_RANGES = "; if it is no server that answers requests for ranges (Accept-Ranges: bytes), download the files"
_MARKUP = (b"<?xml", b"<!doctype", b"<html", b"<error")


@dataclass
class Transfer:
    """The state of a transfer. Each attempt continues where the last one broke if the object is still the same.

    Args:
        client: The store's client.
        name: The object, relative to the client's directory.
        target: An open, empty, seekable file; ranges go there one after another.
        size_bytes: The expected size of the object; None: the size that the store reports.
        most_bytes: No larger object is transferred.
        algorithm: The hash to compare; None: compare the size alone.
        digest: The expected hash.
        ranges: What to transfer; None: the whole object.
        version: The version that the object must have; "": any, but one for all ranges. Once an attempt has returned, the
            store's name for the content.
    """

    client: Client
    name: str
    target: BinaryIO
    size_bytes: int | None
    most_bytes: int
    algorithm: str | None = None
    digest: str = ""
    ranges: Sequence[tuple[int, int]] | None = None
    version: str = ""

    def __post_init__(self) -> None:
        self._left = None if self.ranges is None else [(start, stop) for start, stop in self.ranges if start < stop]
        self._received_bytes = 0
        self._head = b""
        self._hash: Any = None if self.algorithm is None else new_hash(self.algorithm)

    def attempt(self, timeout_s: float) -> None:
        """Fetch the missing bytes; on return the target is complete and verified.

        Args:
            timeout_s: Seconds for each 64 MiB.

        Raises:
            TransferError: The transfer broke. What has arrived stays.
            ContentError: The content is wrong. The next attempt at a whole object begins at the first byte.
            FinalError: The target cannot be written.
            Exception: Whatever the client library raises.
        """
        clock = TransferClock(timeout_s)
        if self._left is None:
            try:
                self._fetch_whole(clock)
            except ContentError:
                self._restart()
                raise
        while self._left:
            self._fetch_range(clock, self._left)
        try:
            self.target.flush()
        except genuine(OSError) as error:
            raise FinalError(error) from error

    def _fetch_whole(self, clock: TransferClock) -> None:
        # Without a version, the rest might belong to another content.
        if not self.version or self._received_bytes == self.size_bytes:
            self._restart()
        body = clock.opened(
            lambda silence_s: self.client.open(self.name, self._received_bytes, self.version, silence_s)
        )
        try:
            self._check_beginning(body)
            size_bytes = self.size_bytes if body.size_bytes is None else body.size_bytes
            most_bytes = self.most_bytes if size_bytes is None else size_bytes
            # A server that has sent the announced number of bytes need not close the connection.
            while self._received_bytes != body.size_bytes and (chunk := clock.next_bytes(body)):
                if self._received_bytes + len(chunk) > most_bytes:
                    raise ContentError(f"the store sent more than {most_bytes:,} bytes")
                self._write(chunk)
        finally:
            body.close()
        if size_bytes is not None and self._received_bytes < size_bytes:
            raise TransferError(f"the connection ended after {self._received_bytes:,} of {size_bytes:,} bytes")
        if self.size_bytes is None and self._head.lstrip().lower().startswith(_MARKUP):
            raise ContentError(f"the store sent an XML or HTML document: {self._head!r}")
        if self._hash is not None and self._hash.hexdigest() != self.digest:
            raise ContentError(f"{self.algorithm} is {self._hash.hexdigest()}: expected {self.digest}, as in the index")

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
        if self.size_bytes is None:
            if body.size_bytes > self.most_bytes:
                raise ContentError(f"size is {body.size_bytes:,} bytes: expected at most {self.most_bytes:,}")
        elif body.size_bytes != self.size_bytes:
            encoding = getattr(body, "encoding", "")
            sent = (
                f"; the server sends it with Content-Encoding: {encoding}, which was not asked for" if encoding else ""
            )
            raise ContentError(
                f"size is {body.size_bytes:,} bytes: expected {self.size_bytes:,}, as in the index{sent}"
            )

    def _fetch_range(self, clock: TransferClock, left: list[tuple[int, int]]) -> None:
        start, stop = left[0]
        body = clock.opened(lambda silence_s: self.client.open(self.name, start, self.version, silence_s, stop))
        try:
            if body.size_bytes not in (None, self.size_bytes):
                raise ChangedError(
                    f"size is {body.size_bytes:,} bytes: expected {self.size_bytes:,}, as when the index was made; "
                    "the file was replaced, or the answer is wrong"
                )
            if self.version and body.version != self.version:
                raise ChangedError("the file was replaced after its index was made")
            if body.start != start:
                advice = "" if body.start else _NO_RANGES
                raise ContentError(
                    f"the store sent bytes from {body.start:,} on: expected those from {start:,} on{advice}"
                )
            self.version = body.version
            while start < stop:
                chunk = clock.next_bytes(body)[: stop - start]
                if not chunk:
                    raise TransferError(f"the connection ended before byte {start:,} of a range up to {stop:,}")
                self._write(chunk)
                start += len(chunk)
                left[0] = start, stop
        finally:
            body.close()
        left.pop(0)

    def _write(self, chunk: bytes) -> None:
        try:
            view = memoryview(chunk)
            while view:
                view = view[self.target.write(view) :]
        except genuine(OSError) as error:
            raise FinalError(error) from error
        self._received_bytes += len(chunk)
        self._head += chunk[: _HEAD_BYTES - len(self._head)]
        if self._hash is not None:
            self._hash.update(chunk)

    def _restart(self) -> None:
        if self._received_bytes:
            try:
                self.target.seek(0)
                self.target.truncate()
            except genuine(OSError) as error:
                raise FinalError(error) from error
        self._received_bytes = 0
        self.version = ""
        self._head = b""
        self._hash = None if self.algorithm is None else new_hash(self.algorithm)

"""Transfer some ranges of one object, over as many attempts as it takes."""

from collections.abc import Sequence
from typing import BinaryIO

from fkat_data.streaming.store.client import Body, ChangedError, Client, ContentError, TransferError
from fkat_data.streaming.store.pace import Pace
from fkat_data.streaming.store.target import append, flush

__all__ = ["RangeTransfer"]


class RangeTransfer:
    """The state of a transfer of ranges. Each attempt continues where the last one broke.

    Args:
        client: The store's client.
        name: The object, relative to the client's directory.
        target: An open, empty file, where the ranges go one after another.
        ranges: The ranges, as pairs of the first byte and the byte after the last one.
        size_bytes: The size of the whole object.
        version: The version of the object that the ranges are of; "": any.

    Attributes:
        version: The version of the object; known once an attempt has returned.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        target: BinaryIO,
        ranges: Sequence[tuple[int, int]],
        *,
        size_bytes: int,
        version: str,
    ) -> None:
        self._client = client
        self._name = name
        self._target = target
        self._left = [(start, stop) for start, stop in ranges if start < stop]
        self._size_bytes = size_bytes
        self.version: str = version

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
            try:
                body = self._client.open(self._name, start, self.version, pace.ask(), stop)
            except TimeoutError as error:
                raise pace.late() from error
            pace.answered()
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
            try:
                chunk = body.read(pace.ask())
            except TimeoutError as error:
                raise pace.late() from error
            pace.answered(len(chunk))
            if not chunk:
                raise TransferError(f"the connection ended before byte {start:,} of a range up to {stop:,}")
            chunk = chunk[: stop - start]
            append(self._target, chunk)
            start += len(chunk)
            self._left[0] = (start, stop)

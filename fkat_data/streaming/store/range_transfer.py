"""Transfer some ranges of one object, over as many attempts as it takes."""

from functools import partial
from typing import BinaryIO

from fkat_data.streaming.formats.entry import Origin
from fkat_data.streaming.store.client import Body, ChangedError, Client, ContentError, TransferError
from fkat_data.streaming.store.pace import Pace
from fkat_data.streaming.store.target import append, flush

__all__ = ["RangeTransfer"]


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

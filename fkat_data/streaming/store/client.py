"""What a store's client does, whatever library it is made of: one request at a time, with a limit, tried once."""

from typing import Protocol

__all__ = ["Body", "ChangedError", "Client", "ContentError", "StatusError", "TransferError"]


class TransferError(Exception):
    """A transfer broke; what has arrived is good, and another attempt may go on from there."""


class ContentError(TransferError):
    """What arrived is not what it should be; another attempt begins anew."""


class ChangedError(ContentError):
    """The object is not the one that the transfer began with."""


class StatusError(TransferError):
    """A server answered, but not with what was asked for.

    Args:
        status: The status of HTTP.
        reason: What it said.
        retry_after: The header of that name; "" if there is none.
    """

    def __init__(self, status: int, reason: str, retry_after: str = "") -> None:
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        super().__init__(status, reason, retry_after)

    def __str__(self) -> str:
        return f"status {self.status} {self.reason}".rstrip()


class Body(Protocol):
    """An object's bytes while they arrive. One thread uses it at a time."""

    @property
    def start(self) -> int:
        """The object's byte that comes first: the one that was asked for, or 0."""
        ...

    @property
    def size_bytes(self) -> int | None:
        """The whole object's size; None: the store did not tell."""
        ...

    @property
    def version(self) -> str:
        """What the store calls this content; "" if it has no name for it."""
        ...

    def read(self, timeout_s: float) -> bytes:
        """Return the next bytes, b"" at the end.

        Raises:
            TimeoutError: Nothing came within ``timeout_s``.
            Exception: Whatever the client library raises.
        """
        ...

    def close(self) -> None:
        """Give up what has not been read; returns at once."""
        ...


class Client(Protocol):
    """The access to one remote directory. Threads may share it; a forked process makes its own."""

    def open(self, name: str, start: int, version: str, timeout_s: float) -> Body:
        """Ask for an object from byte ``start`` on.

        Args:
            name: The object, relative to the directory.
            start: The first byte that is wanted; a store without ranges sends all.
            version: The version that the bytes before ``start`` are of.
            timeout_s: Seconds until the answer's head must be there.

        Raises:
            TimeoutError: It was not.
            StatusError: The answer is something else.
            Exception: Whatever the client library raises.
        """
        ...

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Return what the store calls an object's content, without reading it; raises what ``open`` does.

        Args:
            name: The object.
            timeout_s: Seconds that the answer may take.
            is_timed: Whether the time at which it was written counts: the same content, written again, has another.
        """
        ...

    def close(self) -> None:
        """Close connections; returns at once."""
        ...

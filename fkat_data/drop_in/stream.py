"""A stream: what one worker makes of an iterable dataset, and the states of the dataset that travel with it."""

from typing import Any, NamedTuple

__all__ = ["Snapshot", "Stamped", "Stream", "StreamEnd"]


class Snapshot(NamedTuple):
    """An iterable dataset's own state at a place of its stream.

    Attributes:
        step: Microbatches of the epoch before it.
        state: The pickled state: a dictionary with those of the dataset and of its iterator; None: it has none.
    """

    step: int
    state: bytes


class Stream(NamedTuple):
    """One epoch of a stream, as a worker gets it.

    Attributes:
        epoch: The epoch.
        number: The stream's, from 0.
        num_streams: Streams of the loader; 0: the only one belongs to no worker, as with ``num_workers=0``.
        snapshot: Where the dataset can go on; None: at its beginning.
    """

    epoch: int
    number: int
    num_streams: int
    snapshot: Snapshot | None

    def __repr__(self) -> str:
        return f"<stream {self.number + 1} of {max(1, self.num_streams)}>"


class Stamped(NamedTuple):
    """A microbatch, and the dataset's state behind it.

    Attributes:
        microbatch: For the caller.
        state: As in ``Snapshot``.
    """

    microbatch: Any
    state: bytes


class StreamEnd(NamedTuple):
    """The end of a stream's epoch whose dataset stays as it is for the next one.

    Attributes:
        state: As in ``Snapshot``.
    """

    state: bytes

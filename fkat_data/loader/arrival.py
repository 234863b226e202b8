"""What comes next in a loader: a microbatch, the end of a shard, or an error."""

from typing import Any, NamedTuple

from fkat_data.position import Position


class Arrival(NamedTuple):
    """The next microbatch.

    Attributes:
        microbatch: What the user's DataLoader yielded.
        after: The position after it.
        size_bytes: Bytes of its tensors and arrays that were copied.
        digest: Of its content; 0 if the loader needs none.
    """

    microbatch: Any
    after: Position
    size_bytes: int
    digest: int


class ShardEnd(NamedTuple):
    """The current shard had nothing (more) to give.

    Attributes:
        after: The position after it.
    """

    after: Position


class Raised(NamedTuple):
    """An error where the next microbatch would be; it stays there.

    Attributes:
        error: The user's, or the loader's.
    """

    error: BaseException

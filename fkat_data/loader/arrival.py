"""What comes next in a loader: a microbatch, the end of a shard, or an error."""

from typing import Any, NamedTuple

__all__ = ["Arrival", "Raised", "ShardEnd"]


class Arrival(NamedTuple):
    """The next microbatch.

    Attributes:
        microbatch: What the user's DataLoader yielded.
        is_last_in_shard: Whether its shard ends with it.
        is_last_shard: Whether its shard is the epoch's last.
        size_bytes: Bytes of its tensors and arrays that were copied.
        digest: Of its content; 0 if the loader needs none.
    """

    microbatch: Any
    is_last_in_shard: bool
    is_last_shard: bool
    size_bytes: int
    digest: int


class ShardEnd(NamedTuple):
    """The current shard had nothing (more) to give.

    Attributes:
        is_last_shard: Whether it is the epoch's last.
    """

    is_last_shard: bool


class Raised(NamedTuple):
    """An error where the next microbatch would be; it stays there.

    Attributes:
        error: The user's, or the loader's.
    """

    error: BaseException

"""How messages name a shard: by its ``repr``, or in the words of a part of a dataset that no user calls a shard."""

from collections.abc import Callable
from typing import Any, cast

_WORDS = "in_words"  # an attribute of such a part


def shard_name(shard: Any, shown: Callable[[Any], object] = repr) -> str:
    """Return "shard 'a'", or such words as "the dataset"."""
    return getattr(shard, _WORDS) if _has_words(shard) else f"shard {shown(shard)}"


def shard_place(shard: Any, epoch: int, shard_index: int) -> str:
    """Return "(epoch 0, shard index 2)", or only the epoch of what is no shard to the user."""
    return f"(epoch {epoch})" if _has_words(shard) else f"(epoch {epoch}, shard index {shard_index})"


def _has_words(shard: Any) -> bool:
    return hasattr(cast("type[object]", type(shard)), _WORDS)

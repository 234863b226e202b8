"""The base class of shard samplers: adds iteration and state to a pure order."""

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Self, cast

from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.errors.arguments import checked_state, integer, saved_integer
from fkat_data.errors.wording import Described
from fkat_data.types import Shard

_STATE_VERSION = 1
_MAX_SHARDS = 10_000_000
_DEEPEST = 32
_NO_LISTS = (str, bytes, bytearray, memoryview)


class ShardSampler(Described):
    """Base class of samplers that return an epoch's shards in order.

    A subclass implements ``shards``: a pure function of the sampler's arguments and the epoch, so that any process
    can ask for any epoch at any time. This class adds iteration and state; a subclass may skip its ``__init__``.

    A subclass may instead assign a list to ``self.shards``, which every epoch has, or implement ``__iter__``, which
    yields one epoch. Loaders and other samplers take both for functions of the epoch, see ``IteratedShardSampler``.

    ``iter()`` yields the rest of the current epoch. A full pass ends at the start of the next epoch, so each ``for``
    loop is one epoch. After a loop that ended early, the next loop starts the next epoch. A new iterator ends the
    older ones.
    """

    # On the class, for subclasses that never call super().__init__().
    _epoch_and_index: tuple[int, int] = (0, 0)  # epoch, shards yielded in it
    _iterator: object | None = None  # the newest one; None after set_epoch or load_state_dict

    def __init__(self) -> None:
        if type(self).shards is ShardSampler.shards:
            vars(self)["shards"] = []  # for subclasses that fill the list instead of assigning one

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return the shards of an epoch, in order.

        Args:
            epoch: The epoch, from 0.

        Raises:
            NotImplementedError: The subclass does not implement this method.
        """
        raise NotImplementedError(
            f"{type(self).__qualname__} must implement shards(epoch) -> Sequence[Shard], or assign a list to self.shards"
        )

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "epoch", self._epoch_and_index[0]
        yield "index", self._epoch_and_index[1]

    def __len__(self) -> int:
        if has_own_iteration(self):
            raise TypeError(f"a {type(self).__qualname__} has no length: its own __iter__ decides what it yields")
        return len(self._order(self._epoch_and_index[0]))

    def __iter__(self) -> Iterator[Shard]:
        epoch, index = self._epoch_and_index
        if self._iterator is not None and index > 0:
            epoch, index = epoch + 1, 0
        self._epoch_and_index = (epoch, index)
        self._iterator = iterator = object()
        return self._walk(iterator, epoch, index)

    def _walk(self, iterator: object, epoch: int, index: int) -> Iterator[Shard]:
        shards = self._order(epoch)
        if index >= len(shards):
            self._epoch_and_index = (epoch + 1, 0)
        for position in range(index, len(shards)):
            if self._iterator is not iterator:
                raise StaleIteratorError(
                    f"this iterator over epoch {epoch} ended after {position} shards: a newer iterator, set_epoch() or "
                    "load_state_dict() replaced it"
                )
            # Before the yield: a state that the caller saves while it processes this shard counts it as yielded.
            self._epoch_and_index = (epoch, position + 1) if position + 1 < len(shards) else (epoch + 1, 0)
            yield shards[position]

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` yield this epoch from its start.

        If ``load_state_dict`` has just set a position in the same epoch, that position is kept: trainers call both on
        a resume.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigurationError: ``epoch`` is negative or not an integer.
        """
        epoch = integer("epoch", epoch, minimum=0)
        if self._iterator is not None or epoch != self._epoch_and_index[0]:
            self._epoch_and_index = (epoch, 0)
            self._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values: ``version``, ``epoch`` and ``index``, the shards yielded in the epoch.

        After an epoch's last shard, the position is the start of the next epoch.

        Raises:
            ConfigurationError: The subclass implements ``__iter__`` and no ``state_dict``: its position is unknown.
        """
        self._check_position_is_known(type(self).state_dict)
        return self._position()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next ``iter()`` continue at a saved position.

        Args:
            state_dict: What ``state_dict`` returned.

        Raises:
            StateMismatchError: A field is missing, invalid or past the end of this sampler's shards, or another
                version of the library wrote the state. The position then stays unchanged.
            ConfigurationError: The subclass implements ``__iter__`` and no ``load_state_dict``: it cannot go there.
        """
        self._check_position_is_known(type(self).load_state_dict)
        state = checked_state(state_dict, self._position(), "epoch", "index")
        epoch, index = (saved_integer(field, state[field], minimum=0) for field in ("epoch", "index"))
        # What a subclass's own __iter__ yields is not known before; this position means nothing to it.
        num_shards = index + 1 if has_own_iteration(self) else len(self._order(epoch))
        if index > num_shards:
            hint = f"epoch {epoch} has fewer shards than when the state was saved"
            raise StateMismatchError("index", index, f"<at most {num_shards}>", hint)
        self._epoch_and_index = (epoch, index) if index < num_shards else (epoch + 1, 0)
        self._iterator = None

    def _order(self, epoch: int) -> Sequence[Shard]:
        own: Any = self.shards
        if callable(own):
            return cast("Sequence[Shard]", own(epoch))
        if is_empty_list(own):
            return ShardSampler.shards(self, epoch)
        return check_shards("shards", own)

    def _check_position_is_known(self, method: object) -> None:
        if has_own_iteration(self) and method in (ShardSampler.state_dict, ShardSampler.load_state_dict):
            raise ConfigurationError(
                "sampler",
                self,
                "shards(epoch), or state_dict() and load_state_dict() beside its own __iter__, to save its position; "
                "a ShardedDataLoader saves the position of any sampler",
            )

    def _with(self, **attributes: Any) -> Self:
        """Return a copy at the start of epoch 0, with some attributes replaced; a subclass's own ones stay."""
        other = copy.copy(self)
        vars(other).update(attributes, _epoch_and_index=(0, 0), _iterator=None)
        return other

    def _position(self) -> dict[str, int]:
        epoch, index = self._epoch_and_index
        return {"version": _STATE_VERSION, "epoch": epoch, "index": index}


def has_own_iteration(sampler: ShardSampler) -> bool:
    """Return whether a sampler's order is what its own ``__iter__`` yields.

    That is so if no subclass of the one that implements ``__iter__``, nor that one, implements ``shards``.
    """
    for kind in type(sampler).__mro__:
        if kind is ShardSampler or callable(vars(kind).get("shards")):
            return False
        if "__iter__" in vars(kind):
            return True
    return False


def is_empty_list(shards: object) -> bool:
    """Return whether ``self.shards`` of a sampler is the base class's own list, still empty."""
    return isinstance(shards, list) and not shards


def check_shards(argument: str, shards: object) -> list[Shard]:
    """Return the shards in order, see ``check_shard``.

    Args:
        argument: Name of the argument that holds the shards, for error messages.
        shards: Any ordered iterable.

    Raises:
        ConfigurationError: ``shards`` is not iterable, is unordered or empty, or seems endless; or an item is not a
            shard, and the message gives its index.
    """
    if isinstance(shards, (str, bytes, Mapping)) or not isinstance(shards, Iterable):
        raise ConfigurationError(
            argument, cast("object", shards), "a shard sampler, or an iterable of shards such as a list"
        )
    if isinstance(shards, (set, frozenset)):
        raise ConfigurationError(
            argument, cast("object", shards), "an ordered iterable (the order of a set differs between ranks)"
        )
    items: list[object] = list(islice(cast("Iterable[object]", shards), _MAX_SHARDS + 1))
    if not items:
        raise ConfigurationError(argument, cast("object", shards), "at least one shard")
    if len(items) > _MAX_SHARDS:
        raise ConfigurationError(
            argument,
            cast("object", shards),
            f"a finite iterable; this one seems endless: it yielded more than {_MAX_SHARDS:,} shards",
        )
    return [check_shard(f"{argument}[{position}]", item) for position, item in enumerate(items)]


def check_shard(argument: str, item: object) -> Shard:
    """Return a shard as a plain value: it means the same in every process, and a state can tell it from others.

    Args:
        argument: What the shard is called in error messages.
        item: A string, bytes, a number, or a list, tuple or dict of such values and None. Paths become strings,
            NumPy's scalars Python's, other sequences and mappings lists and dicts.

    Raises:
        ConfigurationError: It is no shard, and the message names the part that is not plain.
    """
    if item is None:
        raise ConfigurationError(argument, item, "a shard: a path, a URI, or another plain value")
    return _plain(argument, item, 0)


def shard_identity(shard: Shard) -> str:
    """Return what fingerprints know of a shard that ``check_shard`` returned; equal for equal ones, in every process."""
    # A tuple of URIs has been a list of them.
    return repr(list(shard) if _is_group(shard) else _sorted(shard))


def uris_of(argument: str, shard: Shard) -> list[str]:
    """Return the URIs that a shard consists of: itself, or its members.

    Raises:
        ConfigurationError: It is a plain value of another kind.
    """
    if isinstance(shard, str):
        return [shard]
    if _is_group(shard):
        return list(shard)
    raise ConfigurationError(argument, shard, "a URI, or a list of URIs")


def _is_group(shard: Shard) -> bool:
    return isinstance(shard, (list, tuple)) and all(isinstance(part, str) for part in cast("list[object]", shard))


def _sorted(value: Any) -> Any:
    match value:
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {key: _sorted(part) for key, part in sorted(items, key=lambda item: repr(item[0]))}
        case list():
            return [_sorted(part) for part in cast("list[Any]", value)]
        case tuple():
            return tuple(_sorted(part) for part in cast("tuple[Any, ...]", value))
        case _:
            return value


def _plain(argument: str, item: object, depth: int) -> Any:
    if isinstance(item, os.PathLike):
        item = os.fspath(cast("os.PathLike[str]", item))
    elif type(item).__module__ == "numpy" and getattr(item, "shape", None) == ():
        item = cast("Any", item).item()
    if item is None or type(item) in (bool, int, float, bytes):
        return item
    if isinstance(item, str) and (item or depth):
        return str.__str__(item)  # a NumPy string is one, and would not go into a checkpoint
    if depth < _DEEPEST and isinstance(item, (Sequence, Mapping)) and (len(cast("Any", item)) or depth):
        is_named = isinstance(item, tuple) and type(cast("object", item)) is not tuple
        if isinstance(item, Sequence) and not isinstance(item, _NO_LISTS) and not is_named:
            parts = cast("Sequence[object]", item)
            # A group of URIs has no empty ones, as if each were a shard.
            is_group = depth == 0 and all(isinstance(part, (str, os.PathLike)) for part in parts)
            depth = 0 if is_group else depth + 1
            plain = [_plain(f"{argument}[{position}]", part, depth) for position, part in enumerate(parts)]
            return tuple(plain) if isinstance(item, tuple) else plain
        if isinstance(item, Mapping):
            return {
                _plain(f"{argument}, key {key!r}", key, depth + 1): _plain(f"{argument}[{key!r}]", part, depth + 1)
                for key, part in cast("Mapping[object, object]", item).items()
            }
    raise ConfigurationError(
        argument,
        cast("object", item),
        "a non-empty path or URI, or a list of them, or another plain value: a number, bytes, or a list, tuple or dict "
        "of plain values",
    )

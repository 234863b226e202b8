"""What every sampler of shards is: a pure order, with iteration and state built on it once."""

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Self, cast

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError, StaleIteratorError, StateMismatchError
from fkat_data.types import Shard

__all__ = ["ShardSampler", "check_shards"]

_STATE_VERSION = 1
_MOST_SHARDS = 10_000_000


class ShardSampler:
    """The order of shards, epoch by epoch.

    A subclass says in ``shards`` which shards an epoch has and in which order: a pure function of the sampler's
    arguments and the epoch, so that any process can ask for any epoch at any time. Iterating and saving the place
    come from here; ``__init__`` need not be called.

    ``iter()`` yields the current epoch from the current place on. A full pass ends at the start of the next epoch,
    so each ``for`` loop is one epoch. A loop that was left early is given up: the next one starts the next epoch.
    Of several iterators only the newest one lives.
    """

    # On the class, so that a subclass which never calls super().__init__() has them too.
    _place: tuple[int, int] = (0, 0)  # epoch, shards yielded in it
    _iterator: object | None = None  # of the place: what moved it; None after set_epoch or load_state_dict

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return the shards of an epoch in their order.

        Args:
            epoch: The epoch, from 0.

        Raises:
            NotImplementedError: The subclass does not implement it.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has to implement shards(epoch) -> Sequence[Shard]")

    def __len__(self) -> int:
        return len(self.shards(self._place[0]))

    def __iter__(self) -> Iterator[Shard]:
        epoch, index = self._place
        if self._iterator is not None and index > 0:
            epoch, index = epoch + 1, 0
        self._place = (epoch, index)
        self._iterator = iterator = object()
        return self._walk(iterator, epoch, index)

    def _walk(self, iterator: object, epoch: int, index: int) -> Iterator[Shard]:
        shards = self.shards(epoch)
        if index >= len(shards):
            self._place = (epoch + 1, 0)
        for position in range(index, len(shards)):
            if self._iterator is not iterator:
                raise StaleIteratorError(
                    f"this iterator over epoch {epoch} was replaced after {position} shards, by a newer iterator, "
                    "set_epoch() or load_state_dict()"
                )
            # Before the yield: a state saved while the caller has this shard in hand counts it as yielded.
            self._place = (epoch, position + 1) if position + 1 < len(shards) else (epoch + 1, 0)
            yield shards[position]

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter()`` yield this epoch from its start.

        A place in this very epoch that ``load_state_dict`` has just set is kept: trainers call both on a resume.

        Args:
            epoch: The epoch, from 0.

        Raises:
            ConfigurationError: ``epoch`` is no integer of at least 0.
        """
        epoch = integer("epoch", epoch, minimum=0)
        if self._iterator is not None or epoch != self._place[0]:
            self._place = (epoch, 0)
            self._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """Return the place as plain values: ``version``, ``epoch`` and ``index``, the shards yielded in the epoch.

        After an epoch's last shard that is the start of the next epoch.
        """
        epoch, index = self._place
        return {"version": _STATE_VERSION, "epoch": epoch, "index": index}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next ``iter()`` yield what an unstopped one would have yielded next.

        Args:
            state_dict: What ``state_dict`` gave.

        Raises:
            StateMismatchError: A field is missing, is no integer of at least 0, or has no place among this
                sampler's shards, or another version of the library wrote it. The place is then as it was.
        """
        if not isinstance(state_dict, Mapping):
            raise StateMismatchError("state_dict", state_dict, self.state_dict())
        version = self._saved(state_dict, "version")
        if version != _STATE_VERSION:
            raise StateMismatchError("version", version, _STATE_VERSION, "another version of the library wrote it")
        epoch, index = self._saved(state_dict, "epoch"), self._saved(state_dict, "index")
        num_shards = len(self.shards(epoch))
        if index > num_shards:
            raise StateMismatchError("index", index, num_shards, f"epoch {epoch} has fewer shards than were yielded")
        self._place = (epoch, index) if index < num_shards else (epoch + 1, 0)
        self._iterator = None

    def _with(self, **attributes: Any) -> Self:
        """Return a copy with other attributes, at the start of epoch 0; arguments of a subclass's own stay."""
        other = copy.copy(self)
        vars(other).update(attributes, _place=(0, 0), _iterator=None)
        return other

    def _saved(self, state_dict: Mapping[str, Any], field: str) -> int:
        present = self.state_dict()[field]
        if field not in state_dict:
            raise StateMismatchError(field, "<missing>", present, "it is no state of a shard sampler")
        try:
            return integer(field, state_dict[field], minimum=0)
        except ConfigurationError as error:
            raise StateMismatchError(field, state_dict[field], present, f"it has to be {error.expected}") from None


def check_shards(argument: str, shards: object) -> list[Shard]:
    """Return the shards as plain strings and lists of them, in their order.

    Args:
        argument: Name of the argument that they came in, for the message.
        shards: Any iterable with an order. A shard is a URI or a group of them; paths become strings.

    Raises:
        ConfigurationError: It is no iterable, has no order of its own, is empty or seems endless, or an item,
            named by its position, is no shard.
    """
    if isinstance(shards, (str, bytes, Mapping)) or not isinstance(shards, Iterable):
        raise ConfigurationError(
            argument, cast("object", shards), "a shard sampler, or a list or another iterable of shards"
        )
    if isinstance(shards, (set, frozenset)):
        raise ConfigurationError(
            argument, cast("object", shards), "an iterable with an order (a set's differs from rank to rank)"
        )
    items: list[object] = list(islice(cast("Iterable[object]", shards), _MOST_SHARDS + 1))
    if not items:
        raise ConfigurationError(argument, cast("object", shards), "at least one shard")
    if len(items) > _MOST_SHARDS:
        raise ConfigurationError(
            argument,
            cast("object", shards),
            f"an iterable that ends: this one seems endless, as it gave more than {_MOST_SHARDS:,} shards",
        )
    return [_shard(f"{argument}[{position}]", item) for position, item in enumerate(items)]


def _shard(argument: str, item: object) -> Shard:
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes)):
        group = cast("Sequence[object]", item)
        if not group:
            raise ConfigurationError(argument, group, "a group of at least one URI")
        return [_uri(f"{argument}[{position}]", member) for position, member in enumerate(group)]
    return _uri(argument, item)


def _uri(argument: str, item: object) -> str:
    uri = os.fspath(cast("os.PathLike[str]", item)) if isinstance(item, os.PathLike) else item
    if not isinstance(uri, str) or not uri:
        raise ConfigurationError(argument, cast("object", item), "a path or URI that is not empty, or a list of them")
    return uri

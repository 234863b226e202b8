"""The batches that a sampler gives in an epoch, counted and compared with those that a state is of."""

import copy
import dataclasses
import marshal
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from fkat_data.errors import StateMismatchError
from fkat_data.runtime.interruption import genuine

Check = tuple[int, int]
"""A number of batches, and the digest that an order has after them."""

_FIELDS = ("step", "drawn", "order", "orders", "round", "within")


class CheckedOrder(Iterator[Any]):
    """Copies of the batches that a sampler gives: it may fill one list again and again.

    Args:
        batches: The sampler's.
        checks: What the order is known to have been.
        num_before: Batches before these.
        num_kept: How many of the first are kept in ``first``.
        digest: The digest of those before.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        checks: Sequence[Check] = (),
        num_before: int = 0,
        num_kept: int = 0,
        digest: int = 0,
    ) -> None:
        self._batches = batches
        self._orders = dict(checks)
        self._num_kept = num_kept
        self.count: int = num_before
        """Batches that were drawn, with those before."""
        self.digest: int = digest
        """The digest of those that were drawn."""
        self.first: list[Any] = []
        """The first ones."""

    def __next__(self) -> Any:
        # Not `for`, which calls iter() again: a sampler that is its own iterator would begin again.
        try:
            drawn = next(self._batches)
        except genuine(StopIteration):
            if self.count < max(self._orders, default=0):
                check_order(max(self._orders.values()), self.digest, _SAVED, is_short=True)
            raise
        batch = cast("list[Any]", drawn)[:] if type(drawn) is list else copy.copy(drawn)
        self._add(batch)
        self.count += 1
        if len(self.first) < self._num_kept:
            self.first.append(batch)
        if self.count in self._orders and not self.is_at((self.count, self._orders[self.count])):
            check_order(self._orders[self.count], self.digest, _SAVED)
        return batch

    def is_at(self, known: Check) -> bool:
        """Return whether as many batches were drawn as are known, and whether they are those."""
        return self.count == known[0] and known[1] == self.digest

    def _add(self, batch: Any) -> None:
        self.digest = zlib.crc32(_content_of(batch) or _content_of(_as_plain(batch)), self.digest)


_SAVED = "when the state was saved"


def checks_in(sampler: Mapping[str, Any]) -> list[Check]:
    """Return what a saved state says of the order that its sampler had."""
    if "orders" in sampler:
        return [(drawn, order) for drawn, order in sampler["orders"]]
    return [(sampler.get("drawn", sampler["step"]), sampler["order"])] if sampler.get("step") else []


def without_order(sampler: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sampler's saved state without what it says of a step."""
    return {name: value for name, value in sampler.items() if name not in _FIELDS}


def check_order(before: int, order: int, when: str, *, is_short: bool = False) -> None:
    """Return if the digest of an order is what it was.

    Args:
        before: What it was.
        order: What it is.
        when: When it was that, in words.
        is_short: Whether there are fewer batches now.

    Raises:
        StateMismatchError: It is another.
    """
    if order != before or is_short:
        raise StateMismatchError(
            "order",
            before,
            order,
            f"the sampler gives {'fewer' if is_short else 'other'} samples than {when}: call its set_epoch() as then, or "
            "give it a generator, or state_dict() and load_state_dict()",
        )


def _content_of(batch: Any) -> bytes:
    """Return what a batch is, in bytes; none for one that is no plain value."""
    try:
        return marshal.dumps(batch, 2)
    except genuine(ValueError):
        return b""


def _as_plain(value: Any) -> Any:
    """Return a batch with plain values for its tensors and dataclasses; another object stays, and is not compared."""
    if isinstance(value, torch.Tensor):
        return cast("Any", value).tolist()
    if isinstance(value, (list, tuple)):
        return [_as_plain(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, Mapping):
        return [(name, _as_plain(each)) for name, each in cast("Mapping[Any, Any]", value).items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return value

"""An epoch of batches that goes on with another number of ranks: how far the ranks before had come.

A *layer* holds how many microbatches each rank had at such a re-split. What they had left, in the order of the epoch, is
dealt out to the next ranks from its beginning, as if it were an epoch of its own. So every rank computes its part from
the layers; a state has nothing else of the ranks before. Saved, they are the field ``resplits`` of a state::

    [{"split_batches": False, "step": 3, "epochs": [0, 0], "counts": [3, 3]}]
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, cast

from fkat_data.arguments import saved_integer
from fkat_data.drop_in.left_over import LeftOver
from fkat_data.errors import StateMismatchError
from fkat_data.interruption import genuine

_NOT_A_RESPLIT = "this is not a state of a fkat_data.DataLoader"


class Layer(NamedTuple):
    """How far ranks had come when their number changed.

    Attributes:
        is_split: Whether each of them got a part of every batch.
        step: Where all ranks after them begin, in the earliest epoch of theirs.
        epochs: The epoch of each rank.
        counts: Microbatches of it that each rank had, of what the layer before had left.
        is_by_order: Whether the dataset or the batch sampler dealt out, and deals out what is left.
    """

    is_split: bool
    step: int
    epochs: tuple[int, ...]
    counts: tuple[int, ...]
    is_by_order: bool = False

    def counts_in(self, epoch: int) -> list[int | None]:
        """Return how many microbatches of an epoch each rank had; None: all."""
        places = zip(self.epochs, self.counts, strict=True)
        return [None if own > epoch else count if own == epoch else 0 for own, count in places]


def of_epoch(layers: Sequence[Layer], epoch: int) -> list[Layer]:
    """Return the layers that decide on an epoch: those at which a rank had something of it."""
    return [layer for layer in layers if any(count != 0 for count in layer.counts_in(epoch))]


def first_step(layers: Sequence[Layer], epoch: int) -> int:
    """Return the ``step`` at which every rank begins its part of an epoch: 0, except in the epoch of the last re-split.

    There, it is the largest one of the ranks before: no number of a microbatch, and so no random stream, comes twice on
    a rank.
    """
    return layers[-1].step if layers and min(layers[-1].epochs) == epoch else 0


def with_layer(
    layers: Sequence[Layer], places: Sequence[tuple[int, int]], *, is_split: bool, is_by_order: bool
) -> tuple[tuple[Layer, ...], int, int]:
    """Append a layer. Return the layers that still matter, and the epoch and step at which the next ranks begin.

    Args:
        layers: All re-splits so far.
        places: The epoch and the step of each rank now.
        is_split: Whether each of these ranks got a part of every batch.
        is_by_order: Whether the dataset or the batch sampler deals out.
    """
    epoch = min(own for own, _ in places)
    step = max(step for own, step in places if own == epoch)
    counts = tuple(step - first_step(layers, own) for own, step in places)
    added = Layer(is_split, step, tuple(own for own, _ in places), counts, is_by_order)
    matter = tuple(
        layer
        for layer in (*layers, added)
        if any((own, count) > (epoch, 0) for own, count in zip(layer.epochs, layer.counts, strict=True))
    )
    return matter, epoch, step


def left_overs(layers: Sequence[Layer], epoch: int, length: int, batch_size: int, *, drop_last: bool) -> list[LeftOver]:
    """Return what each layer has left of an epoch, each time of what the one before has left.

    Args:
        layers: All re-splits so far.
        epoch: The epoch.
        length: Its samples.
        batch_size: Samples of a batch.
        drop_last: Whether ranks leave out a last round that is smaller.
    """
    rests: list[LeftOver] = []
    for layer in of_epoch(layers, epoch):
        counts = layer.counts_in(epoch)
        part_size = batch_size // len(counts) if layer.is_split else batch_size
        num_whole, rest = divmod(length, part_size * len(counts))
        num_rounds = num_whole + (rest > 0 and not drop_last)
        rests.append(LeftOver(length, part_size, [num_rounds if count is None else count for count in counts]))
        length = len(rests[-1])
    return rests


def left_of(
    batches: Iterator[Any], layer: Layer, epoch: int, batch_size: int | None, *, drop_last: bool
) -> Iterator[Any]:
    """Yield the batches of an epoch that the ranks of a layer have left.

    Args:
        batches: What was dealt out to them.
        layer: How far they had come.
        epoch: The epoch.
        batch_size: Samples of each batch but the last; None: they are of any size.
        drop_last: Whether ranks leave out a last round that is smaller.
    """
    counts = layer.counts_in(epoch)
    if not layer.is_split:
        return _left_of_batches(batches, counts, batch_size, drop_last=drop_last)
    size = cast("int", batch_size)
    if len(set(counts)) == 1:
        return islice(batches, counts[0], None)
    return _in_batches(_left_of_parts(batches, counts, size, drop_last=drop_last), size)


def _left_of_batches(
    batches: Iterator[Any], counts: Sequence[int | None], batch_size: int | None, *, drop_last: bool
) -> Iterator[Any]:
    num_common, num_most = _bounds(counts)
    yield from islice(batches, num_common * len(counts), num_common * len(counts))  # those that all ranks have had
    number = num_common
    while num_most is None or number < num_most:
        drawn = list(islice(batches, len(counts)))
        if not drawn:
            return
        is_short = len(drawn) < len(counts) or (batch_size is not None and len(drawn[-1]) < batch_size)
        for batch, count in zip(drawn, counts, strict=False):
            if (count is not None and count <= number) or (is_short and drop_last):
                yield batch
        number += 1
    yield from batches


def _left_of_parts(
    batches: Iterator[Any], counts: Sequence[int | None], batch_size: int, *, drop_last: bool
) -> Iterator[list[Any]]:
    size = batch_size // len(counts)
    for number, batch in enumerate(batches):
        is_short = len(batch) < batch_size
        lacking = [
            rank
            for rank, count in enumerate(counts)
            if (count is not None and count <= number) or (is_short and drop_last)
        ]
        yield [sample for rank in lacking for sample in batch[size * rank : size * (rank + 1)]]


def _in_batches(parts: Iterator[list[Any]], batch_size: int) -> Iterator[list[Any]]:
    samples = chain.from_iterable(parts)
    while batch := list(islice(samples, batch_size)):
        yield batch


def _bounds(counts: Sequence[int | None]) -> tuple[int, int | None]:
    """Return how many rounds all ranks have had, and how many at least one of them; None: all."""
    known = [count for count in counts if count is not None]
    return min(known), None if len(known) < len(counts) else max(known)


def resplits_field(layers: Sequence[Layer], epoch: int) -> dict[str, Any]:
    """Return the field of a state for the layers that matter to an epoch or a later one; no field for none."""
    plain = [
        {
            "split_batches": layer.is_split,
            "step": layer.step,
            "epochs": list(layer.epochs),
            "counts": list(layer.counts),
            **({"by_order": True} if layer.is_by_order else {}),
        }
        for layer in layers
        if any((own, count) > (epoch, 0) for own, count in zip(layer.epochs, layer.counts, strict=True))
    ]
    return {"resplits": plain} if plain else {}


def layers_in(state: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Return the layers of a state.

    Raises:
        StateMismatchError: The field is damaged.
    """
    found: Any = state.get("resplits", ())
    if not isinstance(found, (list, tuple)):
        raise StateMismatchError("resplits", found, "<a list>", _NOT_A_RESPLIT)
    return tuple(_layer(each) for each in cast("Sequence[object]", found))


def _layer(found: Any) -> Layer:
    try:
        is_split, step = bool(found["split_batches"]), _count(found["step"])
        epochs, counts = (tuple(_count(number) for number in found[name]) for name in ("epochs", "counts"))
        is_by_order = bool(found.get("by_order"))
    except genuine(AttributeError, TypeError, KeyError):
        raise StateMismatchError("resplits", found, "<a place for each rank>", _NOT_A_RESPLIT) from None
    if not epochs or len(epochs) != len(counts):
        raise StateMismatchError("resplits", found, "<a place for each rank>", _NOT_A_RESPLIT)
    return Layer(is_split, step, epochs, counts, is_by_order)


def _count(number: object) -> int:
    return saved_integer("resplits", number, minimum=0, hint=_NOT_A_RESPLIT)

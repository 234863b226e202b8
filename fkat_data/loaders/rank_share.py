"""The share of a loader's batches that one of several ranks delivers, as accelerate deals them out."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle, islice
from typing import Any, NamedTuple

from fkat_data.errors import ConfigurationError


class Sharing(NamedTuple):
    """How a loader's batches are dealt out to ranks; the same on all of them.

    Attributes:
        num_ranks: Ranks that share them.
        even_batches: As of a ``RankShare``.
        split_batches: As of a ``RankShare``.
    """

    num_ranks: int = 1
    even_batches: bool = True
    split_batches: bool = False


class RankShare(NamedTuple):
    """Which samples of each round a rank gets: a round is a batch for each rank, or one batch that they split.

    Attributes:
        num_ranks: Ranks that share the batches.
        rank: This one.
        even_batches: Whether the last round is filled up with the epoch's first samples, so that each rank has equally
            many batches of one size.
        split_batches: Whether each rank gets a part of every batch.
    """

    num_ranks: int
    rank: int
    even_batches: bool = True
    split_batches: bool = False

    @property
    def sharing(self) -> Sharing:
        """What of it is the same on all ranks."""
        return Sharing(self.num_ranks, self.even_batches, self.split_batches)

    def own_size(self, batch_size: int) -> int:
        """Return the samples of a rank's batch.

        Raises:
            ConfigurationError: The ranks cannot split a batch of this size.
        """
        if self.split_batches and batch_size % self.num_ranks:
            expected = f"a multiple of {self.num_ranks}, among which ranks split each batch"
            raise ConfigurationError("batch_size", batch_size, expected)
        return batch_size // self.num_ranks if self.split_batches else batch_size

    def round_size(self, batch_size: int) -> int:
        """Return the samples of a round."""
        return batch_size if self.split_batches else batch_size * self.num_ranks

    def num_batches(self, num_drawn: int, *, drop_last: bool) -> int:
        """Return a rank's batches of an epoch that has ``num_drawn`` for all ranks."""
        if self.split_batches:
            return num_drawn
        whole, rest = divmod(num_drawn, self.num_ranks)
        if drop_last:
            return whole
        return whole + (rest > 0 if self.even_batches else rest > self.rank)

    def deal(
        self, batches: Iterable[Any], first: Sequence[Any], batch_size: int | None, *, drop_last: bool
    ) -> Iterator[Any]:
        """Yield the rank's batches.

        Args:
            batches: Those of all ranks.
            first: The epoch's first ones, at least a round if there are as many, by when the last round is dealt out.
            batch_size: Samples of each; None: batches of any size, which are dealt out whole.
            drop_last: Whether the last round is left out if it is smaller.

        Raises:
            ConfigurationError: A batch before the last has another size.
        """
        iterator = iter(batches)
        num_in_round = self.num_in_round
        while drawn := list(islice(iterator, num_in_round)):
            if len(drawn) == num_in_round and (batch_size is None or all(len(each) == batch_size for each in drawn)):
                yield self._own(drawn, batch_size)
                continue
            if next(iterator, None) is not None:
                raise ConfigurationError(
                    "batch_sampler",
                    f"a batch of {next(len(each) for each in drawn if len(each) != batch_size)} samples",
                    f"batches of batch_size={batch_size} samples, or a batch sampler without the attribute batch_size, "
                    "whose batches are dealt out whole",
                )
            yield from self._last(drawn, first, batch_size, drop_last=drop_last)

    @property
    def num_in_round(self) -> int:
        """Batches of all ranks in a round."""
        return 1 if self.split_batches else self.num_ranks

    def _own(self, drawn: list[Any], batch_size: int | None) -> Any:
        if not self.split_batches or batch_size is None:
            return drawn[self.rank]
        size = self.own_size(batch_size)
        return drawn[0][size * self.rank : size * (self.rank + 1)]

    def _last(
        self, drawn: list[Any], first: Sequence[Any], batch_size: int | None, *, drop_last: bool
    ) -> Iterator[Any]:
        if drop_last:
            return
        items, fill, size, whole = drawn, [*first[: self.num_in_round]], 1, self.num_ranks
        if batch_size is not None:
            items, fill = [*chain.from_iterable(drawn)], [*chain.from_iterable(fill)]
            size, whole = self.own_size(batch_size), self.round_size(batch_size)
        if self.even_batches:
            items = list(islice(chain(items, cycle(fill)), whole))
        own = items[size * self.rank : size * (self.rank + 1)]
        if own:
            yield own[0] if batch_size is None else own

"""A strand: what one worker makes of an iterable dataset, and the states of the dataset that travel with it."""

from typing import NamedTuple


class Snapshot(NamedTuple):
    """An iterable dataset's own state at a place of its strand.

    Attributes:
        step: Microbatches of the epoch before it.
        state: The pickled state: a dictionary with those of the dataset and of its iterator; None: it has none.
    """

    step: int
    state: bytes


class Strand(NamedTuple):
    """One epoch of a strand, as a worker gets it.

    Attributes:
        epoch: The epoch.
        number: The strand's, from 0.
        num_strands: Strands of the loader; 0: the only one belongs to no worker, as with ``num_workers=0``.
        snapshot: Where the dataset can go on; None: at its beginning.
    """

    epoch: int
    number: int
    num_strands: int
    snapshot: Snapshot | None

    @property
    def in_words(self) -> str:
        """What messages call it."""
        return f"strand {self.number + 1} of {self.num_strands}" if self.num_strands > 1 else "the dataset"

    def __repr__(self) -> str:
        return f"<{self.in_words}>"

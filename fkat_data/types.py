"""Types that users and the library exchange."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, cast, runtime_checkable

if TYPE_CHECKING:
    # Only there has a TypeVar a default before Python 3.13, and type checkers bring it along.
    from typing_extensions import TypeVar

    Microbatch_co = TypeVar("Microbatch_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Microbatch_co = TypeVar("Microbatch_co", covariant=True)

Plan_co = TypeVar("Plan_co", covariant=True)
Windows_co = TypeVar("Windows_co", covariant=True)

Shard: TypeAlias = Any
"""What a factory opens: the URI of a file with samples, a list of URIs that are read as one group, or another plain value
that it understands, such as ``("train.bin", 0, 16)``: bytes, a number, or a list, tuple or dict of plain values."""

Microbatch: TypeAlias = Any
"""What a loader yields: whatever the user's DataLoader collates from its samples."""


@runtime_checkable
class Stateful(Protocol):
    """An object whose position can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a position that ``state_dict`` returned."""
        ...


@runtime_checkable
class AcceptingLoader(Protocol):
    """A loader whose states can be loaded where something differs that the caller accepts."""

    @property
    def acceptable_fields(self) -> tuple[str, ...]:
        """The fields of a state that may be accepted where they differ."""
        ...

    def load_state_dict(self, state_dict: Any, accept: Collection[str] = ()) -> None:
        """Go to a position, as ``ResumableLoader`` does; ``accept``: the fields that may differ."""
        ...


@runtime_checkable
class TicketedLoader(Protocol):
    """A loader whose microbatches the caller may commit, which no trainer may take ahead of the caller then."""

    @property
    def has_tickets(self) -> bool:
        """Whether the caller commits them."""
        ...


@runtime_checkable
class ReweightedLoader(Protocol):
    """A loader whose caller may set weights while a trainer has taken microbatches ahead of the caller."""

    def with_present_weights(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Return an earlier state, with the weights that were set since and count from later microbatches on."""
        ...


@runtime_checkable
class ResumableLoader(Protocol):
    """What the library's loaders have in common, for trainers that drive them."""

    def __iter__(self) -> Iterator[Microbatch]: ...

    def state_dict(self) -> dict[str, Any] | None:
        """Return the position of all ranks: what was delivered; a collective call where the ranks differ."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> None:
        """Go to a position that ``state_dict`` or ``local_state_dict`` returned; the next iteration goes on there."""
        ...

    def local_state_dict(self) -> dict[str, Any] | None:
        """Return this rank's position; not collective."""
        ...

    def merge_state_dicts(self, local_state_dicts: Any, /) -> Any:
        """Return what ``state_dict`` would return, from every rank's ``local_state_dict`` in the order of ranks."""
        ...

    def end_epoch(self) -> None:
        """Count the rest of the epoch as delivered; change nothing where nothing of it was delivered."""
        ...


@runtime_checkable
class ResplittableSampler(Protocol):
    """A shard sampler that knows the shards of every rank, for any number of data-parallel ranks."""

    @property
    def dp_size(self) -> int | None:
        """Number of data-parallel ranks that the shards are split over; None if this sampler does not split."""
        ...

    def for_rank(self, dp_size: int, dp_rank: int) -> Self:
        """Return a sampler for rank ``dp_rank`` of ``dp_size``; this one stays unchanged."""
        ...

    def shards(self, epoch: int) -> Sequence[Shard]:
        """Return this rank's shards of an epoch, in order."""
        ...


@runtime_checkable
class GrowingSampler(Protocol):
    """A shard sampler over a list to which shards may be appended between two runs."""

    @property
    def num_listed(self) -> int | None:
        """Number of shards in the list; None if it is not known."""
        ...

    def first(self, num_listed: int) -> Self:
        """Return this sampler over the first shards of the list alone, at the start of epoch 0."""
        ...


def num_listed_of(sampler: object) -> int | None:
    """Return the number of shards in a sampler's list; None: it has none, or does not know its first ones."""
    return sampler.num_listed if isinstance(sampler, GrowingSampler) else None


@runtime_checkable
class RandomAccess(Protocol):
    """A shard's microbatches, each of which can be made without those before it.

    What a factory returns may have these two beside, or instead of, ``__iter__``: several workers then make one shard
    together, and a resume makes nothing that was delivered before.
    """

    @property
    def num_microbatches(self) -> int:
        """Microbatches in the shard."""
        ...

    def microbatch(self, index: int) -> Microbatch:
        """Make the microbatch at ``index``, from 0; a function of the index and of the random generators alone."""
        ...


@runtime_checkable
class Prefetching(Protocol):
    """A map-style dataset that can begin to read items of a batch before it is asked for them."""

    @property
    def prefetch_items(self) -> Callable[[Sequence[int]], None] | None:
        """Begins to read the items at some indices; raises nothing, and waits for nothing. None: nothing would be gained.

        Where it is called, ``__getitems__`` is called later with the same indices, unless the work is left.
        """
        ...


@runtime_checkable
class Profiler(Protocol):
    """A profiler that the loader notifies of its actions, such as Lightning's ``Profiler``.

    The loader also uses ``summary()``, ``describe()`` and ``filename`` if the object has them.
    """

    def start(self, action_name: str) -> None:
        """Record the start of an action."""
        ...

    def stop(self, action_name: str) -> None:
        """Record the end of the latest action of this name."""
        ...


class StreamSource(Protocol[Plan_co, Windows_co]):
    """The side of a dataset that its loader and their workers use, where the dataset plans its batches itself, for all ranks.

    ``stream_source_of`` returns it. It refers to the dataset and keeps no state of its own.
    """

    @property
    def batch_size(self) -> int | None:
        """Samples of a rank's batch; None: not yet given."""
        ...

    @batch_size.setter
    def batch_size(self, batch_size: int, /) -> None: ...

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration begins or continues; one that is set begins at its start."""
        ...

    @next_epoch.setter
    def next_epoch(self, epoch: int, /) -> None: ...

    @property
    def seed(self) -> int:
        """The seed of its orders."""
        ...

    @property
    def fetches_shards(self) -> bool:
        """Whether threads fetch what is read; they keep what they raise, and so the caller's frames."""
        ...

    @property
    def shipment(self) -> dict[str, Any]:
        """All that workers have of the dataset: new ones are needed where it changes."""
        ...

    @property
    def files(self) -> Any:
        """A ``SupportsFileDigests``: what the dataset's files were when it was made."""
        ...

    def ranks(self) -> tuple[int, int]:
        """Return the number of ranks, and which of them this one is.

        Raises:
            RankMismatchError: Another rank reads other data.
        """
        ...

    def set_ranks(self, num_ranks: int, rank: int) -> None:
        """Deal samples out to that many ranks, of which this process is one, from the next iteration on.

        Raises:
            ConfigurationError: The dataset was given other ranks.
        """
        ...

    @property
    def acceptable_fields(self) -> tuple[str, ...]:
        """The fields of a state that may be accepted where they differ."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], accept: Collection[str] = (), /) -> None:
        """Go to a position that a state of the plan says; ``accept``: the fields that may differ."""
        ...

    def plan(
        self, dp_rank: int, *, num_workers: int, collate_fn: Any, drop_last: bool, leaves_empty_rest: bool
    ) -> Plan_co:
        """Return the plan of this rank's batches.

        Args:
            dp_rank: The loader's.
            num_workers: The loader's; 0: this process reads the samples.
            collate_fn: What makes a batch of samples.
            drop_last: Whether a short batch at an epoch's end is left out.
            leaves_empty_rest: Whether a loaded position with nothing behind it counts as the next epoch's begin.
        """
        ...

    def windows(self, window_size: int, *, is_read_here: bool) -> Windows_co:
        """Return the order that the windows of a window function are cut from.

        Raises:
            ConfigurationError: They cannot be cut from this dataset's order.
        """
        ...

    def window_fingerprint(self) -> dict[str, Any]:
        """Return the fields of a state that the order of the windows depends on."""
        ...

    def product(self, task: Any, collate_fn: Callable[[list[Any]], Any]) -> Any:
        """Return the microbatches of a task of the plan, where they are made."""
        ...

    def samples(self, sample_ids: list[int]) -> list[Any]:
        """Return the samples of a window; their arrays may be written to."""
        ...

    def where(self, sample_id: int) -> tuple[int, str, int]:
        """Return a sample's stream, the name of its shard, and its row there."""
        ...

    def note_columns(self, error: Exception) -> None:
        """Note on an error of a batch that what its samples are from has other columns, if it has."""
        ...


def with_present_weights(loader: object, state_dict: Any) -> Any:
    """Return an earlier state of a loader, with the weights that were set since; of one without weights, as it was."""
    return loader.with_present_weights(state_dict) if isinstance(loader, ReweightedLoader) else state_dict


def tell_epoch(listeners: Iterable[Any], epoch: int) -> None:
    """Call ``set_epoch`` of each object that has one."""
    for each in listeners:
        tell = getattr(each, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def close_all(loaders: Iterable[Any]) -> None:
    """Close each loader that can be closed."""
    for loader in loaders:
        close = getattr(loader, "close", None)
        if callable(close):
            close()


def stream_source_of(dataset: object) -> StreamSource[Any, Any] | None:
    """Return the loader's side of a dataset that plans its batches itself; None for any other dataset."""
    # Of the class: what a wrapper's __getattr__ finds in the dataset that it wraps is not the wrapper's.
    if not hasattr(type(dataset), "_loader_source"):
        return None
    return cast("Any", dataset)._loader_source  # noqa: SLF001 - the one attribute by which a dataset offers it

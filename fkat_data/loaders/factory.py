"""The factory: a shard in, the DataLoader of its microbatches out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, cast

from torch.utils import data as torch_data
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.errors.wording import Described
from fkat_data.files.counted_file import counted_files_of, counts_of
from fkat_data.runtime.interruption import genuine
from fkat_data.types import Microbatch_co, Shard
from fkat_data.worker.windows import CollateSpec, ShardWindows, WindowFunction, version_of, window_functions_of

_DATA: Any = torch_data  # whose functions leave their types open
_WINDOWED = "window_fn or on_sample_error='skip'"


class DataLoaderFactory(Described, Generic[Microbatch_co]):
    """Makes a DataLoader for each shard, in the worker that produces the shard.

    A generated batch sampler decides on the batches. Without one, batches of ``batch_size`` come from the sampler's
    indices, or from the dataset's own order.

    Args:
        dataset_generator: Called with the shard; returns its dataset.
        sampler_generator: Called with the dataset; returns a sampler of its indices.
        batch_sampler_generator: Called with the sampler if there is one, else with the dataset; returns an iterable
            of batches of indices. The DataLoader then gets neither ``sampler`` nor ``batch_size``.
        dataloader_generator: Called as ``(dataset, batch_size=, shuffle=None, sampler=, batch_sampler=)``; returns an
            iterable of microbatches. Default: ``torch.utils.data.DataLoader``.
        batch_size: Samples in a microbatch; None leaves the dataset's items as they are, unless one of the two
            samplers is given.
        shard_sizes: Numbers of samples, for ``len(loader)``: a mapping from shards to numbers, or a function of a
            shard, called in the trainer. Needed where a dataset has no ``len``, and useful where opening one takes
            long. A group of shards that the mapping lacks has the sizes of its members.
        window_fn: Makes rows of a window of the shard's samples: as many as it likes, none too; of several functions, each
            gets what the one before it returned. Microbatches are cut from the rows, across windows, until the shard's
            end. A resume within the shard makes its windows again.
        window_size: Samples of a window.
        on_sample_error: What becomes of a sample that raises: ``"raise"``; or ``"skip"``: it is left out, logged, counted
            in ``statistics()``, and kept in the state. Microbatches stay full, and one worker makes all of a shard.
        max_skipped_samples: Samples of an epoch that may be left out on each rank.

    Raises:
        ConfigurationError: An argument is of the wrong type, or nothing says how to batch.
    """

    def __init__(
        self,
        dataset_generator: Callable[..., Any],
        sampler_generator: Callable[..., Any] | None = None,
        batch_sampler_generator: Callable[..., Any] | None = None,
        dataloader_generator: Callable[..., Iterable[Microbatch_co]] | None = None,
        batch_size: int | None = 1,
        *,
        shard_sizes: Mapping[Any, int] | Callable[[Shard], int] | None = None,
        window_fn: WindowFunction | Sequence[WindowFunction] | None = None,
        window_size: int = 1024,
        on_sample_error: Literal["raise", "skip"] = "raise",
        max_skipped_samples: int = 100,
    ) -> None:
        self.dataset_generator: Callable[..., Any] = arguments.function("dataset_generator", dataset_generator)
        for name, value in (
            ("sampler_generator", sampler_generator),
            ("batch_sampler_generator", batch_sampler_generator),
            ("dataloader_generator", dataloader_generator),
        ):
            if value is not None:
                arguments.function(name, value)
        if batch_size is not None:
            arguments.integer("batch_size", batch_size, minimum=0)
        if not (batch_size or sampler_generator or batch_sampler_generator or window_fn):
            raise ConfigurationError(
                "batch_size", batch_size, "a positive number, or a sampler_generator, or a batch_sampler_generator"
            )
        if shard_sizes is not None and not isinstance(shard_sizes, Mapping) and not callable(shard_sizes):
            raise ConfigurationError("shard_sizes", shard_sizes, "a mapping from shards to numbers, or a function")
        self.sampler_generator: Callable[..., Any] | None = sampler_generator
        self.batch_sampler_generator: Callable[..., Any] | None = batch_sampler_generator
        self.dataloader_generator: Callable[..., Iterable[Microbatch_co]] | None = dataloader_generator
        self.batch_size: int | None = batch_size or None
        self.window_size: int = arguments.integer("window_size", window_size, minimum=1)
        self.window_functions: tuple[WindowFunction, ...] = window_functions_of(window_fn)
        most = arguments.integer("max_skipped_samples", max_skipped_samples, minimum=0)
        skips = arguments.choice("on_sample_error", on_sample_error, ("raise", "skip")) == "skip"
        self.max_skipped_samples: int | None = most if skips else None
        """Samples of an epoch that may be left out; None: one that raises is an error."""
        if self._has_windows:
            self._check_windows()
        self.shard_sizes: Mapping[Any, int] | Callable[[Shard], int] | None = shard_sizes

    @property
    def batching(self) -> str:
        """How a shard's samples are grouped into microbatches, in words."""
        if self.batch_sampler_generator:
            return "by a batch_sampler_generator"
        order = "by a sampler_generator" if self.sampler_generator else "in order"
        if self.window_functions:
            rows = f"rows of windows of {self.window_size} {order}, {version_of(self.window_functions)}"
            return f"{self.batch_size or 'one by one'} {rows}"
        if self.max_skipped_samples is not None and self.sampler_generator:
            order = f"in windows of {self.window_size} {order}"  # whose draws decide on the order
        return f"{self.batch_size or 'one by one'} {order}"

    def __call__(self, shard: Shard) -> Iterable[Microbatch_co]:
        """Return the iterable of the shard's microbatches; runs in the worker.

        Raises:
            Exception: Whatever the generators raise.
        """
        dataset = self.dataset_generator(shard)
        if self._has_windows:
            order = self.sampler_generator(dataset) if self.sampler_generator else None
            # As of a DataLoader, which converts where it does not batch.
            plain = _DATA.default_convert if self.batch_size is None else _DATA.default_collate
            collate_fn = _option(self.dataloader_generator, "collate_fn", None) or plain
            drop_last = _option(self.dataloader_generator, "drop_last", False)
            spec = CollateSpec(self.window_functions, collate_fn, self.batch_size, drop_last)
            return ShardWindows(dataset, order, spec, self.window_size, self.max_skipped_samples)
        generate = self.dataloader_generator or cast("Callable[..., Iterable[Microbatch_co]]", DataLoader)
        return generate(dataset, shuffle=None, **self._batching(dataset))

    def lengths_without_opening(self, shards: Sequence[Shard]) -> list[int | None]:
        """Return the numbers of microbatches that follow from ``shard_sizes`` or from the datasets' files.

        That takes a plain DataLoader and torch's own samplers: no code of the user's runs, but for ``shard_sizes``.
        What the files hold is counted in threads, once, and kept in the user's directory of caches.

        Returns:
            A number for each shard; None where the shard has to be opened to be counted.

        Raises:
            ConfigurationError: ``shard_sizes`` gives no number for a shard.
        """
        if not self._is_arithmetic():
            return [None] * len(shards)
        sizes = self._sizes(shards)
        lengths = {size: self._num_batches(size) for size in set(sizes) if size is not None}
        return [None if size is None else lengths[size] for size in sizes]

    def _repr_facts(self) -> Iterator[tuple[str, object]]:
        yield "dataset_generator", self.dataset_generator
        yield "batch_size", None if self.batch_sampler_generator else self.batch_size
        yield "sampler_generator", self.sampler_generator
        yield "batch_sampler_generator", self.batch_sampler_generator
        yield "dataloader_generator", self.dataloader_generator

    def _batching(self, dataset: Any) -> dict[str, Any]:
        """Return the arguments of a DataLoader that decide on its batches."""
        sampler = self.sampler_generator(dataset) if self.sampler_generator else None
        if not self.batch_sampler_generator:
            return {"batch_size": self.batch_size, "sampler": sampler, "batch_sampler": None}
        batch_sampler = self.batch_sampler_generator(dataset if sampler is None else sampler)
        # torch counts a batch size of 1 as none: a batch sampler excludes any other.
        return {"batch_size": 1, "sampler": None, "batch_sampler": batch_sampler}

    @property
    def _has_windows(self) -> bool:
        return bool(self.window_functions) or self.max_skipped_samples is not None

    def _check_windows(self) -> None:
        """Raise for what does not go with windows."""
        if self.batch_sampler_generator:
            expected = f"batch_size, with {_WINDOWED}: batches are cut from rows"
            raise ConfigurationError("batch_sampler_generator", self.batch_sampler_generator, expected)
        generator = self.dataloader_generator
        keywords: set[str] = set(cast("partial[Any]", generator).keywords) if isinstance(generator, partial) else set()
        if generator is not None and (_called(generator) is not DataLoader or keywords - {"collate_fn", "drop_last"}):
            expected = (
                f"functools.partial(DataLoader, collate_fn=, drop_last=), with {_WINDOWED}: no more of it is used"
            )
            raise ConfigurationError("dataloader_generator", cast("object", generator), expected)

    def _is_arithmetic(self) -> bool:
        """Return whether the number of microbatches follows from the number of samples."""
        kinds = (
            (self.sampler_generator, (type(None), RandomSampler, SequentialSampler)),
            (self.batch_sampler_generator, (type(None), BatchSampler)),
            (self.dataloader_generator, (type(None), DataLoader)),
        )
        return (
            type(self).__call__ is DataLoaderFactory.__call__
            and not self._has_windows
            and all(_called(generator) in allowed for generator, allowed in kinds)
            # Of an iterable dataset, each worker makes batches of its own part.
            and _option(self.dataloader_generator, "num_workers", 0) <= 1
        )

    def _sizes(self, shards: Sequence[Shard]) -> list[int | None]:
        sizes = [self._given_size(shard) for shard in shards]
        files = {
            index: found
            for index, shard in enumerate(shards)
            if sizes[index] is None and (found := counted_files_of(self.dataset_generator, shard)) is not None
        }
        counts = iter(counts_of([file for found in files.values() for file in found]))
        for index, found in files.items():
            counted = [next(counts) for _ in found]
            known = [count for count in counted if count is not None]
            sizes[index] = sum(known) if len(known) == len(counted) else None
        return sizes

    def _given_size(self, shard: Shard) -> int | None:
        given = self.shard_sizes
        if given is None:
            return None
        if callable(given):
            return arguments.integer(f"shard_sizes({shard!r})", given(shard), minimum=0)
        if _is_key(shard) and shard in given:
            return arguments.integer(f"shard_sizes[{shard!r}]", given[shard], minimum=0)
        members = cast("Sequence[Any]", shard) if isinstance(shard, (list, tuple)) else ()
        if not members or any(not _is_key(member) or member not in given for member in members):
            return None
        return sum(arguments.integer(f"shard_sizes[{member!r}]", given[member], minimum=0) for member in members)

    def _num_batches(self, size: int) -> int | None:
        dataset: Any = range(size)
        drop_last = _option(self.dataloader_generator, "drop_last", False)
        try:
            return len(DataLoader(dataset, **self._batching(dataset), drop_last=drop_last))
        except genuine(
            TypeError, ValueError
        ):  # torch refuses these arguments, or an empty dataset: so it does in the worker
            return None


def _called(generator: Any) -> Any:
    """Return the class that a generator calls, if its arguments are named; the class of None if there is none."""
    if isinstance(generator, partial):
        bound = cast("partial[Any]", generator)
        return None if bound.args else bound.func
    return type(None) if generator is None else generator


def _option(generator: Any, name: str, default: Any) -> Any:
    return cast("partial[Any]", generator).keywords.get(name, default) if isinstance(generator, partial) else default


def _is_key(shard: Shard) -> bool:
    try:
        hash(shard)
    except genuine(TypeError):
        return False
    return True

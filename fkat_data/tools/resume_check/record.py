"""One run of a loader as a record: what it delivered, digest by digest, and the states on the way."""

import contextlib
import copy
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic  # by name: an experiment may replace the module's function, and the deadline must stay
from typing import Any, NamedTuple

import torch

from fkat_data.errors import ConfigurationError
from fkat_data.loader.sharded import ShardedDataLoader
from fkat_data.testing.content_digest import Difference, digest, first_difference
from fkat_data.transport.codec import encode
from fkat_data.types import Microbatch

__all__ = ["Copy", "Delivered", "Parting", "RecordedPlace", "RecordedRun", "RunRecorder", "Setting"]

_DEFAULT_NUM_MICROBATCHES = 200
_MOST_COPIED_BYTES = 256 << 20


class Setting(NamedTuple):
    """How a loader runs, as far as that must not matter.

    Attributes:
        multiprocessing: In worker processes; False: in process.
        num_shard_prefetches: Shards ahead; None leaves the loader's own.
        num_microbatch_prefetches: Microbatches ahead; None leaves the loader's own.
    """

    multiprocessing: bool
    num_shard_prefetches: int | None = None
    num_microbatch_prefetches: int | None = None

    def overrides(self) -> dict[str, Any]:
        """Return the arguments of the loader that it stands for."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def __str__(self) -> str:
        text = "workers" if self.multiprocessing else "in process"
        if self.num_shard_prefetches is not None:
            text += f", {self.num_shard_prefetches}/{self.num_microbatch_prefetches} ahead"
        return text


class RecordedPlace(NamedTuple):
    """Where a microbatch stands in the order; all from 0.

    Attributes:
        epoch: Its epoch.
        shard: Its shard's place in the epoch's order of this rank.
        microbatch: Its place in the shard.
    """

    epoch: int
    shard: int
    microbatch: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard}, microbatch {self.microbatch}"


class Delivered(NamedTuple):
    """One microbatch of a run.

    Attributes:
        place: Where it stands.
        digest: Names its content.
        copy: A copy of the microbatch; None where none is kept.
    """

    place: RecordedPlace
    digest: str
    copy: "Copy | None"


class Copy(NamedTuple):
    """A copy of a microbatch.

    Attributes:
        microbatch: The copy.
        size_bytes: Roughly what it takes.
    """

    microbatch: Microbatch
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Parting:
    """The first microbatch in which two runs differ.

    Attributes:
        index: How many microbatches came before it since the start of the first epoch.
        expected_place: Where the first run has it.
        found_place: Where the second run has it; None: that run has no more microbatches.
        difference: Where in it they part; None where no copy of the first run's was kept.
    """

    index: int
    expected_place: RecordedPlace
    found_place: RecordedPlace | None
    difference: Difference | None

    def __str__(self) -> str:
        text = f"microbatch {self.index} of the run ({self.expected_place})"
        if self.found_place is None:
            return f"{text}: there is none"
        if self.found_place != self.expected_place:
            text += f", delivered as that of {self.found_place}"
        return f"{text}: {self.difference or 'it has another digest'}"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What one loader delivered.

    Attributes:
        setting: How it ran.
        first: Microbatches that came before its first.
        microbatches: What it delivered.
        states: The loader's state as ``torch.save`` wrote it, by the microbatches before it; empty if not asked for.
        parting: Where it first differed from the run that it was compared with.
        is_cut: Whether the time ended before it did.
        shards: Names the order of the first epoch's shards; None where that is not known beforehand.
    """

    setting: Setting
    first: int
    microbatches: tuple[Delivered, ...]
    states: Mapping[int, bytes] = field(default_factory=dict[int, bytes], repr=False)
    parting: Parting | None = None
    is_cut: bool = False
    shards: str | None = None

    @property
    def end(self) -> int:
        """Microbatches before it and in it."""
        return self.first + len(self.microbatches)


class RunRecorder:
    """Makes loaders and records what they deliver.

    Args:
        make_loader: Returns a new ``ShardedDataLoader``; takes some of its arguments as keywords.
        deadline_s: When recording ends, by ``time.monotonic``; None: not before it is done.
        progress: Called with the number of microbatches recorded since the last call.
    """

    def __init__(
        self, make_loader: Callable[..., Any], deadline_s: float | None, progress: Callable[[int], None]
    ) -> None:
        self._make_loader = make_loader
        self.deadline_s = deadline_s
        self._progress = progress

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline_s is not None and monotonic() > self.deadline_s

    def base(self, setting: Setting, count: int | None, share: float) -> RecordedRun:
        """Record a run from the start, with its states and copies of its microbatches.

        Args:
            setting: How it runs.
            count: How many microbatches; None: one epoch and a quarter, but at most 200.
            share: The part of what is left of the time that it may take.

        Raises:
            ConfigurationError: The loader delivers nothing.
            Exception: What the dataset raises.
        """
        deadline_s = None if self.deadline_s is None else monotonic() + share * (self.deadline_s - monotonic())
        run = self._record(setting, count, deadline_s=deadline_s, is_base=True)
        if len(run.microbatches) < 2 and not run.is_cut:
            raise ConfigurationError("loader", len(run.microbatches), "one that delivers two microbatches at least")
        return run

    def compared(
        self, setting: Setting, reference: RecordedRun, count: int | None = None, *, is_base: bool = False
    ) -> RecordedRun:
        """Record a run from the start, and compare it with another as far as that goes or ``count`` says.

        Raises:
            Exception: What the dataset raises.
        """
        count = len(reference.microbatches) if count is None else count
        return self._record(setting, count, reference=reference, deadline_s=self.deadline_s, is_base=is_base)

    def resumed(self, setting: Setting, state: bytes, stop: int, reference: RecordedRun) -> RecordedRun:
        """Record what a fresh loader delivers after a state, and compare it with the rest of a run.

        Args:
            setting: How it runs.
            state: What ``torch.save`` wrote.
            stop: Microbatches before the state.
            reference: The run that it has to go on like.

        Raises:
            StateMismatchError: The fresh loader does not take the state.
            Exception: What the dataset raises.
        """
        count = len(reference.microbatches) - stop
        return self._record(setting, count, first=stop, state=state, reference=reference, deadline_s=self.deadline_s)

    def _record(
        self,
        setting: Setting,
        count: int | None,
        *,
        deadline_s: float | None,
        first: int = 0,
        state: bytes | None = None,
        reference: RecordedRun | None = None,
        is_base: bool = False,
    ) -> RecordedRun:
        microbatches: list[Delivered] = []
        states: dict[int, bytes] = {}
        parting: Parting | None = None
        left_bytes = 0 if reference is not None else _MOST_COPIED_BYTES
        is_cut = False
        with self._loader(setting) as loader:
            shards = loader.local_state_dict()["fingerprint"].get("shards")
            if state is not None:
                loader.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
            for place, microbatch in _endless(loader):
                found = Delivered(place, digest(microbatch), _copied(microbatch, left_bytes))
                left_bytes -= found.copy.size_bytes if found.copy else 0
                if reference is not None and parting is None:
                    index = first + len(microbatches)
                    parting = _parting(index, reference.microbatches[index], found, microbatch)
                microbatches.append(found)
                if is_base:
                    states[len(microbatches)] = _saved(loader)
                del microbatch
                self._progress(1)
                is_cut = deadline_s is not None and monotonic() > deadline_s
                if is_cut or _is_enough(microbatches, count):
                    break
        if reference is not None and parting is None and count is not None and len(microbatches) < count and not is_cut:
            index = first + len(microbatches)
            parting = Parting(index, reference.microbatches[index].place, None, None)
        return RecordedRun(setting, first, tuple(microbatches), states, parting, is_cut, shards)

    def _loader(self, setting: Setting) -> ShardedDataLoader:
        loader = self._make_loader(**setting.overrides())
        if not isinstance(loader, ShardedDataLoader):
            raise ConfigurationError("make_loader", loader, "a function that returns a ShardedDataLoader")
        return loader


def _endless(loader: ShardedDataLoader) -> Iterator[tuple[RecordedPlace, Microbatch]]:
    """Yield the microbatches of epoch after epoch, until an epoch has none."""
    while True:
        before, num_before = _place(loader), loader.statistics().delivered
        for microbatch in loader:
            after = _place(loader)
            # After a shard's last microbatch the loader stands in the next shard, or in the next epoch.
            yield (after._replace(microbatch=after.microbatch - 1) if after.microbatch else before), microbatch
            before = after
        if loader.statistics().delivered == num_before:
            return


def _place(loader: ShardedDataLoader) -> RecordedPlace:
    state = loader.local_state_dict()
    return RecordedPlace(state["epoch"], state["index"] + 1, state["microbatch"])


def _is_enough(microbatches: list[Delivered], count: int | None) -> bool:
    if count is not None:
        return len(microbatches) >= count
    in_first_epoch = sum(1 for delivered in microbatches if delivered.place.epoch == 0)
    beyond = len(microbatches) - in_first_epoch
    return len(microbatches) >= _DEFAULT_NUM_MICROBATCHES or beyond >= max(2, in_first_epoch // 4)


def _saved(loader: ShardedDataLoader) -> bytes:
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    return file.getvalue()


def _copied(microbatch: Microbatch, most_bytes: int) -> Copy | None:
    if most_bytes <= 0:
        return None
    with contextlib.suppress(Exception):  # in process, a microbatch need not pickle
        encoded = encode(microbatch)
        size_bytes = encoded.size_bytes + len(encoded.envelope)
        return Copy(copy.deepcopy(microbatch), size_bytes) if size_bytes <= most_bytes else None
    return None


def _parting(index: int, expected: Delivered, found: Delivered, microbatch: Microbatch) -> Parting | None:
    if expected.digest == found.digest:
        return None
    difference = None if expected.copy is None else first_difference(expected.copy.microbatch, microbatch)
    return Parting(index, expected.place, found.place, difference)

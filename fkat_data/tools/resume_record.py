"""Record a run of a loader: the digest of every microbatch, and the loader's states along the way."""

import contextlib
import copy
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic  # by name: an experiment may pin the module's function, but not the deadline's clock
from typing import Any, NamedTuple, cast

import torch

from fkat_data.errors import ConfigurationError
from fkat_data.loaders.sharded import ShardedDataLoader
from fkat_data.testing.content_digest import Difference, digest, first_difference
from fkat_data.transport.codec import encode
from fkat_data.types import Microbatch

_DEFAULT_NUM_MICROBATCHES = 200
_MOST_COPIED_BYTES = 256 << 20


class Setting(NamedTuple):
    """The settings with which a loader runs. None of them may change the data.

    Attributes:
        multiprocessing: True: in worker processes; False: in process.
        num_shard_prefetches: Shards to prefetch; None: the loader's own number.
        num_microbatch_prefetches: Microbatches to prefetch; None: the loader's own number.
    """

    multiprocessing: bool
    num_shard_prefetches: int | None = None
    num_microbatch_prefetches: int | None = None

    def overrides(self) -> dict[str, Any]:
        """Return the arguments to override when the loader is made."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def __str__(self) -> str:
        text = "workers" if self.multiprocessing else "in process"
        if self.num_shard_prefetches is not None:
            text += f", {self.num_shard_prefetches}/{self.num_microbatch_prefetches} ahead"
        return text


class RecordedPosition(NamedTuple):
    """A microbatch's position in the order. All numbers count from 0.

    Attributes:
        epoch: The epoch.
        shard: The shard's position in this rank's order of the epoch.
        microbatch: The microbatch's position in the shard.
    """

    epoch: int
    shard: int
    microbatch: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard}, microbatch {self.microbatch}"


class Delivered(NamedTuple):
    """One microbatch of a run.

    Attributes:
        position: Its position.
        digest: The digest of its content.
        copy: A copy of the microbatch, in a tuple; empty if none was kept.
    """

    position: RecordedPosition
    digest: str
    copy: tuple[Microbatch, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first microbatch in which two runs differ.

    Attributes:
        index: The number of microbatches before it since the start of the first epoch.
        expected_position: Its position in the first run.
        found_position: Its position in the second run; None: that run has no more microbatches.
        difference: The first difference within it; None if no copy of the first run's microbatch was kept.
    """

    index: int
    expected_position: RecordedPosition
    found_position: RecordedPosition | None
    difference: Difference | None

    def __str__(self) -> str:
        text = f"microbatch {self.index} of the run ({self.expected_position})"
        if self.found_position is None:
            return f"{text}: missing"
        if self.found_position != self.expected_position:
            text += f", delivered as {self.found_position}"
        return f"{text}: {self.difference or 'different digest'}"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The microbatches that one loader delivered.

    Attributes:
        setting: How the loader ran.
        first: The number of microbatches before the run's first.
        microbatches: The delivered microbatches.
        states: The loader's states as written by ``torch.save``, by the number of microbatches before each; only a
            base run has them.
        divergence: The first difference from the run that it was compared with.
        is_cut: Whether the deadline ended the run early.
        shards: A digest of the first epoch's shards in their order; None if the order is not known beforehand.
    """

    setting: Setting
    first: int
    microbatches: tuple[Delivered, ...]
    states: Mapping[int, bytes] = field(default_factory=dict[int, bytes], repr=False)
    divergence: Divergence | None = None
    is_cut: bool = False
    shards: str | None = None

    @property
    def end(self) -> int:
        """The number of microbatches before its end."""
        return self.first + len(self.microbatches)


class RunRecorder:
    """Makes loaders and records what they deliver.

    Args:
        make_loader: Returns a new ``ShardedDataLoader``. Takes some of the loader's arguments as keywords.
        deadline_s: When recording ends early, by ``time.monotonic``; None: never.
        progress: The recorder calls it with the number of microbatches recorded since the last call.
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

    def record_base(self, setting: Setting, count: int | None, share: float) -> RecordedRun:
        """Record a run from the start, with its states and copies of its microbatches.

        Args:
            setting: How the loader runs.
            count: The number of microbatches; None: one epoch and a quarter, but at most 200.
            share: The share of the remaining time that the run may take.

        Raises:
            ConfigurationError: The loader delivers fewer than two microbatches.
            Exception: The dataset raised it.
        """
        deadline_s = None if self.deadline_s is None else monotonic() + share * (self.deadline_s - monotonic())
        run = self._record(setting, count, deadline_s=deadline_s, is_base=True)
        if len(run.microbatches) < 2 and not run.is_cut:
            raise ConfigurationError("loader", len(run.microbatches), "at least two microbatches")
        return run

    def record_compared(self, setting: Setting, reference: RecordedRun, *, is_base: bool = False) -> RecordedRun:
        """Record a run from the start, and compare it with a run of the same length.

        Raises:
            Exception: The dataset raised it.
        """
        count = len(reference.microbatches)
        return self._record(setting, count, reference=reference, deadline_s=self.deadline_s, is_base=is_base)

    def record_resumed(self, setting: Setting, state: bytes, stop: int, reference: RecordedRun) -> RecordedRun:
        """Record what a new loader delivers from a state on, and compare it with the rest of a run.

        Args:
            setting: How the loader runs.
            state: The state as written by ``torch.save``.
            stop: The number of microbatches before the state.
            reference: The run to compare with.

        Raises:
            StateMismatchError: The new loader rejects the state.
            Exception: The dataset raised it.
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
        divergence: Divergence | None = None
        left_bytes = 0 if reference is not None else _MOST_COPIED_BYTES
        is_cut = False
        with self._loader(setting) as loader:
            shards = loader.local_state_dict()["fingerprint"].get("shards")
            if state is not None:
                loader.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
            for position, microbatch in _endless(loader):
                kept, size_bytes = _copied(microbatch, left_bytes)
                found = Delivered(position, digest(microbatch), kept)
                left_bytes -= size_bytes
                if reference is not None and divergence is None:
                    index = first + len(microbatches)
                    divergence = _divergence(index, reference.microbatches[index], found, microbatch)
                microbatches.append(found)
                if is_base:
                    states[len(microbatches)] = _saved(loader)
                del microbatch
                self._progress(1)
                is_cut = deadline_s is not None and monotonic() > deadline_s
                if is_cut or _is_enough(microbatches, count):
                    break
        is_short = count is not None and len(microbatches) < count and not is_cut
        if reference is not None and divergence is None and is_short:
            index = first + len(microbatches)
            divergence = Divergence(index, reference.microbatches[index].position, None, None)
        return RecordedRun(setting, first, tuple(microbatches), states, divergence, is_cut, shards)

    def _loader(self, setting: Setting) -> ShardedDataLoader:
        loader = self._make_loader(**setting.overrides())
        if not isinstance(loader, ShardedDataLoader):
            raise ConfigurationError("make_loader", loader, "a function that returns a ShardedDataLoader")
        return cast("ShardedDataLoader[Any]", loader)


def _endless(loader: ShardedDataLoader) -> Iterator[tuple[RecordedPosition, Microbatch]]:
    """Yield the microbatches of one epoch after another, until an epoch has none."""
    while True:
        before, num_before = _position(loader), loader.statistics().delivered
        for microbatch in loader:
            after = _position(loader)
            # After a shard's last microbatch, the loader's state points to the next shard or the next epoch.
            yield (after._replace(microbatch=after.microbatch - 1) if after.microbatch else before), microbatch
            before = after
        if loader.statistics().delivered == num_before:
            return


def _position(loader: ShardedDataLoader) -> RecordedPosition:
    state = loader.local_state_dict()
    return RecordedPosition(state["epoch"], state["index"] + 1, state["microbatch"])


def _is_enough(microbatches: list[Delivered], count: int | None) -> bool:
    if count is not None:
        return len(microbatches) >= count
    in_first_epoch = sum(1 for delivered in microbatches if delivered.position.epoch == 0)
    beyond = len(microbatches) - in_first_epoch
    return len(microbatches) >= _DEFAULT_NUM_MICROBATCHES or beyond >= max(2, in_first_epoch // 4)


def _saved(loader: ShardedDataLoader) -> bytes:
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    return file.getvalue()


def _copied(microbatch: Microbatch, most_bytes: int) -> tuple[tuple[Microbatch, ...], int]:
    """Return a copy of a microbatch, in a tuple, and its approximate size; none if that is too large."""
    with contextlib.suppress(Exception):  # a microbatch made in process may be impossible to pickle
        encoded = encode(microbatch) if most_bytes > 0 else None
        if encoded is not None and (size_bytes := encoded.size_bytes + len(encoded.envelope)) <= most_bytes:
            return (copy.deepcopy(microbatch),), size_bytes
    return (), 0


def _divergence(index: int, expected: Delivered, found: Delivered, microbatch: Microbatch) -> Divergence | None:
    if expected.digest == found.digest:
        return None
    difference = first_difference(expected.copy[0], microbatch) if expected.copy else None
    return Divergence(index, expected.position, found.position, difference)

"""The epochs of a configuration: which rank reads which sample when, in this world or another, and the state that says it."""

import contextlib
import hashlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from logging import getLogger
from multiprocessing.context import get_spawning_popen
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import get_worker_info

from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.errors.arguments import check_version, integer, saved_integer
from fkat_data.plan.growth import log_growth
from fkat_data.streaming.epoch.shared_orders import shared_part
from fkat_data.streaming.epoch.shared_resume import LARGEST_NUMBER, ResumePoint
from fkat_data.streaming.epoch.world import World
from fkat_data.streaming.order.batching import BatchCounts
from fkat_data.streaming.order.epoch_order import (
    EpochPlan,
    EpochStart,
    JoinedBatches,
    JoinedPlan,
    OrderedSamples,
    OrderSettings,
    batching_of,
    check_order,
    epoch_of_phase,
    ordered_samples,
    plan_epoch,
    selected_samples,
)
from fkat_data.streaming.order.partition import Grid
from fkat_data.streaming.order.shuffle import OrderCache, in_memory
from fkat_data.streaming.order.weights import StreamShares, StreamWeight, joined_shares, shares_of

_Integers = npt.NDArray[np.int64]

#: The reference's states have none, and those of this library so far do not either.
_VERSION = 1
#: The samples of a round that ranks of another number, who are not known, may have filled up.
_MOST_IN_ROUND = 1 << 20
#: The sizes of shards that are hashed to find how many there were: a few seconds.
_MOST_HASHED = 1 << 28
_REQUIRED = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")


def resume_point_of(state_dict: object) -> ResumePoint:
    """Return the resume point in a state dict that this library or the reference saved.

    Raises:
        StateMismatchError: A field is missing or invalid, or a newer version wrote the state. The message names it.
    """
    if not isinstance(state_dict, Mapping):
        raise StateMismatchError("state_dict", state_dict, "<a mapping>", "pass what state_dict() returned")
    state = cast("Mapping[str, Any]", state_dict)
    check_version(state, _VERSION, default=_VERSION)
    for field in _REQUIRED:
        if field not in state:
            raise StateMismatchError(field, "<missing>", "<an integer>", "this is not the state of a streaming dataset")
    nodes = state.get("initial_physical_nodes")
    return ResumePoint(
        _number(state, "epoch", 0),
        _number(state, "sample_in_epoch", 0),
        _number(state, "num_canonical_nodes", 1),
        _number(state, "shuffle_seed", 0),
        None if nodes is None else _number(state, "initial_physical_nodes", 1),
        _grid(state),
    )


def check_fingerprint(saved: object, present: Mapping[str, Any]) -> None:
    """Compare a saved fingerprint with the present one.

    Raises:
        StateMismatchError: They differ. The message names the first field that does.
    """
    if not isinstance(saved, Mapping):
        raise StateMismatchError("fingerprint", saved, dict(present), "pass what state_dict() returned")
    found = cast("Mapping[str, Any]", saved)
    for field in [*present, *(field for field in found if field not in present)]:
        if field not in found or field not in present or found[field] != present[field]:
            raise StateMismatchError(
                field,
                found.get(field, "<none>"),
                present.get(field, "<none>"),
                "the samples would come in a different order; restore the setting, or start over without the state",
            )


def _digest(settings: OrderSettings, weights: Sequence[StreamWeight]) -> str:
    made = hashlib.blake2s(digest_size=16)
    for sizes, weight in zip(settings.shard_sizes, weights, strict=True):
        value = None if weight.value is None else float(weight.value)
        made.update(f"{weight.kind} {value} {len(sizes)};".encode())
        made.update(np.ascontiguousarray(sizes, "<i8").tobytes())
    return made.hexdigest()


def _grid(state: Mapping[str, Any]) -> Grid | None:
    saved: Any = state.get("initial_grid")
    if saved is None:
        return None
    names = [field.name for field in fields(Grid)]
    if not isinstance(saved, Mapping) or set(cast("Mapping[str, Any]", saved)) != set(names):
        raise StateMismatchError("initial_grid", cast("object", saved), f"<a mapping with {', '.join(names)}>")
    return Grid(*(_number(cast("Mapping[str, Any]", saved), name, 1) for name in names))


def _number(state: Mapping[str, Any], field: str, minimum: int) -> int:
    return saved_integer(field, state[field], minimum=minimum, maximum=LARGEST_NUMBER)


_EXPECTED = (
    "a list of {'from_sample': n, 'weights': [one proportion for each stream]}, with from_sample starting at 0 and "
    "increasing"
)


class WeightSchedule:
    """Proportions of the streams as a function of the samples planned for all ranks since the first epoch.

    A change of weights within an epoch divides it into phases. Each phase is planned like an epoch of its size.

    Args:
        given: A list of ``{"from_sample": 0, "weights": [3, 1]}``, where ``from_sample`` starts at 0 and increases.
        num_streams: Number of streams. Each entry needs a weight for each of them.
        epoch_size: Samples in an epoch.

    Raises:
        ConfigurationError: ``given`` has another form, or a weight is invalid.
    """

    def __init__(self, given: Sequence[Mapping[str, Any]], num_streams: int, epoch_size: int) -> None:
        if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence) or not given:
            raise ConfigurationError("weight_schedule", given, _EXPECTED)
        self._entries = [_entry(item, num_streams) for item in given]
        starts = [start for start, _ in self._entries]
        if starts[0] != 0 or starts != sorted(set(starts)):
            raise ConfigurationError("weight_schedule", starts, _EXPECTED)
        self._epoch_size = epoch_size

    @property
    def changing_epochs(self) -> list[int]:
        """The epochs in which an entry of the schedule takes effect, in ascending order."""
        return sorted({start // self._epoch_size for start, _ in self._entries})

    def phases(self, epoch: int) -> list[tuple[int, list[StreamWeight]]]:
        """Return the phases of an epoch: each one's number of samples, and the streams' weights."""
        first = epoch * self._epoch_size
        end = first + self._epoch_size
        starts = [first, *(start for start, _ in self._entries if first < start < end)]
        return [(stop - start, self._weights_at(start)) for start, stop in zip(starts, [*starts[1:], end], strict=True)]

    def plain(self) -> list[dict[str, Any]]:
        """Return the schedule as a state keeps it."""
        return [{"from_sample": start, "weights": list(values)} for start, values in self._entries]

    def check_past(self, saved: object, epoch: int, sample_in_epoch: int) -> None:
        """Check that a saved schedule had the same weights up to a resume point; later weights may change.

        The weights of an epoch that has begun may not change: each phase is planned as a whole.

        Raises:
            StateMismatchError: The saved schedule had different weights.
        """
        limit = epoch * self._epoch_size + (self._epoch_size - 1 if sample_in_epoch else 0)
        present = [entry for entry in self.plain() if entry["from_sample"] <= limit]
        entries = cast("Sequence[Any]", saved if isinstance(saved, (list, tuple)) else ())
        past: list[Any] = [entry for entry in entries if _start(entry) <= limit]
        if past != present:
            raise StateMismatchError("weight_schedule", past, present, "only the weights of later epochs may change")

    def _weights_at(self, sample: int) -> list[StreamWeight]:
        values = next(values for start, values in reversed(self._entries) if start <= sample)
        return [StreamWeight("proportion", value) for value in values]


def _start(entry: Any) -> int:
    start = cast("dict[str, Any]", entry).get("from_sample") if isinstance(entry, dict) else 0
    # An invalid start counts as 0, so the comparison includes the entry and finds the difference.
    return start if isinstance(start, int) else 0


def _entry(item: object, num_streams: int) -> tuple[int, tuple[float, ...]]:
    values = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else dict[str, Any]()
    given = values.get("weights")
    if set(values) != {"from_sample", "weights"} or isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigurationError("weight_schedule", cast("object", item), _EXPECTED)
    weights = cast("Sequence[Any]", given)
    if len(weights) != num_streams:
        raise ConfigurationError("weight_schedule", weights, f"one weight for each of the {num_streams} streams")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise ConfigurationError("weight_schedule", weights, "finite weights of at least 0")
    if not sum(weights) > 0:
        raise ConfigurationError("weight_schedule", weights, "a weight above 0 for at least one stream")
    return integer("weight_schedule", values["from_sample"], minimum=0), tuple(map(float, weights))


def caveats_of(settings: OrderSettings, shares: StreamShares, num_canonical_nodes: int) -> list[str]:
    """Return a text for each of them; the order is valid in any case.

    Args:
        settings: The settings that determine the order.
        shares: Each stream's share of an epoch.
        num_canonical_nodes: Parts of the order.
    """
    if not shares.epoch_size:
        return ["an epoch is empty: the data has no samples, or the weights of the streams choose none"]
    found: list[str] = []
    is_joint = settings.batching_method == "random"
    block_size = settings.block_size(num_canonical_nodes)
    block_sizes = [block_size if is_joint else int(block_size * proportion) for proportion in shares.proportion]
    if settings.shuffle and settings.shuffle_algo == "py1e":
        for stream, (sizes, size) in enumerate(zip(settings.shard_sizes, block_sizes, strict=True)):
            largest = int(sizes.max(initial=0))
            if largest > size:
                found.append(
                    f"py1e does not spread the shards of stream {stream} that are larger than its shuffle block: the "
                    f"largest has {largest:,} samples, the block {size:,} (shuffle_block_size)"
                )
    if not settings.is_even:
        parts = [shares.epoch_size] if is_joint else [count for count in shares.choose if count]
        if min(parts, default=num_canonical_nodes) < num_canonical_nodes:
            found.append(
                f"an epoch repeats samples: {min(parts):,} samples are fewer than the {num_canonical_nodes} canonical "
                "nodes (num_canonical_nodes)"
            )
    return found


_logger = getLogger(__name__)


@dataclass(frozen=True)
class Epochs:
    """The plan of every epoch of a configuration.

    Attributes:
        settings: The settings that determine the order.
        weights: Each stream's weight as the user gave it.
        schedule: Weights that change during training; None if they do not.
        epoch_size: Samples in an epoch; None to derive it from the weights.
        shuffle_seed: Seed of the shuffle, unless a loaded state has another one.
        num_canonical_nodes: Parts of the order, unless a loaded state has another number; None for the shuffle's
            default.
        batch_size: Samples in a rank's batch; reading an epoch needs one.
        replication: Number of consecutive ranks that read the same samples; None for 1.
        fixed_world: This process's world; None to ask torch.distributed and the environment.
        trainer_world: In a worker that torch's DataLoader spawned: the trainer's world; else None.
        begun: An epoch that was begun before shards were appended, and the shards that the last stream has in it.
    """

    settings: OrderSettings
    weights: Sequence[StreamWeight]
    schedule: WeightSchedule | None
    epoch_size: int | None
    shuffle_seed: int
    num_canonical_nodes: int | None
    batch_size: int | None
    replication: int | None
    fixed_world: World | None
    trainer_world: World | None = None
    begun: tuple[int, int] | None = None

    def check(self) -> None:
        """Check that every epoch can be planned, without planning its samples.

        Raises:
            ConfigurationError: An epoch cannot be planned.
        """
        for epoch in [0] if self.schedule is None else self.schedule.changing_epochs:
            point = self.with_defaults(ResumePoint(epoch))
            for shares in self.phases(epoch):
                check_order(self.settings, shares, cast("int", point.num_canonical_nodes))
            if self.batch_size is not None:
                self.batching(point)

    def caveats(self) -> list[str]:
        """Return what the first epoch does that users rarely mean, in words."""
        num_canonical_nodes = cast("int", self.with_defaults(ResumePoint()).num_canonical_nodes)
        found = [caveats_of(self.settings, shares, num_canonical_nodes) for shares in self.phases(0)]
        return list(dict.fromkeys(text for texts in found for text in texts))

    def shares(self, epoch: int) -> StreamShares:
        """Return each stream's share of an epoch."""
        return joined_shares(self.phases(epoch), self._sizes_in(epoch))

    def settings_in(self, epoch: int) -> OrderSettings:
        """Return the settings that determine the order of an epoch."""
        if self.begun is None or self.begun[0] != epoch:
            return self.settings
        *others, last = self.settings.shard_sizes
        return replace(self.settings, shard_sizes=(*others, last[: self.begun[1]]))

    def _sizes_in(self, epoch: int) -> list[int]:
        return [int(sizes.sum()) for sizes in self.settings_in(epoch).shard_sizes]

    def phases(self, epoch: int) -> list[StreamShares]:
        """Return each stream's share of each phase of an epoch; an epoch with constant weights has one phase."""
        sizes = self._sizes_in(epoch)
        if self.schedule is None:
            return [shares_of(self.weights, sizes, self.epoch_size, self.shuffle_seed)]
        return [shares_of(weights, sizes, size, self.shuffle_seed) for size, weights in self.schedule.phases(epoch)]

    def world(self) -> World:
        """Return this process's world, which counts replicated ranks as one."""
        known = self._known_world()
        return self._replicated(World.here() if known is None else known.with_workers())

    def world_sizes(self) -> World:
        """Return the world of rank 0, without workers. The numbers of nodes and ranks are known before this rank is."""
        return self._replicated(self._known_world() or World.of_job())

    def _known_world(self) -> World | None:
        return self.fixed_world or (None if get_worker_info() is None else self.trainer_world)

    def _replicated(self, world: World) -> World:
        return world if self.replication is None else world.replicated(self.replication)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        # multiprocessing is starting a process. If that is a DataLoader's worker, it has no process group.
        if get_spawning_popen() is not None and get_worker_info() is None:
            with contextlib.suppress(ConfigurationError):
                state["trainer_world"] = World.here()
        return state

    def grid(self) -> Grid:
        """Return the ranks that read in parallel, and their batch size.

        Raises:
            ConfigurationError: ``batch_size`` is not set.
        """
        if self.batch_size is None:
            raise ConfigurationError("batch_size", None, "a number of samples: the order depends on it")
        sizes = self.world_sizes()
        return Grid(sizes.num_nodes, sizes.ranks_per_node, self.batch_size)

    def with_defaults(self, point: ResumePoint) -> ResumePoint:
        """Return a resume point with the missing fields filled in from this configuration and world."""
        num_nodes = self.world_sizes().num_nodes
        nodes = point.num_canonical_nodes or self.num_canonical_nodes or self.settings.canonical_nodes(num_nodes)
        seed = self.shuffle_seed if point.shuffle_seed is None else point.shuffle_seed
        first = point.initial_physical_nodes or num_nodes
        grid = None
        if self.settings.depends_on_grid and self.batch_size is not None:
            grid = point.initial_grid if point.sample_in_epoch and point.initial_grid else self.grid()
        return ResumePoint(point.epoch, point.sample_in_epoch, nodes, seed, first, grid)

    def batching(self, point: ResumePoint) -> BatchCounts:
        """Return the global batches from a resume point on, without their samples.

        Raises:
            ConfigurationError: Weights change in the middle of a global batch, or the sizes and numbers of nodes do
                not divide as the order requires.
        """
        settings = self.settings_in(point.epoch)
        phases = [batching_of(settings, *phase, self.grid()) for phase in self._rest(point)]
        return phases[0] if len(phases) == 1 else JoinedBatches(phases)

    def plan(self, point: ResumePoint) -> EpochPlan:
        """Return the plan of the rest of an epoch from a resume point on."""
        order_cache, settings = self._order_cache(), self.settings_in(point.epoch)
        phases = [plan_epoch(settings, *phase, self.grid(), order_cache) for phase in self._rest(point)]
        return phases[0] if len(phases) == 1 else JoinedPlan(phases)

    def ordered(self, epoch: int, shuffle_seed: int, num_canonical_nodes: int) -> list[OrderedSamples]:
        """Return the order of an epoch's samples, whatever the ranks and the batch size, for each of its phases."""
        order_cache = self._order_cache()
        phases = enumerate(self.phases(epoch))
        starts = [
            (shares, EpochStart(epoch_of_phase(epoch, number), 0, shuffle_seed, num_canonical_nodes))
            for number, shares in phases
        ]
        return [ordered_samples(self.settings_in(epoch), shares, start, order_cache) for shares, start in starts]

    def resampled(self, epoch: int, shuffle_seed: int, stream: int | None) -> tuple[_Integers, _Integers]:
        """Return the sizes of an epoch's shuffle units, and their samples' numbers, phase by phase.

        Args:
            epoch: The epoch.
            shuffle_seed: The seed of the shuffle.
            stream: The stream whose samples are selected alone; None: all.
        """
        found = [
            selected_samples(
                self.settings_in(epoch), shares, EpochStart(epoch_of_phase(epoch, number), 0, shuffle_seed, 1), stream
            )
            for number, shares in enumerate(self.phases(epoch))
        ]
        unit_sizes, sample_ids = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return unit_sizes, sample_ids

    def _order_cache(self) -> OrderCache:
        sizes = self._known_world() or World.of_job()
        return in_memory if sizes.num_ranks == 1 and get_worker_info() is None else shared_part

    def _rest(self, point: ResumePoint) -> list[tuple[StreamShares, EpochStart]]:
        """Return the remaining phases of an epoch: the streams' shares, and where each phase starts or resumes."""
        phases, grid, left = self.phases(point.epoch), self.grid(), point.sample_in_epoch
        settings = self.settings_in(point.epoch)
        complete = self.with_defaults(point)
        self._check_grid(complete.initial_grid, grid)
        rest: list[tuple[StreamShares, EpochStart]] = []
        for number, shares in enumerate(phases):
            beginning = EpochStart(
                epoch_of_phase(point.epoch, number),
                0,
                cast("int", complete.shuffle_seed),
                cast("int", complete.num_canonical_nodes),
                complete.initial_physical_nodes,
                complete.initial_grid,
                is_exact=True,
            )
            if number < len(phases) - 1:
                whole = batching_of(settings, shares, beginning, grid)
                read = whole.num_rank_samples(whole.num_even_batches) * grid.num_ranks
                if read == 0 or read % grid.global_batch_size or shares.epoch_size % grid.global_batch_size:
                    size = sum(shares.epoch_size for shares in phases)
                    change = point.epoch * size + sum(shares.epoch_size for shares in phases[: number + 1])
                    raise ConfigurationError(
                        "weight_schedule",
                        {"from_sample": change},
                        f"a change within an epoch to come after whole global batches of {grid.global_batch_size} "
                        f"samples that every rank reads; the weights before it last for {shares.epoch_size} samples",
                    )
                if left >= read:
                    left -= read
                    continue
            rest.append((shares, replace(beginning, sample_in_epoch=left)))
            left = 0
        return rest

    def fingerprint(self, epoch: int = 0) -> dict[str, Any]:
        """Return the settings that determine the order of an epoch and that the reference's state lacks."""
        settings = self.settings_in(epoch)
        found: dict[str, Any] = {
            "shards": _digest(settings, self.weights),
            "epoch_size": self.shares(epoch).epoch_size,
            "sampling_method": settings.sampling_method,
            "sampling_granularity": settings.sampling_granularity,
            "batching_method": settings.batching_method,
            "shuffle": settings.shuffle,
        }
        # "random" mixes streams sample by sample, so the order does not depend on the batch size.
        if settings.batching_method != "random" and self.batch_size is not None:
            found["global_batch_size"] = self.world_sizes().num_ranks * self.batch_size
        if settings.shuffle:
            found |= {"shuffle_algo": settings.shuffle_algo, "shuffle_block_size": settings.shuffle_block_size}
        return found

    def state(self, point: ResumePoint) -> dict[str, Any]:
        """Return a complete resume point as a state dict: the reference's keys, and what must match on load.

        What may have other parts at a resume is a tuple, which torch.distributed.checkpoint saves whole.
        """
        state: dict[str, Any] = {
            "epoch": point.epoch,
            "sample_in_epoch": point.sample_in_epoch,
            "num_canonical_nodes": point.num_canonical_nodes,
            "shuffle_seed": point.shuffle_seed,
            "initial_physical_nodes": point.initial_physical_nodes,
        }
        if point.initial_grid is not None:
            state["initial_grid"] = asdict(point.initial_grid)
        state["fingerprint"] = self.fingerprint(point.epoch)
        if self.schedule is not None:
            state["weight_schedule"] = tuple(self.schedule.plain())
        return state

    def as_begun(self, state_dict: Mapping[str, Any]) -> "Epochs":
        """Return the same where a state's epoch has only the shards that the last stream had then.

        Numbers of samples stay what they were where it alone has grown. A schedule counts samples by epochs of one size.
        """
        point, saved, found = resume_point_of(state_dict), state_dict.get("fingerprint"), replace(self, begun=None)
        digest: object = cast("Mapping[str, Any]", saved).get("shards") if isinstance(saved, Mapping) else None
        is_fixed = self.schedule is not None and self.epoch_size is None
        if digest is None or is_fixed or digest == _digest(self.settings, self.weights):
            return found
        num_shards = len(self.settings.shard_sizes[-1])
        for count in self._beginnings(point.epoch, cast("Mapping[str, Any]", saved).get("epoch_size")):
            before = replace(self, begun=(point.epoch, count))
            if _digest(before.settings_in(point.epoch), self.weights) == digest:
                log_growth("shard", num_shards - count, point.epoch - (not point.sample_in_epoch))
                return before
        return found

    def _beginnings(self, epoch: int, epoch_size: object) -> Sequence[int]:
        """Return how many shards the last stream may have had in an epoch of this size, the largest number first."""

        def size_with(num_shards: int) -> int:
            try:
                return replace(self, begun=(epoch, num_shards)).shares(epoch).epoch_size
            except ConfigurationError:  # there are too few shards for the weights
                return -1

        if not isinstance(epoch_size, int):
            return []
        counts = range(1, len(self.settings.shard_sizes[-1]))
        first, last = bisect_left(counts, epoch_size, key=size_with), bisect_right(counts, epoch_size, key=size_with)
        # Where numbers of samples are given, all have one size.
        most = _MOST_HASHED // sum(map(len, self.settings.shard_sizes)) + 1
        return counts[max(first, last - most) : last][::-1]

    def resume_point(self, state_dict: Mapping[str, Any]) -> ResumePoint:
        """Return the resume point in a state dict.

        Raises:
            StateMismatchError: It is not a streaming dataset's state, or another configuration wrote it.
            ConfigurationError: Its position does not fit this world.
        """
        point = resume_point_of(state_dict)
        if "fingerprint" in state_dict:
            check_fingerprint(state_dict["fingerprint"], self.fingerprint(point.epoch))
        if self.schedule is not None and "weight_schedule" in state_dict:
            self.schedule.check_past(state_dict["weight_schedule"], point.epoch, point.sample_in_epoch)
        if self.batch_size is not None:
            self._check_position(point, is_of_these="fingerprint" in state_dict)
            self.batching(point)
        if point.sample_in_epoch and point.initial_grid is None and self.settings.depends_on_grid:
            sizes = self.world_sizes()
            _logger.warning(
                "the state has no initial_grid: continuing as if its epoch began with %d nodes, %d ranks on each and "
                "batches of %s; if it did not, samples repeat or are lost until the epoch ends",
                sizes.num_nodes,
                sizes.ranks_per_node,
                self.batch_size,
            )
        return point

    def _check_position(self, point: ResumePoint, *, is_of_these: bool) -> None:
        """Check that a position is of this epoch, or at its end, where ranks of any number may have filled up a round.

        Raises:
            ConfigurationError: It is of a longer epoch.
        """
        size = sum(shares.epoch_size for shares in self.phases(point.epoch))
        nodes = cast("int", self.with_defaults(point).num_canonical_nodes)
        in_round = _MOST_IN_ROUND if is_of_these else 2 * self.grid().global_batch_size
        if point.sample_in_epoch > -(-size // nodes) * nodes + in_round:
            raise ConfigurationError("sample_in_epoch", point.sample_in_epoch, f"at most the epoch's size: {size}")

    def _check_grid(self, saved: Grid | None, present: Grid) -> None:
        if saved is None:
            return
        if saved.global_batch_size != present.global_batch_size:
            raise StateMismatchError(
                "global_batch_size",
                saved.global_batch_size,
                present.global_batch_size,
                "the samples would come in a different order; keep the product of ranks and batch size",
            )
        # A rank may read a part of an earlier rank's batch, but not parts of two: they may come from two streams.
        if self.settings.batching_method == "device_per_stream" and saved.batch_size % present.batch_size:
            raise StateMismatchError(
                "batch_size",
                saved.batch_size,
                present.batch_size,
                "until the epoch ends, device_per_stream needs a batch size that divides the saved one",
            )

"""The epochs of a configuration: who reads which sample when, for this process's world or any other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch.utils.data import get_worker_info

from fkat_data.errors import ConfigurationError
from fkat_data.streaming.epoch.epoch_state import fingerprint_of
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.epoch.weight_schedule import WeightSchedule
from fkat_data.streaming.epoch.world import World
from fkat_data.streaming.order.batching import BatchCounts
from fkat_data.streaming.order.epoch_order import (
    EpochPlace,
    OrderSettings,
    batching_of,
    check_order,
    plan_epoch,
)
from fkat_data.streaming.order.joined import JoinedBatches, JoinedPlan, epoch_of_phase
from fkat_data.streaming.order.partition import Grid
from fkat_data.streaming.order.plan import Plan
from fkat_data.streaming.order.weights import StreamShares, StreamWeight, joined_shares, shares_of

__all__ = ["Epochs"]


@dataclass(frozen=True)
class Epochs:
    """What a configuration says of all epochs.

    Attributes:
        settings: What decides on the order.
        weights: What was said of the streams' weights.
        schedule: Weights that change as training goes on.
        epoch_size: Samples of an epoch; None: as the weights say.
        shuffle_seed: The shuffle's seed, where no state says another.
        num_canonical_nodes: Parts of the order, where no state says another; None: as the algorithm likes.
        batch_size: Samples of a rank's batch; None: no epoch can be read.
        replication: So many consecutive ranks are one.
        fixed_world: Who this process is; None: the environment says.
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

    def check(self) -> None:
        """Return if an epoch can be planned; looks at no sample.

        Raises:
            ConfigurationError: It cannot.
        """
        for epoch in [0] if self.schedule is None else self.schedule.changing_epochs:
            place = self.settled(ResumePoint(epoch))
            for shares in self.phases(epoch):
                check_order(self.settings, shares, cast("int", place.num_canonical_nodes))
            if self.batch_size is not None:
                self.batching(place)

    def shares(self, epoch: int) -> StreamShares:
        """Return what each stream gives to an epoch."""
        return joined_shares(self.phases(epoch), self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [int(sizes.sum()) for sizes in self.settings.shard_sizes]

    def phases(self, epoch: int) -> list[StreamShares]:
        """Return what each stream gives to each phase of an epoch: one, where weights do not change within it."""
        if self.schedule is None:
            return [shares_of(self.weights, self._sizes, self.epoch_size, self.shuffle_seed)]
        return [
            shares_of(weights, self._sizes, size, self.shuffle_seed) for size, weights in self.schedule.phases(epoch)
        ]

    def world(self) -> World:
        """Return who this process is, replicated ranks counted as one."""
        world = self.fixed_world or World.here()
        info = get_worker_info()
        if self.fixed_world is not None and info is not None:
            worker = world.rank * info.num_workers + info.id
            world = replace(world, workers_per_rank=info.num_workers, worker=worker)
        return world if self.replication is None else world.replicated(self.replication)

    def grid(self) -> Grid:
        """Return who reads side by side.

        Raises:
            ConfigurationError: There is no batch size.
        """
        if self.batch_size is None:
            raise ConfigurationError("batch_size", None, "a number of samples: the order depends on it")
        world = self.world()
        return Grid(world.num_nodes, world.ranks_per_node, self.batch_size)

    def settled(self, place: ResumePoint) -> ResumePoint:
        """Return a place in which nothing is open."""
        num_nodes = self.world().num_nodes
        nodes = place.num_canonical_nodes or self.num_canonical_nodes or self.settings.canonical_nodes(num_nodes)
        seed = self.shuffle_seed if place.shuffle_seed is None else place.shuffle_seed
        first = place.initial_physical_nodes or num_nodes
        return replace(place, num_canonical_nodes=nodes, shuffle_seed=seed, initial_physical_nodes=first)

    def batching(self, place: ResumePoint) -> BatchCounts:
        """Return the global batches from a place on, without their samples.

        Raises:
            ConfigurationError: Weights change where no global batch ends, or the numbers do not go together.
        """
        phases = [batching_of(self.settings, *phase, self.grid()) for phase in self._rest(place)]
        return phases[0] if len(phases) == 1 else JoinedBatches(phases)

    def plan(self, place: ResumePoint) -> Plan:
        """Return the rest of an epoch from a place on."""
        phases = [plan_epoch(self.settings, *phase, self.grid()) for phase in self._rest(place)]
        return phases[0] if len(phases) == 1 else JoinedPlan(phases)

    def _rest(self, place: ResumePoint) -> list[tuple[StreamShares, EpochPlace]]:
        """Return the phases of an epoch that are left, and where each begins or goes on."""
        phases, grid, left = self.phases(place.epoch), self.grid(), place.sample_in_epoch
        rest: list[tuple[StreamShares, EpochPlace]] = []
        for number, shares in enumerate(phases):
            beginning = self._epoch_place(replace(place, sample_in_epoch=0), number)
            if number < len(phases) - 1:
                whole = batching_of(self.settings, shares, beginning, grid)
                read = whole.num_rank_samples(whole.num_even_batches) * grid.num_ranks
                if read == 0 or read % grid.global_batch_size or shares.epoch_size % grid.global_batch_size:
                    size = sum(shares.epoch_size for shares in phases)
                    change = place.epoch * size + sum(shares.epoch_size for shares in phases[: number + 1])
                    raise ConfigurationError(
                        "weight_schedule",
                        {"from_sample": change},
                        f"a change within an epoch after whole global batches of {grid.global_batch_size} that every "
                        f"rank can have: the weights before it hold for {shares.epoch_size} samples",
                    )
                if left >= read:
                    left -= read
                    continue
            rest.append((shares, replace(beginning, sample_in_epoch=left)))
            left = 0
        return rest

    def fingerprint(self) -> dict[str, Any]:
        """Return what decides on the order and is no part of the reference's state."""
        size = self.batch_size
        # Mixed sample by sample, streams are in one order, whatever the size of a batch.
        is_batched = self.settings.batching_method != "random" and size is not None
        global_batch_size = self.world().num_ranks * size if is_batched and size else None
        return fingerprint_of(self.settings, self.weights, self.shares(0).epoch_size, global_batch_size)

    def _epoch_place(self, place: ResumePoint, phase: int) -> EpochPlace:
        settled = self.settled(place)
        return EpochPlace(
            epoch_of_phase(place.epoch, phase),
            place.sample_in_epoch,
            cast("int", settled.shuffle_seed),
            cast("int", settled.num_canonical_nodes),
            settled.initial_physical_nodes,
        )

"""Which rank a loader is, and which ranks disagree, before they train on data that do not belong together.

All ranks compare what decides on the plan. The ranks of one replica group, which must get the same microbatches,
compare their whole position and what was delivered. The first comparison of an iteration waits for the other ranks;
later ones run beside the steps, and are checked one interval later.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, cast

from fkat_data.errors import ConfigurationError, RankMismatchError, arguments
from fkat_data.errors.arguments import integer
from fkat_data.plan.position import Position
from fkat_data.plan.shard_plan import ElasticShardPlan, Plan
from fkat_data.runtime.distributed import Exchange, group_ranks, is_initialized, named_ranks, rank_and_world_size
from fkat_data.runtime.interruption import genuine
from fkat_data.types import ResplittableSampler


class Identity(NamedTuple):
    """What a loader's random draws depend on.

    Attributes:
        seed: The loader's seed.
        dp_rank: The loader's data-parallel rank.
        batching: How samples are grouped, which decides on what is in a microbatch; None: unknown.
    """

    seed: int
    dp_rank: int
    batching: str | None = None


def identity_of(seed: int, dp_rank: int | None, sampler: object) -> Identity:
    """Return a loader's identity from its arguments.

    Raises:
        ConfigurationError: An argument is no number, no rank of this job, or differs from its sampler's rank.
    """
    seed = integer("seed", seed)
    of_sampler = _rank_of(sampler)
    if dp_rank is None:
        return Identity(seed, of_sampler or 0)
    # There may be fewer data-parallel ranks than ranks, but not more.
    _, world_size = rank_and_world_size()
    dp_rank = integer("dp_rank", dp_rank, minimum=0, maximum=world_size - 1 if world_size > 1 else None)
    if of_sampler is not None and dp_rank != of_sampler:
        raise ConfigurationError("dp_rank", dp_rank, f"{of_sampler}, as its shard_sampler has, or none")
    return Identity(seed, dp_rank)


def _rank_of(sampler: Any) -> int | None:
    """Return the data-parallel rank whose shards a sampler gives; None if it does not say."""
    if not isinstance(sampler, ResplittableSampler) or sampler.dp_size is None:
        return None
    dp_rank = getattr(sampler, "dp_rank", None)
    return None if dp_rank is None else integer("shard_sampler.dp_rank", dp_rank, minimum=0)


_U32 = struct.Struct("<I")
_MASK = 2**63 - 1
_INTERVAL_STEPS = 100
_MOST_RANKS = 64
_DELIVERED = "the content of delivered microbatches"
_DIGESTS = {"shards", "all shards", _DELIVERED}


class RankAgreement:
    """Compares this rank with the others.

    The first comparison creates process groups, which is collective, so it waits for the first iteration.

    Args:
        replica_ranks: The ranks that must deliver what this one does, itself among them; None: there are none.
        interval_steps: Microbatches between two comparisons of a replica group.
        identity: The loader's.
        plan: The loader's.
    """

    def __init__(
        self, replica_ranks: Sequence[int] | None, interval_steps: int, identity: Identity, plan: Plan
    ) -> None:
        self._replica_ranks = replica_ranks
        self._interval_steps = interval_steps
        self._identity = identity
        self._plan = plan
        self._world: Exchange | None = None
        self._replicas: Exchange | None = None
        self._is_due = True
        self._names: tuple[str, ...] = ()
        self._digest = 0
        self._num_delivered = 0
        # Where the last microbatch was counted, and what was counted before it: an interrupted call counts it again.
        self._position: Position | None = None
        self._before = 0, 0
        self._exchanged_at: Position | None = None

    def follow(self, identity: Identity, plan: Plan) -> None:
        """Compare another plan of the same loader from the next iteration on."""
        self._identity, self._plan, self._is_due = identity, plan, True

    def demand(self) -> None:
        """Have the ranks compare when the next iteration begins."""
        self._is_due = True

    def begin(self, position: Position) -> None:
        """Compare what an iteration starts with, if that is due; wait for the other ranks.

        Raises:
            RankMismatchError: A field differs; the error names it, and its value on each rank.
        """
        if self._world is None:
            self._world = Exchange(None)
            self._replicas = None if self._replica_ranks is None else Exchange(self._replica_ranks)
        if not self._is_due:
            return
        self._digest = self._num_delivered = 0
        self._position = self._exchanged_at = None
        self._finish()
        _compare(self._world, {"seed": self._identity.seed, **shared_facts(self._plan)})
        if self._replicas is not None:
            shards = self._plan.digest(position.epoch)
            _compare(
                self._replicas,
                {"dp_rank": self._identity.dp_rank, **_facts(position), "shards": shards},
            )
        self._is_due = False

    def deliver(self, position: Position, digest: int) -> None:
        """Count a microbatch; after every ``interval_steps``, compare with the replicas in the background.

        Raises:
            RankMismatchError: The comparison before this one has found a difference.
        """
        if self._replicas is None:
            return
        if position != self._position:
            self._before = self._digest, self._num_delivered
            self._position = position
        digest_before, num_before = self._before
        self._digest = zlib.crc32(_U32.pack(digest), digest_before)
        self._num_delivered = num_before + 1
        if self._num_delivered % self._interval_steps == 0 and position != self._exchanged_at:
            self._finish()
            self._names = (*_facts(position), _DELIVERED)
            self._replicas.begin([*_facts(position).values(), self._digest])
            self._exchanged_at = position

    def _finish(self) -> None:
        if self._replicas is not None and self._replicas.is_pending:
            numbers = self._replicas.finish()
            disagreement(self._names, self._replicas.ranks, numbers)


def rank_agreement(
    replica_group: Any, interval_steps: int | None, identity: Identity, plan: Plan
) -> RankAgreement | None:
    """Return what compares the ranks as a loader's arguments ask for it; None if they do not.

    Args:
        replica_group: The ranks that must get the same microbatches: a process group or a list; None: unknown.
        interval_steps: Microbatches between two comparisons; None: the default, or none without a group.
        identity: The loader's.
        plan: The loader's.

    Raises:
        ConfigurationError: An argument cannot work, or torch.distributed is not initialised.
    """
    if replica_group is None and interval_steps is None:
        return None
    interval = arguments.integer(
        "check_ranks_every", _INTERVAL_STEPS if interval_steps is None else interval_steps, minimum=1
    )
    if not is_initialized():
        argument = "check_ranks_every" if replica_group is None else "replica_group"
        value = interval_steps if replica_group is None else replica_group
        raise ConfigurationError(argument, value, "torch.distributed to be initialised before the loader is made")
    return RankAgreement(None if replica_group is None else _members(replica_group), interval, identity, plan)


def disagreement(names: Sequence[str], ranks: Sequence[int], numbers: Sequence[Sequence[int]]) -> None:
    """Raise if ranks have different numbers.

    Args:
        names: What each number is.
        ranks: The ranks.
        numbers: Each rank's numbers, in the order of ``names``.

    Raises:
        RankMismatchError: Names the first field that differs, and which ranks have which value.
    """
    for index, name in enumerate(names):
        holders: dict[int, list[int]] = {}
        for rank, own in zip(ranks, numbers, strict=True):
            holders.setdefault(own[index], []).append(rank)
        if len(holders) > 1:
            text = "; ".join(f"{_shown(name, value)} on {named_ranks(group)}" for value, group in holders.items())
            raise RankMismatchError(name, text)


def shared_facts(plan: Plan) -> dict[str, int | str | None]:
    """Return what the plans of all data-parallel ranks must have alike, by name."""
    if not isinstance(plan, ElasticShardPlan):
        return {"dp_size": None, "all shards": None}
    # In a very large job, some ranks' shards stand for all: lists that differ rarely differ in one shard alone.
    plan = plan.with_growth(None)  # the present lists, which ranks may have read at different times
    some = {*range(0, plan.dp_size, max(1, plan.dp_size // _MOST_RANKS)), plan.dp_size - 1}
    digests = [plan.for_rank(plan.dp_size, dp_rank, 0).digest(0) for dp_rank in sorted(some)]
    return {"dp_size": plan.dp_size, "all shards": ",".join(map(str, digests))}


def _members(group: Any) -> list[int]:
    """Return the ranks of a process group, or of a list of them."""
    if isinstance(group, Sequence) and not isinstance(group, str):
        world_size = rank_and_world_size()[1]
        members = [
            arguments.integer(f"replica_group[{index}]", rank, minimum=0, maximum=world_size - 1)
            for index, rank in enumerate(cast("Sequence[object]", group))
        ]
    else:
        try:
            members = group_ranks(group)
        except genuine(TypeError, KeyError, ValueError, RuntimeError, AttributeError) as error:
            raise ConfigurationError("replica_group", group, "a process group, or a list of ranks") from error
    if rank_and_world_size()[0] not in members:
        raise ConfigurationError("replica_group", members, f"a group with this rank, {rank_and_world_size()[0]}, in it")
    return sorted(members)


def _compare(exchange: Exchange, facts: Mapping[str, int | str | None]) -> None:
    exchange.begin([_number(value) for value in facts.values()])
    disagreement(tuple(facts), exchange.ranks, exchange.finish())


def _facts(position: Position) -> dict[str, int]:
    return {
        "epoch": position.epoch,
        "shard": position.task_index,
        "microbatch": position.microbatch,
        "step": position.step,
    }


def _number(value: int | str | None) -> int:
    """Return what fits 64 bits: -1 for an unknown value, a digest of a text or of a larger number."""
    if value is None:
        return -1
    if isinstance(value, int) and 0 <= value <= _MASK:
        return value
    return int.from_bytes(blake2b(str(value).encode(), digest_size=8).digest(), "big") & _MASK


def _shown(name: str, value: int) -> str:
    if value == -1:
        return "unknown"
    return f"digest {value:x}" if name in _DIGESTS else str(value)

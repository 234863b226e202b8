"""Ranks that disagree are found out, before they train on what does not belong together.

Two groups compare: all ranks, what decides on the plan; and the ranks of one replica group, which must be given the
same microbatches, their whole position and what was delivered. The first comparison of an iteration waits for the
others; those after it run beside the steps, and their outcome is looked at one interval later.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, cast

from fkat_data import arguments
from fkat_data.distributed import Exchange, group_ranks, is_initialized, rank_and_world_size
from fkat_data.errors import ConfigurationError, RankMismatchError
from fkat_data.plan.elastic_plan import ElasticShardPlan
from fkat_data.plan.shard_plan import ShardPlan
from fkat_data.plan.state import RankState
from fkat_data.position import Position

__all__ = ["RankAgreement", "RankCheck", "disagreement", "shared_facts"]

_U32 = struct.Struct("<I")
_MASK = 2**63 - 1
_INTERVAL_STEPS = 100
_MOST_RANKS = 64
_DELIVERED = "the content of delivered microbatches"
_DIGESTS = {"shards", "all shards", _DELIVERED}


class RankCheck:
    """What a loader's user asked to be compared, and when it is.

    Args:
        replica_group: The ranks that must be given the same microbatches: a process group or a list; None: unknown.
        interval_steps: Microbatches between two comparisons; None: the default, or none without a group.
        seed: The loader's.
        plan: The loader's.

    Raises:
        ConfigurationError: An argument cannot work, or torch.distributed is not initialised.
    """

    def __init__(self, replica_group: Any, interval_steps: int | None, seed: int, plan: ShardPlan) -> None:
        self._is_wanted = replica_group is not None or interval_steps is not None
        self._interval_steps = arguments.integer(
            "check_ranks_every", _INTERVAL_STEPS if interval_steps is None else interval_steps, minimum=1
        )
        if self._is_wanted and not is_initialized():
            argument = "check_ranks_every" if replica_group is None else "replica_group"
            value = interval_steps if replica_group is None else replica_group
            raise ConfigurationError(argument, value, "torch.distributed to be initialised before the loader is made")
        self._replica_ranks = None if replica_group is None else _members(replica_group)
        self._seed = seed
        self._plan = plan
        self._agreement: RankAgreement | None = None
        self.is_due = True
        """Whether the ranks compare when an iteration begins next."""

    def check(self, state: RankState) -> "RankAgreement | None":
        """Compare with the other ranks if that is due; return what is to be told of each microbatch, or None.

        Raises:
            RankMismatchError: A field differs; it is named, with the value of each rank.
        """
        if not self._is_wanted:
            return None
        if self._agreement is None:
            self._agreement = RankAgreement(self._replica_ranks, self._interval_steps)
        if self.is_due:
            own = {"dp_rank": state.dp_rank, **state.position._asdict(), "shards": state.shards}
            self._agreement.begin({"seed": self._seed, **shared_facts(self._plan)}, own)
            self.is_due = False
        return self._agreement


class RankAgreement:
    """Compares this rank with the others.

    Args:
        replica_ranks: The ranks that must deliver what this one does, itself among them; None: there are none.
        interval_steps: Microbatches between two comparisons of a replica group.
    """

    def __init__(self, replica_ranks: Sequence[int] | None, interval_steps: int) -> None:
        self._world = Exchange(None)
        self._replicas = None if replica_ranks is None else Exchange(replica_ranks)
        self._interval_steps = interval_steps
        self._names: tuple[str, ...] = ()
        self._digest = 0
        self._num_delivered = 0

    def begin(self, plan: Mapping[str, int | str | None], own: Mapping[str, int | str | None]) -> None:
        """Compare what an iteration starts with; waits for the other ranks.

        Args:
            plan: What every rank must have alike.
            own: What the ranks of a replica group must have alike besides.

        Raises:
            RankMismatchError: A field differs; it is named, with the value of each rank.
        """
        self._digest = self._num_delivered = 0
        self._finish()
        _compare(self._world, plan)
        if self._replicas is not None:
            _compare(self._replicas, own)

    def deliver(self, position: Position, digest: int) -> None:
        """Count a microbatch; every so many, compare with the replicas in the background.

        Raises:
            RankMismatchError: The comparison before this one has found a difference.
        """
        if self._replicas is None:
            return
        self._digest = zlib.crc32(_U32.pack(digest), self._digest)
        self._num_delivered += 1
        if self._num_delivered % self._interval_steps == 0:
            self._finish()
            self._names = (*position._fields, _DELIVERED)
            self._replicas.begin([*position, self._digest])

    def _finish(self) -> None:
        if self._replicas is not None and self._replicas.is_pending:
            told = self._replicas.finish()
            disagreement(self._names, self._replicas.ranks, told)


def disagreement(names: Sequence[str], ranks: Sequence[int], told: Sequence[Sequence[int]]) -> None:
    """Raise if ranks have told different numbers.

    Args:
        names: What each number is.
        ranks: Who told them.
        told: Each rank's numbers.

    Raises:
        RankMismatchError: Names the first field that differs, and which ranks have which value.
    """
    for index, name in enumerate(names):
        holders: dict[int, list[int]] = {}
        for rank, numbers in zip(ranks, told, strict=True):
            holders.setdefault(numbers[index], []).append(rank)
        if len(holders) > 1:
            text = "; ".join(f"{_shown(name, value)} on {_ranks(group)}" for value, group in holders.items())
            raise RankMismatchError(name, text)


def shared_facts(plan: ShardPlan) -> dict[str, int | str | None]:
    """Return what the plans of all data-parallel ranks must have alike, by name."""
    if not isinstance(plan, ElasticShardPlan):
        return {"dp_size": None, "all shards": None}
    # Of a very large job, some ranks' shards stand for all: lists that differ seldom differ in one place alone.
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
        except (TypeError, KeyError, ValueError, RuntimeError, AttributeError) as error:
            raise ConfigurationError("replica_group", group, "a process group, or a list of ranks") from error
    if rank_and_world_size()[0] not in members:
        raise ConfigurationError("replica_group", members, f"a group with this rank, {rank_and_world_size()[0]}, in it")
    return sorted(members)


def _compare(exchange: Exchange, facts: Mapping[str, int | str | None]) -> None:
    exchange.begin([_number(value) for value in facts.values()])
    disagreement(tuple(facts), exchange.ranks, exchange.finish())


def _number(value: int | str | None) -> int:
    """Return what fits 64 bits: -1 for what is not known, a digest of a text or a larger number."""
    if value is None:
        return -1
    if isinstance(value, int) and 0 <= value <= _MASK:
        return value
    return int.from_bytes(blake2b(str(value).encode(), digest_size=8).digest(), "big") & _MASK


def _shown(name: str, value: int) -> str:
    if value == -1:
        return "unknown"
    return f"digest {value:x}" if name in _DIGESTS else str(value)


def _ranks(ranks: Sequence[int]) -> str:
    most = 8
    text = ", ".join(map(str, ranks[:most]))
    return (
        f"rank {text}"
        if len(ranks) == 1
        else f"ranks {text}{f' and {len(ranks) - most} more' if len(ranks) > most else ''}"
    )

"""From a saved state to a position: the one that a rank had, or its share of what other ranks had left."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fkat_data.engine.agreement import Identity
from fkat_data.errors import StateMismatchError
from fkat_data.errors.acceptance import Acceptance
from fkat_data.plan.commits import own_outstanding
from fkat_data.plan.growth import Growth, log_growth, widest
from fkat_data.plan.position import Position, ResumeState
from fkat_data.plan.resharding import of_epoch, reshard
from fkat_data.plan.shard_plan import ElasticShardPlan, Plan
from fkat_data.plan.state import is_reported, read, verify
from fkat_data.runtime.distributed import rank_and_world_size
from fkat_data.worker.fingerprints import price_of_begun, without_names

#: The fields of a state that may be accepted where they differ.
ACCEPTABLE = ("shards", "num_shards", "batching", "files")
_logger = logging.getLogger(__name__)


def with_fingerprint(resume_state: ResumeState, plan: Plan, identity: Identity) -> ResumeState:
    """Return a state with the fingerprint of its plan."""
    epoch = resume_state.position.epoch
    is_elastic = isinstance(plan, ElasticShardPlan)
    return resume_state._replace(
        seed=identity.seed,
        dp_rank=identity.dp_rank,
        num_shards=plan.num_tasks(epoch),
        shards=plan.digest(epoch),
        sampler=plan.plan_state(epoch),
        dp_size=plan.dp_size if is_elastic else None,
        reshards=plan.reshards if is_elastic else (),
        growth=plan.growth_since(epoch) if is_elastic else None,
        batching=identity.batching or resume_state.batching,
    )


def num_dealt(plan: Plan) -> int:
    """Return the number of ranks that a plan's shards are dealt out to; 1: each rank has its own."""
    return plan.dp_size if isinstance(plan, ElasticShardPlan) else 1


def resume(
    state_dict: Mapping[str, Any], plan: Plan, identity: Identity, acceptance: Acceptance, *, is_manual: bool = False
) -> ResumeState:
    """Return where a loader goes on after a state; changes nothing.

    Args:
        state_dict: The state.
        plan: The loader's present plan.
        identity: The loader's rank and seed.
        acceptance: What may differ.
        is_manual: Whether the caller commits the loader's microbatches.

    Raises:
        StateMismatchError: It is no state, or belongs to another plan, or to another number of ranks and cannot be
            split again: this sampler does not split, or a rank's state is missing.
    """
    ranks = [_without_accepted(rank, acceptance) for rank in read(state_dict)]
    growth = _growth_at(ranks, plan, identity)
    has_steps = "step" in state_dict or "all_rank_steps" in state_dict
    found = _resumed(ranks, plan.with_growth(growth), identity, acceptance, has_steps=has_steps)
    outstanding = own_outstanding(found.outstanding, num_dealt(plan), identity.dp_rank, is_manual=is_manual)
    found = found._replace(outstanding=outstanding, growth=growth and growth.within(range(_last_begun(ranks) + 1)))
    return found._replace(accepted=acceptance.after(found.accepted, found.position.epoch, found.position.step))


def _growth_at(ranks: Sequence[ResumeState], plan: Plan, identity: Identity) -> Growth | None:
    """Return what the epochs of a state have of a list that has grown; None: it has not, or has changed otherwise.

    Raises:
        StateMismatchError: It has grown, and the state does not say which epochs the other ranks have begun.
    """
    num_listed, saved_size, is_split = plan.num_listed, _saved_size(ranks), isinstance(plan, ElasticShardPlan)
    if num_listed is None or (not is_split and (ranks[0].reshards or (ranks[0].dp_size or 1) > 1)):
        return None
    of_all = ranks if is_split else [_own_rank(ranks, identity.dp_rank)]
    saved, first = widest(rank.growth for rank in of_all), of_all[0]
    is_whole = saved_size == 1 and not of_epoch(first.reshards, first.position.epoch)
    if saved is None and is_whole and isinstance(first.num_shards, int):
        saved = Growth(first.num_shards)  # the rank has the whole list
    if saved is None or not 0 < saved.num_listed <= num_listed or saved == Growth(num_listed):
        return None
    epochs = [rank.position.epoch for rank in of_all]
    last = _last_begun(of_all)
    sizes = {**dict.fromkeys(range(min(epochs), max(last, *epochs) + 1), saved.num_listed), **saved.begun_lengths}
    growth = Growth(num_listed, {epoch: size for epoch, size in sizes.items() if size < num_listed})
    grown = plan.with_growth(growth)
    for rank in of_all:
        epoch, part = rank.position.epoch, grown
        if isinstance(part, ElasticShardPlan):
            part = part.for_rank(saved_size, rank.dp_rank or 0, epoch, rank.reshards)
        if (part.num_tasks(epoch), part.digest(epoch)) != (rank.num_shards, rank.shards):
            return None
    if saved.num_listed < num_listed:
        if is_split and {rank.dp_rank for rank in ranks} != set(range(saved_size)):
            hint = "shards were appended, and other ranks may be in other epochs: merge_state_dicts makes one state of all local ones"
            raise StateMismatchError("fingerprint.num_shards", first.num_shards, f"<of {num_listed} shards>", hint)
        log_growth("shard", num_listed - saved.num_listed, last)
    return growth


def _last_begun(ranks: Sequence[ResumeState]) -> int:
    """Return the last epoch that these ranks, or those before them, had something of; -1: none."""
    positions = [position for rank in ranks for reshard in rank.reshards for position in reshard.positions]
    positions += [rank.position for rank in ranks]
    return max(position.epoch - (position[1:4] == (0, 0, 0)) for position in positions)


def _resumed(
    ranks: Sequence[ResumeState], plan: Plan, identity: Identity, acceptance: Acceptance, *, has_steps: bool
) -> ResumeState:
    saved_size = _saved_size(ranks)
    if isinstance(plan, ElasticShardPlan):
        if saved_size != plan.dp_size:
            return _reshard(ranks, saved_size, plan, identity, acceptance, has_steps=has_steps)
    elif ranks[0].reshards or (ranks[0].dp_size or 1) > 1:
        hint = "the present sampler does not split its shards: use DistributedDataParallelShardSampler, for 1 rank too"
        raise StateMismatchError("dp_size", saved_size, "<not split>", hint)
    saved = _own_rank(ranks, identity.dp_rank)
    epoch = saved.position.epoch
    present = plan
    if isinstance(plan, ElasticShardPlan) and saved.reshards != plan.reshards:
        present = plan.for_rank(plan.dp_size, identity.dp_rank, epoch, saved.reshards)
    verify(saved, _first_state(epoch, present, identity), acceptance)
    num_shards = present.num_tasks(epoch)
    # A share of an epoch that had no shards from the start is not over before it was iterated.
    is_over = num_shards is not None and saved.position.task_index >= max(1, num_shards)
    if is_over:
        position = saved.position.after_epoch()
        found = ResumeState(position, identity.dp_rank, saved.reshards, saved.sampler, accepted=saved.accepted)
        return found._replace(outstanding=saved.outstanding)
    return saved._replace(dp_rank=identity.dp_rank, batching=_reported(saved))


def _without_accepted(saved: ResumeState, acceptance: Acceptance) -> ResumeState:
    """Return a rank's state without what its worker is not to compare of the begun shard: only that worker sees it."""
    batching = saved.batching
    for name, was in (("files", saved.files), ("batching", batching if is_reported(batching) else None)):
        if name in acceptance and was is not None and saved.position.microbatch:
            error = StateMismatchError(f"fingerprint.{name}", was, "<not compared>")
            acceptance.settle(error, price_of_begun(saved.position.microbatch))
    files = None if "files" in acceptance else saved.files
    is_masked = "batching" in acceptance and is_reported(batching)
    return saved._replace(files=files, batching=without_names(str(batching)) if is_masked else batching)


def _first_state(epoch: int, plan: Plan, identity: Identity) -> ResumeState:
    return with_fingerprint(ResumeState(Position(epoch, 0, 0, 0)), plan, identity)


def _saved_size(ranks: Sequence[ResumeState]) -> int:
    """Return how many data-parallel ranks saved a state; several ranks may share one dp_rank."""
    if ranks[0].dp_size is not None:
        return ranks[0].dp_size
    dp_ranks = {rank.dp_rank for rank in ranks}
    return len(ranks) if None in dp_ranks else len(dp_ranks)


def _own_rank(ranks: Sequence[ResumeState], dp_rank: int) -> ResumeState:
    rank, world_size = rank_and_world_size()
    if len(ranks) == 1 and (world_size == 1 or ranks[0].dp_rank == dp_rank):
        return ranks[0]
    if len(ranks) == world_size:
        return ranks[rank]
    if ranks[0].dp_size is not None:
        return _one_of_each(ranks, ranks[0].dp_size)[dp_rank]
    if world_size == 1 and dp_rank < len(ranks):  # ranks unknown to torch.distributed
        return ranks[dp_rank]
    raise StateMismatchError("dp_size", len(ranks), world_size, "resume with the ranks that saved it")


def _reshard(
    ranks: Sequence[ResumeState],
    saved_size: int,
    plan: ElasticShardPlan,
    identity: Identity,
    acceptance: Acceptance,
    *,
    has_steps: bool,
) -> ResumeState:
    before = _one_of_each(ranks, saved_size)
    positions: dict[int, Position] = {}
    num_left = num_begun = 0
    # By epoch: a sampler that shuffles for all ranks then shuffles once.
    for dp_rank, saved in sorted(enumerate(before), key=lambda item: item[1].position.epoch):
        position = saved.position
        saved_plan = plan.for_rank(saved_size, dp_rank, position.epoch, saved.reshards)
        verify(saved, _first_state(position.epoch, saved_plan, identity._replace(dp_rank=dp_rank)), acceptance)
        while position.task_index >= (num_shards := saved_plan.num_tasks(position.epoch) or 0):
            position = position.after_epoch()
        positions[dp_rank] = position
        num_left += num_shards - position.task_index
        num_begun += position.microbatch > 0
    if has_steps and not any(position.step for position in positions.values()):
        # No rank has delivered anything of the epoch: the shards that were passed had no microbatches.
        positions = {dp_rank: Position(position.epoch, 0, 0, 0) for dp_rank, position in positions.items()}
    of_ranks = [positions[dp_rank] for dp_rank in range(saved_size)]
    reshards, epoch, step = reshard(before[0].reshards, of_ranks)
    _check_dp_rank(plan, identity, epoch)
    _logger.info(
        "state of %d data-parallel ranks split again over %d, from epoch %d on: %d shards left, %d of them begun",
        saved_size,
        plan.dp_size,
        epoch,
        num_left,
        num_begun,
    )
    # After an earlier split, a shard may have been begun by a rank that has another one now.
    begun = {_reported(state) for dp_rank, state in enumerate(before) if positions[dp_rank].microbatch}
    batching = begun.pop() if len(begun) == 1 and not before[0].reshards else None
    # What all have left out counts against the bounds of all.
    num_left_out = sum(state.num_left_out for state in before if state.position.epoch == epoch)
    num_own = (num_left_out + identity.dp_rank) // plan.dp_size
    # Not of its files: each of those shards has others.
    found = ResumeState(Position(epoch, 0, 0, step), identity.dp_rank, reshards, accepted=before[0].accepted)
    return found._replace(num_left_out=num_own, batching=batching, outstanding=ranks[0].outstanding)


def _reported(saved: ResumeState) -> str | None:
    """Return how a worker has reported that a begun shard is batched; None: it has not."""
    return saved.batching if is_reported(saved.batching) else None


def _one_of_each(ranks: Sequence[ResumeState], dp_size: int) -> list[ResumeState]:
    """Return the state of each data-parallel rank, once all of its replicas agree."""
    found: dict[int, tuple[int, ResumeState]] = {}
    for rank, state in enumerate(ranks):
        dp_rank = rank if state.dp_rank is None else state.dp_rank
        first_rank, first = found.setdefault(dp_rank, (rank, state))
        if first.position != state.position:
            positions = f"<rank {first_rank} at {first.position[:4]}, rank {rank} at {state.position[:4]}>"
            expected = f"<one position for data-parallel rank {dp_rank}>"
            raise StateMismatchError("all_rank_indices", positions, expected, "its replicas are not in step")
    if set(found) != set(range(dp_size)):
        hint = "a new split needs every rank's position: merge_state_dicts makes one state of all local ones"
        raise StateMismatchError("fingerprint.all_rank_dp_ranks", sorted(found), f"<all of {dp_size} ranks>", hint)
    return [found[dp_rank][1] for dp_rank in range(dp_size)]


def _check_dp_rank(plan: ElasticShardPlan, identity: Identity, epoch: int) -> None:
    """Raise unless the loader and its sampler are of one rank: else two ranks would take one part."""
    if identity.dp_rank >= plan.dp_size:
        raise StateMismatchError("dp_size", f"<data-parallel rank {identity.dp_rank}>", plan.dp_size, _RANK_HINT)
    plan = plan.with_growth(None)  # an epoch that was begun may have fewer shards than there are ranks
    own = plan.for_rank(plan.dp_size, identity.dp_rank, epoch).digest(epoch)
    if own != plan.own.digest(epoch):
        raise StateMismatchError("dp_rank", identity.dp_rank, "<another rank's shards>", _RANK_HINT)


_RANK_HINT = "give the loader the dp_rank that its sampler has"

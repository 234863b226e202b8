"""From the states of some ranks to that of one: its own, or its part of what they have left."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from fkat_data.errors import ConfigurationError, RankMismatchError, StateMismatchError
from fkat_data.loaders.checked_order import checks_in, without_order
from fkat_data.loaders.loader_state import LoaderState, entries_of
from fkat_data.loaders.rank_share import RankShare, Sharing
from fkat_data.loaders.reshards import position_at
from fkat_data.loaders.window_states import windows_at_start, windows_of_rest
from fkat_data.plan.position import Dealing
from fkat_data.plan.resharding import first_step, of_epoch, reshard

DealtBy: TypeAlias = Literal["loader", "sampler", "order"]
"""Who deals an epoch out to ranks: ``deal_out()``; a ``DistributedSampler``; a dataset or a batch sampler by itself."""

_logger = logging.getLogger(__name__)

_UNGATHERED = (
    "the state of one rank does not say where the others were. Save what state_dict() returns on every rank, where "
    "torch.distributed is initialised, or what merge_state_dicts() makes of each rank's local_state_dict(): any number of "
    "ranks loads it"
)
_OF_EACH = (
    "save state_dict() on every rank and load each rank's own, or load on all what merge_state_dicts([...]) makes of the "
    "local_state_dict() of each"
)


class Layout(NamedTuple):
    """The ranks that a loader's samples are dealt out to, which of them it is, and in batches of which size.

    Attributes:
        batch_size: Samples of a batch; None: they are single samples, or batches of any size.
        num_ranks: How many.
        rank: This one.
        fields: What a ``LoaderState`` says of them, by its attributes.
        dealt_by: Who deals out; None: there is one rank, of a dataset or a batch sampler that can.
        has_seed: Whether the loader was given a seed, so that all ranks have the same.
    """

    batch_size: int | None
    num_ranks: int = 1
    rank: int = 0
    fields: Mapping[str, Any] = {}
    dealt_by: DealtBy | None = "loader"
    has_seed: bool = True


def own_state(
    state_dict: Any, layout: Layout | None, check: Callable[[object], LoaderState], rank: int, world_size: int
) -> LoaderState:
    """Return where a rank goes on.

    Args:
        state_dict: A state, of one rank or of several.
        layout: The ranks that there are now; None: each has samplers or a dataset that no other process can ask.
        check: Returns the state of one rank after a look at each field.
        rank: This process's rank in the job.
        world_size: The job's ranks.

    Raises:
        StateMismatchError: It is no such state; or of other ranks, and what they had left is not known.
    """
    found = entries_of(state_dict)
    is_merged = found is not None
    found = [state_dict] if found is None else found
    if layout is None:
        return check(found[_index_in_job(found, rank, world_size)] if is_merged else found[0])
    states = [check(each) for each in found]
    if not is_merged:
        _check_stands_for_all(states[0], layout)
    num_ranks = _num_ranks(states[0])
    # Of other kinds of samplers, the first iteration says so: Lightning may give the loader another one until then.
    is_same_kind = (layout.dealt_by == "sampler") == _is_samplers(states[0])
    is_as_before = _check_dealing(states, layout) if is_same_kind else True
    is_as_before &= not any(is_of_other_size(state, layout.batch_size) for state in states)
    if is_as_before and (not is_same_kind or num_ranks == layout.num_ranks or (is_merged and num_ranks == 1)):
        own = states[_own_index(states, layout, rank, world_size) if is_merged else 0]
        return _as_of_rank(replace(own, is_gathered=False), layout)
    return _reshard(states, num_ranks, layout)


def _check_stands_for_all(state: LoaderState, layout: Layout) -> None:
    """Return if one rank's state says where the others were.

    Raises:
        StateMismatchError: Each rank has shuffled its own part by a seed that it drew: no other process knows it.
    """
    num_ranks, rank = _num_by_order(state), layout.rank if state.dealt_rank is None else state.dealt_rank
    is_of_other = num_ranks > 1 and (num_ranks, rank) != (layout.num_ranks, layout.rank)
    if is_of_other and state.step and state.sampler.get("shuffle") and not layout.has_seed:
        hint = f"pass the loader of each rank the same seed=, or {_OF_EACH}"
        raise StateMismatchError("seed", state.seed, "<given, the same on all ranks>", hint)


def _as_of_rank(state: LoaderState, layout: Layout) -> LoaderState:
    """Return a state that may be another rank's as this one's, which is at the same step of its own order."""
    sampler = state.sampler
    if layout.dealt_by == "sampler" and _is_samplers(state):
        of_rank = {"distributed": {**sampler["distributed"], "rank": layout.rank}}
        is_own = sampler["distributed"]["rank"] == layout.rank
    else:
        of_rank, is_own = dict[str, Any](), state.dealt_rank in (None, layout.rank)
    if is_own:
        return state
    if "num_samples" not in sampler:  # the digest is of the other rank's batches
        of_rank |= {"step": state.step, "orders": []}
        sampler = without_order(sampler)
    return replace(state, **layout.fields).with_sampler({**sampler, **of_rank})


def check_saver(state: LoaderState, saver: tuple[int, int | None] | None, *, is_iterable: bool) -> None:
    """Return if a state was not saved by another rank, whose order only that rank knows.

    Args:
        state: One rank's state.
        saver: The present rank, and of how many; None: this is not known.
        is_iterable: Whether the dataset is iterable.

    Raises:
        StateMismatchError: It was; the epoch has begun, or the state has the state of a sampler or of a dataset.
    """
    saved = state.saved_by
    if saved is None or saver is None:
        return
    is_same = all(None in numbers or len(set(numbers)) == 1 for numbers in zip(saved, saver, strict=True))
    if is_same or (not state.step and not _has_states(state)):
        return
    whose, here = (f"rank {rank}{'' if size is None else f' of {size}'}" for rank, size in (saved, saver))
    has_other_number = None not in (saved[1], saver[1]) and saved[1] != saver[1]
    remedy = "resume with the number of ranks that saved, or finish the epoch with it" if has_other_number else _OF_EACH
    other, what = "or use torch's DistributedSampler or deal_out(), with which one state is of all ranks", "its sampler"
    if is_iterable:
        other, what = "or pass the same dp_rank= on ranks that share their data", "its dataset"
        if has_other_number:
            other = (
                "or set counts_workers_of_all_ranks = True on the dataset, whose merged state any number of ranks loads"
            )
    hint = f"this is the state of {whose}, and this process is {here}: only each rank knows where {what} is. So {remedy}; {other}"
    raise StateMismatchError("saved_by", f"<{whose}>", f"<{here}>", hint)


def _has_states(state: LoaderState) -> bool:
    """Return whether a state has that of a sampler, a generator or a dataset."""
    found = [*state.sampler.get("generators", ()), *state.sampler.get("samplers", ())]
    found += [strand.get("snapshot") for strand in state.strands]
    return any(each is not None for each in found)


def is_of_other_size(state: LoaderState, batch_size: int | None) -> bool:
    """Return whether what is left of an epoch is to come in batches of another size; rows of windows come in any."""
    return state.step > 0 and state.batch_size != batch_size and not state.is_of_windows


def _index_in_job(states: Sequence[object], rank: int, world_size: int) -> int:
    if len(states) != world_size:
        hint = (
            "resume with the number of ranks that saved, finish the epoch with it, or deal out by deal_out() or a "
            "DistributedSampler: a sampler that knows its rank cannot be asked for another rank's, nor an iterable dataset "
            "that does not say counts_workers_of_all_ranks = True"
        )
        raise StateMismatchError("all_rank_states", f"<{len(states)} ranks>", f"<{world_size} ranks>", hint)
    return rank


def _own_index(states: Sequence[LoaderState], layout: Layout, rank: int, world_size: int) -> int:
    """Return which of several states is this rank's."""
    if layout.dealt_by == "sampler":
        ranks = [state.sampler.get("distributed", {}).get("rank") for state in states]
        if layout.rank in ranks:
            return ranks.index(layout.rank)
    if len(states) != world_size and len(states) == layout.num_ranks > 1:
        return layout.rank  # ranks unknown to torch.distributed
    return _index_in_job(states, rank, world_size)


def _num_ranks(state: LoaderState) -> int:
    """Return how many ranks the samples of a state's epoch were dealt out to."""
    if state.sharing is not None:
        return state.num_ranks
    order_fields: Mapping[str, Any] = state.sampler.get("distributed", {})
    return cast("int", order_fields.get("num_replicas", _num_by_order(state)))


def _num_by_order(state: LoaderState) -> int:
    """Return how many ranks a dataset or a batch sampler has dealt itself out to."""
    return state.dealt_ranks or state.dataset_ranks or 1


def _dealt_by(state: LoaderState) -> DealtBy | None:
    """Return who has dealt out what was delivered of a state's epoch; None: there was one rank."""
    if state.num_ranks > 1:
        return "loader"
    if _num_by_order(state) > 1:
        return "order"
    reshards = of_epoch(state.reshards, state.epoch)
    return ("order" if reshards[-1].dealing.is_by_order else "loader") if reshards else None


def _check_dealing(states: Sequence[LoaderState], layout: Layout) -> bool:
    """Return whether the present ranks are dealt to by whom the saved ones were.

    Raises:
        StateMismatchError: They are not, and the epoch has begun: another one would give what is left in another order.
    """
    saved = _dealt_by(states[0])
    if saved is None or layout.dealt_by in (None, saved, "sampler"):
        return True
    if any(state.step for state in states):
        hint = "finish the epoch as it was dealt out when it began, or begin the next epoch"
        names = {"loader": "<deal_out()>", "order": "<rank= and world_size= of the dataset or the batch sampler>"}
        raise StateMismatchError("dealt_by", names[saved], names[layout.dealt_by], hint)
    return False


def _is_samplers(state: LoaderState) -> bool:
    return "distributed" in state.sampler


def _reshard(states: Sequence[LoaderState], num_ranks: int, layout: Layout) -> LoaderState:
    """Return where a rank begins with what other ranks have left."""
    of_ranks = _one_of_each(states, num_ranks)
    base = min(of_ranks, key=lambda state: state.epoch)
    before = base.reshards
    positions = [position_at(before, state.epoch, state.step) for state in of_ranks]
    is_by_order = "order" in (_dealt_by(base), layout.dealt_by)
    if is_by_order and any(each.exclusion is not None for each in of_epoch(before, base.epoch)):
        hint = "finish the epoch with as many ranks: its dataset deals out what is left, and does not know of excluded steps"
        raise StateMismatchError("resplits", "<with excluded steps>", "<without>", hint)
    lengths = {str(state.sampler.get("num_samples")) for state in of_ranks if state.step}
    if len(lengths) > 1 and not is_by_order:
        hint = f"go on with {num_ranks} ranks until all are in an epoch that has what was appended"
        raise StateMismatchError("num_samples", sorted(lengths), "<one length>", hint)
    dealing = Dealing(base.batch_size or 1, (base.sharing or Sharing()).split_batches, is_by_order)
    reshards, epoch, step = reshard(before, positions, dealing)
    own = replace(base, epoch=epoch, step=step, sharing=None, is_gathered=False, reshards=())
    own = replace(own, **layout.fields)
    if base.is_of_windows:
        return own.with_sampler(windows_of_rest(of_ranks, epoch))
    if is_by_order and base.sampler.get("shuffle"):
        _check_seeds(of_ranks)
    fingerprint = {**own.fingerprint, "batch_size": layout.batch_size}
    own = replace(own, reshards=reshards, fingerprint=fingerprint)
    own = own.with_sampler(_sampler_of_rest(of_ranks, base, step, layout, is_by_order=is_by_order))
    _logger.info(
        "state of %d ranks%s split again over %d: they go on in epoch %d at step %d",
        num_ranks,
        ", which were in step," if len(states) == 1 and num_ranks > 1 else "",
        layout.num_ranks,
        epoch,
        step,
    )
    return own


def _sampler_of_rest(
    of_ranks: Sequence[LoaderState], base: LoaderState, step: int, layout: Layout, *, is_by_order: bool
) -> Mapping[str, Any]:
    sampler = base.sampler
    if "num_samples" in sampler:  # the order is arithmetic
        return sampler
    if is_by_order:  # what is left follows from the state of the sampler
        return {**without_order(sampler), "step": step, "orders": []}
    if layout.dealt_by == "sampler":
        order_fields = {**sampler["distributed"], "num_replicas": layout.num_ranks, "rank": layout.rank}
        return {**without_order(sampler), "distributed": order_fields, "step": step, "orders": []}
    # Single batches, whose digests no number of ranks changes.
    in_epoch = [state.sampler for state in of_ranks if state.epoch == base.epoch]
    checks = {check for own in in_epoch for check in checks_in(own)}
    return {**without_order(sampler), "step": step, "orders": [list(check) for check in sorted(checks)]}


def _check_seeds(of_ranks: Sequence[LoaderState]) -> None:
    """Raise if ranks have shuffled their own parts by other seeds: no other process knows all of their orders."""
    seeds = [state.seed for state in of_ranks if state.step]
    if len(set(seeds)) > 1:
        hint = "pass the loader of each rank the same seed; this epoch needs the number of ranks that saved"
        raise StateMismatchError("seed", seeds, "<the same on all ranks>", hint)


def _one_of_each(states: Sequence[LoaderState], num_ranks: int) -> list[LoaderState]:
    """Return the state of each rank that the samples were dealt out to.

    Raises:
        StateMismatchError: Those of some are not there.
    """
    # A DistributedSampler gives all ranks equally many microbatches, and DDP keeps them in step.
    is_at_start = not states[0].step and _dealt_by(states[0]) == "order"
    is_of_all = states[0].is_gathered or _is_samplers(states[0]) or is_at_start
    if num_ranks == 1 or (len(states) == 1 and is_of_all):
        return [states[0]] * num_ranks
    by_rank = {index if state.dealt_rank is None else state.dealt_rank: state for index, state in enumerate(states)}
    if _is_samplers(states[0]):
        by_rank = {state.sampler["distributed"]["rank"]: state for state in states}
    if len(states) == 1 or set(by_rank) != set(range(num_ranks)):
        present = f"<{len(states)} of {num_ranks} ranks>" if len(states) <= num_ranks else f"<{len(states)} states>"
        raise StateMismatchError("num_ranks", present, f"<all of {num_ranks} ranks>", _UNGATHERED)
    return [by_rank[rank] for rank in range(num_ranks)]


def state_at_epoch(
    state: LoaderState, epoch: int, snapshots: Sequence[dict[str, Any] | None] | None = None
) -> LoaderState:
    """Return the state of the same loader at an epoch's start, for an order that depends on nothing but the epoch.

    Where other ranks had begun the epoch, that is where this one began with what they had left.

    Args:
        state: The state.
        epoch: The epoch.
        snapshots: For an iterable dataset, its state at that start, for each strand; None: it begins as it is.
    """
    step = first_step(state.reshards, epoch)
    begun = replace(state, epoch=epoch, step=step)
    if "strands" in state.plan_state:
        plan_state = {name: value for name, value in state.plan_state.items() if name != "taken_over"}
        begins = {"epoch": epoch, "step": 0, "delivered": 0}
        strands = [{**begins, "snapshot": each} for each in snapshots or [None] * len(state.strands)]
        return replace(begun, plan_state={**plan_state, "strands": strands})
    if state.is_of_windows:
        return begun.with_sampler(windows_at_start(state.sampler))
    if "num_samples" in state.sampler:
        return begun
    order: dict[str, Any] = {"step": step, "orders": []} if step else {"step": 0, "order": 0}
    return begun.with_sampler({**without_order(state.sampler), **order})


def check_share(state: LoaderState, share: RankShare | None) -> None:
    """Return if a state was saved by a loader with the same share, or another rank's of the same dealing.

    Raises:
        StateMismatchError: It was not.
    """
    saved, present = state.sharing or Sharing(), Sharing() if share is None else share.sharing
    for field, value, was in zip(Sharing._fields, present, saved, strict=True):
        if was != value and (field == "num_ranks" or share is not None):
            hint = (
                "call deal_out() before load_state_dict(), with the arguments of the run that saved; its number of ranks may "
                "be another"
            )
            raise StateMismatchError(field, was, value, hint)
    if share is not None and state.rank not in (None, share.rank):
        hint = (
            "window_fn makes another number of rows on each rank: load merge_state_dicts([...]) of all "
            "ranks' local_state_dict()"
        )
        raise StateMismatchError("rank", state.rank, share.rank, hint)


def agreed_state(of_ranks: Sequence[tuple[LoaderState, bool]]) -> LoaderState:
    """Return the first rank's state, for all ranks to begin with.

    Args:
        of_ranks: Each rank's, and whether its loader was given a seed.

    Raises:
        ConfigurationError: Ranks were given different seeds.
        RankMismatchError: Ranks have datasets of other lengths.
    """
    seeds = [state.seed if is_given else None for state, is_given in of_ranks]
    if len(set(seeds)) > 1:
        raise ConfigurationError("seed", seeds, "the same on all ranks")
    lengths = [state.sampler.get("num_samples") for state, _ in of_ranks]
    if len(set(lengths)) > 1:
        per_rank = ", ".join(f"{length} on rank {rank}" for rank, length in enumerate(lengths))
        raise RankMismatchError("len(dataset)", per_rank)
    return of_ranks[0][0]


def check_order(state: LoaderState | None, present: Mapping[str, Any] | None) -> None:
    """Return if a dataset's order is the one of the epoch that a loaded state goes on with.

    Args:
        state: The state; None: none was loaded.
        present: What the order depends on; None: nothing that can be compared.

    Raises:
        StateMismatchError: It is another order.
    """
    saved = None if state is None or not state.step else state.dataset_order
    if saved is None or present is None or saved == present:
        return
    field = next(name for name in ("epoch", "shuffle") if saved.get(name) != present[name])
    hint = "pass the dataset's shuffle() the seed of the run that saved: without a seed, each process draws its own"
    if field == "epoch":
        hint = f"call dataset.set_epoch({saved.get(field)}) before the resumed epoch, as the run that saved had"
    raise StateMismatchError(f"dataset_order.{field}", saved.get(field), present[field], hint)

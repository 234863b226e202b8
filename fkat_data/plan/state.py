"""The saved form of positions: write it, read it, and compare it with the current plan.

A *rank state* describes one rank, in plain values that JSON can hold. A *state* describes all ranks::

    {
        "version": 2,
        "epoch": 2,                                    # the lowest of all ranks
        "all_rank_indices": (tensor(0), tensor(1)),    # the last shard delivered in full; -1: none yet
        "all_rank_microbatches": [3, 0],               # delivered microbatches of the next shard
        "all_rank_steps": [13, 16],                    # microbatches delivered in the epoch
        "all_rank_epochs": [2, 2],
        "all_rank_samplers": (None, None),             # states of users' own samplers
        "all_rank_skipped": ((0,), ()),                # shards that failed and were skipped
        "all_rank_num_left_out": [4, 0],               # samples of the epoch that were left out
        "all_rank_left_out": ((17,), ()),              # those of the begun shard, by their offsets in its order
        "dp_size": 2,
        "fingerprint": {"seed": 7, "all_rank_dp_ranks": [0, 1], "all_rank_num_shards": [4, 4],
                        "all_rank_shards": ["9f3c…", "11ab…"],
                        "all_rank_batchings": ["32 in order", "32 in order"],  # compared where a shard is begun; of a
                                                       # factory that does not say: what it returned for that shard
                        "all_rank_files": ((1804289383,), None),  # of the begun shard's dataset, compared there as well
                        "dp_size": 2},                 # ranks that the sampler splits over; None if it does not split
        "resplits": (),                                # positions of the ranks whenever their number changed, see below
    }

Where ranks share a list of shards, an item of ``resplits`` says how long it is: see ``fkat_data.plan.growth``. Each other
item has the lists ``epochs``, ``indices``, ``microbatches`` and ``steps``, with an entry for each
data-parallel rank at that time. Only reshards that matter to an epoch in progress are kept.

torch.distributed.checkpoint takes mappings apart, and lists with tensors or mappings in them, and reads the parts that
the present state has. So a state has the same parts for any number of ranks and at any position: every field is always
there, and what may vary in its parts is a tuple, which is saved whole.

Where something differed at a load, and was accepted, ``accepted`` says it: see ``fkat_data.errors.acceptance``. Where the
caller commits microbatches, ``outstanding`` has those that are not committed: see ``fkat_data.plan.commits``.

Only ``all_rank_indices`` is required: the system that this one follows saves it alone. Every other field defaults to
its value at the start of epoch 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from fkat_data.errors import StateMismatchError
from fkat_data.errors.acceptance import Acceptance, accepted_field, accepted_in
from fkat_data.errors.arguments import STATE_VERSION, check_version
from fkat_data.plan.commits import OUTSTANDING, outstanding_field
from fkat_data.plan.growth import LISTED, growth_in, growth_items, widest
from fkat_data.plan.position import START, Position, Reshard, ResumeState
from fkat_data.plan.resharding import of_epoch
from fkat_data.runtime.modes import without_modes

#: The field of a sealed state that has all of it.
_SEALED = "place"
# What a framework has added to a sealed state, which is beside it again when the loaded state is saved.
_ADDED = "added"


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state whose parts vary with its position as one that has the same parts at every position.

    It gets the fields back that a framework had added to it before it was loaded.
    """
    parts = {name: value for name, value in state.items() if name != _ADDED}
    return {"version": STATE_VERSION, _SEALED: (parts,), **state.get(_ADDED, {})}


def unsealed(state_dict: Any) -> Any:
    """Return what was sealed; any other value as it is.

    Raises:
        StateMismatchError: A newer version sealed it, or a field of what is in it was set beside it, where nothing reads it.
    """
    if not isinstance(state_dict, Mapping) or not {"version", _SEALED} <= set(cast("Mapping[str, Any]", state_dict)):
        return cast("Any", state_dict)
    state = cast("Mapping[str, Any]", state_dict)
    check_version(state, STATE_VERSION)
    found: Any = state[_SEALED]
    if not isinstance(found, (tuple, list)) or len(cast("Sequence[Any]", found)) != 1:  # JSON makes a list of a tuple
        raise StateMismatchError(_SEALED, cast("object", found), "<a tuple of one state>")
    sealed_state: Any = cast("Any", found)[0]
    added = {field: value for field, value in state.items() if field not in ("version", _SEALED)}
    if not added or not isinstance(sealed_state, Mapping):
        return sealed_state
    parts = cast("Mapping[str, Any]", sealed_state)
    for each in (parts, *parts.get("all_rank_states", ())):
        for field in (field for field in added if field in each):
            hint = f"all of a state is in state[{_SEALED!r}][0], where a change has an effect"
            raise StateMismatchError(field, added[field], "<no such field>", hint)
    return {**parts, _ADDED: added}


def write_rank(resume_state: ResumeState) -> dict[str, Any]:
    """Return the state of one rank as plain values."""
    epoch, shard, microbatch, step, _, left_out = resume_state.position
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "epoch": epoch,
        "index": shard - 1,
        "microbatch": microbatch,
        "step": step,
        "fingerprint": {
            "seed": resume_state.seed,
            "dp_rank": resume_state.dp_rank,
            "num_shards": resume_state.num_shards,
            "shards": resume_state.shards,
            "batching": resume_state.batching,
            "files": None if resume_state.files is None else list(resume_state.files),
        },
    }
    if resume_state.sampler is not None:
        state["sampler"] = resume_state.sampler
    if resume_state.dp_size is not None:
        state["fingerprint"]["dp_size"] = resume_state.dp_size
        state["resplits"] = [*_resplits(resume_state.reshards), *growth_items(resume_state.growth)]
    if resume_state.skipped:
        state["skipped"] = list(resume_state.skipped)
    if resume_state.num_left_out:
        state |= {"num_left_out": resume_state.num_left_out, "left_out": list(left_out)}
    return state | outstanding_field([resume_state.outstanding]) | accepted_field(resume_state.accepted)


def merge(ranks: Sequence[ResumeState]) -> dict[str, Any]:
    """Return the state of all ranks, from rank states in order of rank.

    Raises:
        StateMismatchError: The ranks differ in seed, number of ranks or past reshards.
    """
    seed, dp_size, reshards = ranks[0].seed, ranks[0].dp_size, ranks[0].reshards
    for rank in ranks:
        if rank.seed != seed:
            raise StateMismatchError("fingerprint.seed", seed, rank.seed, "pass the same seed on every rank")
        if rank.dp_size != dp_size:
            raise StateMismatchError("fingerprint.dp_size", dp_size, rank.dp_size, "the ranks belong to different runs")
        if rank.reshards != reshards:
            raise StateMismatchError("resplits", reshards, rank.reshards, "the ranks loaded different states")
    positions = [rank.position for rank in ranks]
    epoch = min(position.epoch for position in positions)
    # A reshard that these ranks no longer need may still matter to a missing one.
    is_whole = {rank.dp_rank for rank in ranks} == set(range(dp_size or 0))
    with without_modes():
        # Views of one storage: torch.save writes one record for all of them.
        indices = torch.tensor([position.task_index - 1 for position in positions], dtype=torch.int).unbind()
    return {
        "version": STATE_VERSION,
        "epoch": epoch,
        "all_rank_indices": tuple(indices),
        "all_rank_microbatches": [position.microbatch for position in positions],
        "all_rank_steps": [position.step for position in positions],
        "all_rank_epochs": [position.epoch for position in positions],
        "all_rank_samplers": tuple(rank.sampler for rank in ranks),
        "all_rank_skipped": tuple(rank.skipped for rank in ranks),
        "all_rank_num_left_out": [rank.num_left_out for rank in ranks],
        "all_rank_left_out": tuple(position.left_out for position in positions),
        "dp_size": len(ranks),
        "fingerprint": {
            "seed": seed,
            "all_rank_dp_ranks": [rank.dp_rank for rank in ranks],
            "all_rank_num_shards": [rank.num_shards for rank in ranks],
            "all_rank_shards": [rank.shards for rank in ranks],
            "all_rank_batchings": [rank.batching for rank in ranks],
            "all_rank_files": tuple(rank.files for rank in ranks),
            "dp_size": dp_size,
        },
        "resplits": (
            *_resplits(of_epoch(reshards, epoch) if is_whole else reshards),
            *growth_items(widest(rank.growth for rank in ranks)),
        ),
        **outstanding_field([rank.outstanding for rank in ranks]),
        **accepted_field(sorted({each for rank in ranks for each in rank.accepted})),
    }


def read(state: Mapping[str, Any]) -> list[ResumeState]:
    """Return the rank states of a state, or the only one of a rank state.

    Raises:
        StateMismatchError: ``state`` is not a state; the error names the first invalid field.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError("state_dict", type(state).__name__, "<a mapping>")
    if "all_rank_indices" not in state:
        return [read_rank(state)]
    check_version(state, STATE_VERSION, default=STATE_VERSION)
    indices = _items(state, "all_rank_indices", None)
    if not indices:
        raise StateMismatchError("all_rank_indices", [], "<one index for each rank>")
    num_ranks = len(indices)
    dp_size = _count(state.get("dp_size", num_ranks), "dp_size")
    if dp_size != num_ranks:
        raise StateMismatchError("dp_size", dp_size, f"<{num_ranks} ranks>", "the state is truncated")
    epoch = _count(state.get("epoch", 0), "epoch")
    fingerprint = _mapping(state.get("fingerprint", {}), "fingerprint")
    if "version" not in state:
        # The system that this one follows subtracts its prefetched shards, also before the first one is delivered.
        indices = [max(-1, _count(index, "all_rank_indices", minimum=-(2**31))) for index in indices]
    columns = {"index": indices, "epoch": _items(state, "all_rank_epochs", num_ranks, epoch)}
    for name, (of_all, default) in _OF_RANK.items():
        columns[name] = _items(state, f"all_rank_{of_all}", num_ranks, default)
    for name, of_all in _OF_SHARDS.items():
        columns[name] = _items(fingerprint, f"all_rank_{of_all}", num_ranks)
    common = _common(state, fingerprint)
    rows = zip(*columns.values(), strict=True)
    return [_of_rank(common, dict(zip(columns, row, strict=True)), "all_rank_") for row in rows]


def read_rank(state: Mapping[str, Any]) -> ResumeState:
    """Return the rank state that ``write_rank`` wrote.

    Raises:
        StateMismatchError: ``state`` is not a rank state; the error names the first invalid field.
    """
    for field in ("version", "epoch", "index"):
        if field not in state:
            raise StateMismatchError(
                field if field != "index" else "all_rank_indices", "<missing>", "<a value>", _NOT_A_STATE
            )
    check_version(state, STATE_VERSION, default=STATE_VERSION)
    fingerprint = _mapping(state.get("fingerprint", {}), "fingerprint")
    values = {"index": state["index"], "epoch": state["epoch"]}
    values |= {name: state.get(name, default) for name, (_, default) in _OF_RANK.items()}
    values |= {name: fingerprint.get(name) for name in _OF_SHARDS}
    return _of_rank(_common(state, fingerprint), values, "")


#: The fields of a rank: their names in a state of all ranks, behind ``all_rank_``, and what is so where they are missing.
_OF_RANK: dict[str, tuple[str, Any]] = {
    "microbatch": ("microbatches", 0),
    "step": ("steps", None),
    "sampler": ("samplers", None),
    "skipped": ("skipped", ()),
    "num_left_out": ("num_left_out", 0),
    "left_out": ("left_out", ()),
}
#: Those of its fingerprint.
_FINGERPRINT = ("dp_rank", "num_shards", "shards", "batching", "files")
_OF_SHARDS = {name: name if name.endswith("s") else f"{name}s" for name in _FINGERPRINT}


def _common(state: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> ResumeState:
    """Return what a state says of each of its ranks."""
    dp_size = fingerprint.get("dp_size")
    return ResumeState(
        START,
        reshards=_reshards(state),
        seed=fingerprint.get("seed"),
        dp_size=None if dp_size is None else _count(dp_size, "fingerprint.dp_size", minimum=1),
        accepted=accepted_in(state),
        outstanding=state.get(OUTSTANDING),
        growth=growth_in(state.get("resplits")),
    )


def _of_rank(common: ResumeState, values: Mapping[str, Any], prefix: str) -> ResumeState:
    """Return the state of a rank, from the values of its fields, whose names have a prefix in errors."""
    position = _position(*(values[name] for name in ("epoch", "index", "microbatch", "step", "left_out")))
    dp_rank, sampler, files = values["dp_rank"], values["sampler"], values["files"]
    return common._replace(
        position=position,
        dp_rank=None if dp_rank is None else _count(dp_rank, "fingerprint.dp_rank"),
        sampler=None if sampler is None else dict(_mapping(sampler, f"{prefix}samplers" if prefix else "sampler")),
        skipped=_counts(values["skipped"], f"{prefix}skipped", "shard indices"),
        num_left_out=_count(values["num_left_out"], f"{prefix}num_left_out", minimum=len(position.left_out)),
        batching=values["batching"],
        files=None if files is None else _counts(files, f"fingerprint.{prefix}files", "numbers"),
        num_shards=values["num_shards"],
        shards=values["shards"],
    )


def verify(saved: ResumeState, present: ResumeState, acceptance: Acceptance) -> None:
    """Check that a saved rank state belongs to the current plan, by every field that both have.

    Args:
        saved: The saved state.
        present: The start of the epoch in the current plan.
        acceptance: What may differ.

    Raises:
        StateMismatchError: A field differs; the error names the first one.
    """
    has_other_number = False
    for field, hint in (
        ("seed", "pass the loader the seed that the state was saved with"),
        ("dp_rank", "load the state on the rank that saved it"),
        ("num_shards", "the shards have changed since the state was saved"),
        ("shards", "the shards, or their order, have changed since the state was saved"),
        ("batching", "finish a shard that was begun in the same batches: with the batch_size and the samplers of then"),
    ):
        if field == "batching" and not saved.position.microbatch and not saved.reshards:
            continue  # no shard is begun
        if field == "shards" and has_other_number:
            continue  # of other shards, which were accepted
        was, now = getattr(saved, field), getattr(present, field)
        if field == "batching" and is_reported(was):
            continue  # the worker compares it with what it makes
        # Compare types first: a value in a foreign state may define its own equality.
        if was is not None and now is not None and (type(was) is not type(now) or was != now):
            error = StateMismatchError(f"fingerprint.{field}", was, now, hint)
            if field not in ("num_shards", "shards") or type(was) is not type(now):
                raise error
            acceptance.settle(error, _price_of_shards(saved))
            has_other_number = True
    if present.num_shards is not None and saved.position.task_index > present.num_shards:
        raise StateMismatchError("all_rank_indices", saved.position.task_index - 1, f"<{present.num_shards} shards>")


def _price_of_shards(saved: ResumeState) -> str:
    positions = [*(position for reshard in saved.reshards for position in reshard.positions), saved.position]
    num_passed = sum(position.task_index + (position.microbatch > 0) for position in positions)
    return (
        f"as many shards as were delivered, in full or in part, are left out at the start of the present order: {num_passed:,} "
        "on each rank. If they are others, up to as many are lost, and as many come again"
    )


def is_reported(batching: object) -> bool:
    """Return whether a worker has said how samples are grouped, instead of a ``DataLoaderFactory``."""
    return isinstance(batching, str) and batching.startswith("DataLoader(")


_NOT_A_STATE = "this is not a state of a ShardedDataLoader"


def _mapping(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StateMismatchError(field, type(value).__name__, "<a mapping>", _NOT_A_STATE)
    return cast("Mapping[str, Any]", value)


def _items(state: Mapping[str, Any], field: str, length: int | None, default: object = None) -> list[Any]:
    value = state.get(field)
    if value is None and length is not None:
        return [default] * length
    if isinstance(value, torch.Tensor) and value.dim() == 1:
        value = cast("list[Any]", value.tolist())
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise StateMismatchError(field, type(value).__name__, "<a list with an item for each rank>", _NOT_A_STATE)
    items = list(cast("Sequence[Any]", value))
    if length is not None and len(items) != length:
        raise StateMismatchError(field, f"<{len(items)} items>", f"<{length} ranks>", "the state is truncated")
    return items


def _count(value: object, field: str, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_floating_point():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise StateMismatchError(field, value, f"<an integer from {minimum} to {maximum}>", _NOT_A_STATE)
    return value


def _counts(value: object, field: str, what: str) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise StateMismatchError(field, value, f"<a list of {what}>", _NOT_A_STATE)
    return tuple(_count(number, field) for number in cast("Sequence[object]", value))


def _resplits(reshards: Sequence[Reshard]) -> list[dict[str, list[Any]]]:
    return [
        {
            "epochs": [position.epoch for position in reshard.positions],
            "indices": [position.task_index - 1 for position in reshard.positions],
            "microbatches": [position.microbatch for position in reshard.positions],
            "steps": [position.step for position in reshard.positions],
            **(
                {"left_out": [list(position.left_out) for position in reshard.positions]}
                if any(position.left_out for position in reshard.positions)
                else {}
            ),
        }
        for reshard in reshards
    ]


def _reshards(state: Mapping[str, Any]) -> tuple[Reshard, ...]:
    if state.get("resplits") is None:
        return ()
    reshards: list[Reshard] = []
    for item in _items(state, "resplits", None):
        resplit = _mapping(item, "resplits")
        if LISTED in resplit:
            continue
        epochs = _items(resplit, "epochs", None)
        if not epochs:
            raise StateMismatchError("resplits", [], "<a position for each rank>", _NOT_A_STATE)
        columns = [_items(resplit, name, len(epochs)) for name in ("indices", "microbatches", "steps")]
        columns.append(_items(resplit, "left_out", len(epochs), ()))
        positions = tuple(_position(*row) for row in zip(epochs, *columns, strict=True))
        reshards.append(Reshard.at(positions))
    return tuple(reshards)


def _position(epoch: object, index: object, microbatch: object, step: object, left_out: object = ()) -> Position:
    shard = _count(index, "all_rank_indices", minimum=-1, maximum=2**31 - 2) + 1
    microbatch = _count(microbatch, "all_rank_microbatches")
    # A state without a step was saved between shards, by a loader that counted only shards.
    step = _count(step, "all_rank_steps") if step is not None else microbatch
    offsets = _counts(left_out, "all_rank_left_out", "places")
    return Position(_count(epoch, "all_rank_epochs"), shard, microbatch, step, left_out=offsets)

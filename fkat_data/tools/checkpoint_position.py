"""The positions of loaders that a checkpoint has: how far each rank is, what it has left, and who can go on from there.

Everything here follows from the saved values: no loader is made, and nothing is downloaded.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from fkat_data.errors import ConfigurationError
from fkat_data.errors.acceptance import AcceptedField, accepted_in
from fkat_data.errors.wording import counted
from fkat_data.loaders.computed_plan import batches_left
from fkat_data.loaders.loader_state import LoaderState, entries_of
from fkat_data.loaders.window_states import windows_of
from fkat_data.plan.position import Reshard, ResumeState
from fkat_data.plan.resharding import of_epoch
from fkat_data.plan.state import read, unsealed
from fkat_data.runtime.interruption import genuine

_ANY = "any number of ranks"


class RankPosition(NamedTuple):
    """The position of a rank.

    Attributes:
        rank: Its number; None: the position is that of all ranks.
        epoch: The epoch of its next microbatch.
        step: Microbatches of that epoch that it had before; None: the state counts samples instead.
        left: What it has left of the epoch, in words.
    """

    rank: int | None
    epoch: int
    step: int | None
    left: str


class CheckpointPosition(NamedTuple):
    """The position in a saved state of a loader.

    Attributes:
        where: Its keys in the checkpoint; empty: the checkpoint is the state.
        loader: The class of loader or dataset that saved it.
        ranks: The ranks' positions.
        loads_on: Which numbers of ranks can load it.
        notes: What else it says.
    """

    where: str
    loader: str
    ranks: tuple[RankPosition, ...]
    loads_on: str
    notes: tuple[str, ...] = ()


def read_checkpoint(path: str | os.PathLike[str], *, is_trusted: bool = False) -> dict[str, Any]:
    """Return what a checkpoint holds, by its files' names: of a file, or of the files right in a folder.

    Args:
        path: What ``torch.save`` or ``json.dump`` wrote, or a folder of such files.
        is_trusted: Whether a file may run code, as objects of other classes than torch's need to be read.

    Raises:
        ConfigurationError: There is no file, none that can be read, or one that would have to run code.
    """
    root = Path(path)
    if not root.exists():
        raise ConfigurationError("checkpoint", str(path), "a file, or a folder of files")
    if root.is_file():
        return {"": _content(root, is_trusted=is_trusted)}
    files = sorted(file for file in root.iterdir() if file.suffix in _SUFFIXES)
    if not files:
        raise ConfigurationError("checkpoint", str(path), f"a folder with a file that ends with {', '.join(_SUFFIXES)}")
    return {file.name: _content(file, is_trusted=is_trusted) for file in files}


def positions_in(checkpoint: object, where: str = "") -> Iterator[CheckpointPosition]:
    """Yield what each loader's state in a checkpoint says, however deep it lies in mappings and sequences.

    Raises:
        StateMismatchError: A state is damaged, or of a newer version.
    """
    checkpoint = unsealed(checkpoint)
    if isinstance(checkpoint, Mapping):
        state = cast("Mapping[Any, Any]", checkpoint)
        found = next((explain for fields, explain in _FORMS if fields <= set(state)), None)
        if found is not None:
            yield found(where, state)
            return
        parts: Iterator[tuple[object, Any]] = iter(state.items())
    elif isinstance(checkpoint, (list, tuple)):
        parts = iter(enumerate(cast("Sequence[Any]", checkpoint)))
    else:
        return
    for name, part in parts:
        yield from positions_in(part, f"{where}.{name}" if where else str(name))


_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl", ".bin", ".json")


def _content(file: Path, *, is_trusted: bool) -> Any:
    try:
        if file.suffix == ".json":
            return json.loads(file.read_text())
        # Weights stay in the file.
        return torch.load(file, map_location="cpu", weights_only=not is_trusted, mmap=True)
    except genuine(Exception) as error:
        expected = "a file that torch.save or json.dump wrote"
        if not is_trusted:
            expected += (
                ", of plain values and tensors; --trusted reads other objects as well, and runs what code they bring"
            )
        raise ConfigurationError("checkpoint", str(file), expected) from error


def _of_shards(where: str, state: Mapping[str, Any]) -> CheckpointPosition:
    ranks = read(state)
    positions = tuple(
        RankPosition(
            each.dp_rank if each.dp_rank is not None else rank, each.position.epoch, each.position.step, _shards(each)
        )
        for rank, each in enumerate(ranks)
    )
    size = ranks[0].dp_size
    dp_ranks = {each.dp_rank for each in ranks}
    if size is not None and dp_ranks == set(range(size)):
        loads_on = _ANY
    elif size is not None:
        loads_on = (
            f"{counted(size, 'rank')}, each with its own state; merge_state_dicts() of all of them loads on {_ANY}"
        )
    else:
        num_ranks = len(ranks) if None in dp_ranks else len(dp_ranks)
        loads_on = f"{counted(num_ranks, 'rank')}: the sampler did not split its shards"
    notes = tuple(
        f"rank {each.rank} skipped {counted(len(saved.skipped), 'shard')}: {', '.join(map(str, saved.skipped))}"
        for each, saved in zip(positions, ranks, strict=True)
        if saved.skipped
    )
    notes += _resplits(ranks[0].reshards, min(each.position.epoch for each in ranks)) + _accepted(ranks[0].accepted)
    return CheckpointPosition(where, "ShardedDataLoader", positions, loads_on, notes)


def _resplits(reshards: Sequence[Reshard], epoch: int) -> tuple[str, ...]:
    num_changes = sum(each.exclusion is None for each in of_epoch(reshards, epoch))
    num_left_out = sum(each.exclusion is not None for each in reshards)
    facts = {
        "the number of ranks has changed {} in this epoch": num_changes,
        "the caller has left samples or steps out {}": num_left_out,
    }
    return tuple(text.format(counted(number, "time")) for text, number in facts.items() if number)


def _accepted(accepted: Sequence[AcceptedField], counted_in: str = "step") -> tuple[str, ...]:
    return tuple(
        f"{each.field} differed in a state that was loaded in epoch {each.epoch} at {counted_in} {each.step}, and was accepted"
        for each in accepted
    )


def _shards(rank: ResumeState) -> str:
    position = rank.position
    begun = f", the first of them from microbatch {position.microbatch} on" if position.microbatch else ""
    if rank.num_shards is None:
        return f"all after {counted(position.task_index, 'shard')}{begun}"
    return f"{max(0, rank.num_shards - position.task_index)} of {counted(rank.num_shards, 'shard')}{begun}"


def _of_data_loader(where: str, state: Mapping[str, Any]) -> CheckpointPosition:
    states = [LoaderState.read(each) for each in entries_of(state) or [state]]
    first = states[0]
    of_plan, distributed = first.plan_state, first.sampler.get("distributed")
    num_ranks = first.num_ranks if first.sharing is not None else first.dealt_ranks or 1
    if distributed is not None:
        num_ranks = int(distributed["num_replicas"])
    of_all = first.is_gathered or (len(states) == 1 and distributed is not None)
    positions: list[RankPosition] = []
    for index, each in enumerate(states):
        # One state of ranks that are in step stands for all of them.
        ranks: Sequence[int | None] = range(num_ranks) if of_all else [index if len(states) > 1 else None]
        positions += [RankPosition(rank, each.epoch, each.step, _batches(each, rank)) for rank in ranks]
    if "stream" in of_plan:
        return next(positions_in(of_plan["stream"], where))._replace(loader="DataLoader")
    if "all_strands" in of_plan:
        num_strands, found = of_plan["all_strands"], {n for one in states for n in one.plan_state["strand_numbers"]}
        loads_on = f"1 to {counted(num_strands, 'rank')}, as many as there are strands"
        if len(found) < num_strands:
            loads_on = f"ranks with its own {counted(len(found), 'strand')}; merge_state_dicts() of all ranks' loads on {loads_on}"
    elif first.saved_by is not None and len(states) == 1:
        loads_on = (
            f"rank {first.saved_by[0]}; merge_state_dicts() of each one's local_state_dict() loads on as many ranks"
        )
    elif "strands" in of_plan:
        loads_on = f"{counted(len(states), 'rank')}, with {counted(of_plan['num_strands'], 'worker')} each"
    elif of_all or len(states) == num_ranks:
        loads_on = _ANY
        if first.sharing is not None and first.sharing.split_batches:
            loads_on += f" that divides the batch size, {first.batch_size}"
    else:
        size = max(len(states), num_ranks)
        loads_on = f"{counted(size, 'rank')}; merge_state_dicts() of each one's local_state_dict() loads on {_ANY}"
    notes = _resplits(first.reshards, first.epoch) + _accepted(first.accepted)
    return CheckpointPosition(where, "DataLoader", tuple(positions), loads_on, notes)


def _batches(state: LoaderState, rank: int | None) -> str:
    if state.is_of_windows:
        windows, sampler = windows_of(state, rank or 0), state.sampler
        from_row = f", the first from row {sampler['row']}" if sampler["row"] else ""
        num_skipped = sampler.get("num_skipped", 0)
        left_out = f"; {counted(num_skipped, 'sample')} left out" if num_skipped else ""
        return f"{len(windows) - sampler['window']} of {counted(len(windows), 'window')}{from_row}{left_out}"
    counts = batches_left(state, rank)
    if counts is None:
        return "what its samplers or its dataset give"
    return f"{counts[0]} of {counted(counts[1], 'microbatch')}"


def _of_stream(where: str, state: Mapping[str, Any]) -> CheckpointPosition:
    epoch_size = state.get("fingerprint", {}).get("epoch_size")
    done = state["sample_in_epoch"]
    left = f"all after {counted(done, 'sample')} of all ranks together"
    if epoch_size is not None:
        left = f"{max(0, epoch_size - done)} of {counted(epoch_size, 'sample')}, of all ranks together"
    position, notes = RankPosition(None, state["epoch"], None, left), _accepted(accepted_in(state), "sample")
    return CheckpointPosition(where, "StreamingDataset", (position,), _ANY, notes)


#: The fields by which a state is known, and what explains it.
_FORMS = (
    ({"all_rank_indices"}, _of_shards),
    ({"version", "epoch", "index", "fingerprint"}, _of_shards),
    ({"version", "all_rank_states"}, _of_data_loader),
    ({"version", "seed", "epoch", "step", "sampler"}, _of_data_loader),
    ({"version", "seed", "epoch", "step", "strands"}, _of_data_loader),
    ({"version", "seed", "epoch", "step", "stream"}, _of_data_loader),
    ({"epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed"}, _of_stream),
)

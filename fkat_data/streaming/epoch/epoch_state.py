"""A dataset's state: the reference's keys, and a fingerprint of the settings that must match on load."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, cast

import numpy as np

from fkat_data.arguments import saved_integer, saved_version
from fkat_data.errors import StateMismatchError
from fkat_data.streaming.epoch.resume_point import LARGEST_NUMBER, ResumePoint
from fkat_data.streaming.order.epoch_order import OrderSettings
from fkat_data.streaming.order.partition import Grid
from fkat_data.streaming.order.weights import StreamWeight

#: The reference's states have none, and those of this library so far do not either.
_VERSION = 1
_REQUIRED = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")


def state_of(point: ResumePoint) -> dict[str, Any]:
    """Return a settled resume point as a state dict: the reference's keys, and the grid if the order depends on it."""
    state = {
        "epoch": point.epoch,
        "sample_in_epoch": point.sample_in_epoch,
        "num_canonical_nodes": point.num_canonical_nodes,
        "shuffle_seed": point.shuffle_seed,
        "initial_physical_nodes": point.initial_physical_nodes,
    }
    return state if point.initial_grid is None else {**state, "initial_grid": asdict(point.initial_grid)}


def resume_point_of(state_dict: object) -> ResumePoint:
    """Return the resume point in a state dict that this library or the reference saved.

    Raises:
        StateMismatchError: A field is missing or invalid, or a newer version wrote the state. The message names it.
    """
    if not isinstance(state_dict, Mapping):
        raise StateMismatchError("state_dict", state_dict, "<a mapping>", "pass what state_dict() returned")
    state = cast("Mapping[str, Any]", state_dict)
    saved_version(state, _VERSION, default=_VERSION)
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


def fingerprint_of(
    settings: OrderSettings, weights: Sequence[StreamWeight], epoch_size: int, global_batch_size: int | None
) -> dict[str, Any]:
    """Return the settings that determine the order and that the reference's state lacks.

    Args:
        settings: The settings that determine the order.
        weights: Each stream's weight as the user gave it. The state keeps a weight schedule separately.
        epoch_size: Samples in an epoch.
        global_batch_size: Samples in a global batch; None if the order does not depend on it.
    """
    found: dict[str, Any] = {
        "shards": _digest(settings, weights),
        "epoch_size": epoch_size,
        "sampling_method": settings.sampling_method,
        "sampling_granularity": settings.sampling_granularity,
        "batching_method": settings.batching_method,
        "shuffle": settings.shuffle,
    }
    if global_batch_size is not None:
        found["global_batch_size"] = global_batch_size
    if settings.shuffle:
        found |= {"shuffle_algo": settings.shuffle_algo, "shuffle_block_size": settings.shuffle_block_size}
    return found


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

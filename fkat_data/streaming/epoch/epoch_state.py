"""A dataset's state: the reference's keys, and what must be the same where it is loaded."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.streaming.epoch.resume_point import ResumePoint
from fkat_data.streaming.order.epoch_order import OrderSettings
from fkat_data.streaming.order.weights import StreamWeight

__all__ = ["check_fingerprint", "fingerprint_of", "place_of", "state_of"]

_REQUIRED = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")


def state_of(place: ResumePoint) -> dict[str, Any]:
    """Return a place, in which nothing is open, as the reference saves it."""
    return {
        "epoch": place.epoch,
        "sample_in_epoch": place.sample_in_epoch,
        "num_canonical_nodes": place.num_canonical_nodes,
        "shuffle_seed": place.shuffle_seed,
        "initial_physical_nodes": place.initial_physical_nodes,
    }


def place_of(state_dict: object) -> ResumePoint:
    """Return the place that a state says, of ours or of the reference.

    Raises:
        StateMismatchError: It is no such state; the message names the field.
    """
    if not isinstance(state_dict, Mapping):
        raise StateMismatchError("state_dict", state_dict, "<a mapping>", "it has to be what state_dict() gave")
    state = cast("Mapping[str, Any]", state_dict)
    for field in _REQUIRED:
        if field not in state:
            raise StateMismatchError(field, "<missing>", "<an integer>", "another kind of object wrote the state")
    nodes = state.get("initial_physical_nodes")
    return ResumePoint(
        _number(state, "epoch", 0),
        _number(state, "sample_in_epoch", 0),
        _number(state, "num_canonical_nodes", 1),
        _number(state, "shuffle_seed", 0),
        None if nodes is None else _number(state, "initial_physical_nodes", 1),
    )


def fingerprint_of(
    settings: OrderSettings, weights: Sequence[StreamWeight], epoch_size: int, global_batch_size: int | None
) -> dict[str, Any]:
    """Return what decides on the order and is no part of the reference's state.

    Args:
        settings: What decides on the order.
        weights: What was said of the streams' weights; a schedule's are kept beside the fingerprint.
        epoch_size: Samples of an epoch.
        global_batch_size: Samples of a global batch where the order depends on it; else None.
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
    """Return if a saved fingerprint is the present one.

    Raises:
        StateMismatchError: It is not; the message names the first field that differs.
    """
    if not isinstance(saved, Mapping):
        raise StateMismatchError("fingerprint", saved, dict(present), "it has to be what state_dict() gave")
    fields = cast("Mapping[str, Any]", saved)
    for field in [*present, *(field for field in fields if field not in present)]:
        if field not in fields or field not in present or fields[field] != present[field]:
            raise StateMismatchError(
                field,
                fields.get(field, "<none>"),
                present.get(field, "<none>"),
                "the order would be another one; to begin anew, load no state",
            )


def _digest(settings: OrderSettings, weights: Sequence[StreamWeight]) -> str:
    made = hashlib.blake2s(digest_size=16)
    for sizes, weight in zip(settings.shard_sizes, weights, strict=True):
        value = None if weight.value is None else float(weight.value)
        made.update(f"{weight.kind} {value} {len(sizes)};".encode())
        made.update(np.ascontiguousarray(sizes, "<i8").tobytes())
    return made.hexdigest()


def _number(state: Mapping[str, Any], field: str, minimum: int) -> int:
    try:
        return integer(field, state[field], minimum=minimum)
    except ConfigurationError as error:
        raise StateMismatchError(field, state[field], f"<{error.expected}>") from None

"""Weights of streams that change as training goes on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.streaming.order.weights import StreamWeight

__all__ = ["WeightSchedule"]

_EXPECTED = "a list of {'from_sample': n, 'weights': [a proportion of each stream]}, from 0 on, rising"


class WeightSchedule:
    """Proportions of the streams, by how many samples training has planned before an epoch.

    An epoch has one mixture, so weights change between epochs: ``epoch_size`` says how finely.

    Args:
        given: A list of ``{"from_sample": 0, "weights": [3, 1]}``, the first from sample 0 on.
        num_streams: Number of streams, each of which has a weight.
        epoch_size: Samples of an epoch.

    Raises:
        ConfigurationError: It is none of these, or a weight would change within an epoch.
    """

    def __init__(self, given: Sequence[Mapping[str, Any]], num_streams: int, epoch_size: int) -> None:
        if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence) or not given:
            raise ConfigurationError("weight_schedule", given, _EXPECTED)
        self._entries = [_entry(item, num_streams) for item in given]
        starts = [start for start, _ in self._entries]
        if starts[0] != 0 or starts != sorted(set(starts)):
            raise ConfigurationError("weight_schedule", starts, _EXPECTED)
        for start in starts:
            if start % epoch_size:
                below = start - start % epoch_size
                raise ConfigurationError(
                    "weight_schedule",
                    start,
                    f"a multiple of epoch_size = {epoch_size}, as {below} and {below + epoch_size} are",
                )
        self._epoch_size = epoch_size

    def weights(self, epoch: int) -> list[StreamWeight]:
        """Return the streams' weights in an epoch."""
        sample = epoch * self._epoch_size
        values = next(values for start, values in reversed(self._entries) if start <= sample)
        return [StreamWeight("proportion", value) for value in values]

    def plain(self) -> list[dict[str, Any]]:
        """Return what a state keeps."""
        return [{"from_sample": start, "weights": list(values)} for start, values in self._entries]

    def check_past(self, saved: object, epoch: int) -> None:
        """Return if a saved schedule had the same weights in all epochs up to one; those after it may change.

        Raises:
            StateMismatchError: It had not.
        """
        limit = epoch * self._epoch_size
        present = [entry for entry in self.plain() if entry["from_sample"] <= limit]
        entries = cast("list[Any]", saved) if isinstance(saved, list) else []
        past: list[Any] = [entry for entry in entries if _start(entry) <= limit]
        if past != present:
            raise StateMismatchError("weight_schedule", past, present, "only weights of later epochs may change")


def _start(entry: Any) -> int:
    start = cast("dict[str, Any]", entry).get("from_sample") if isinstance(entry, dict) else 0
    # What is no number at all is compared, and differs.
    return start if isinstance(start, int) else 0


def _entry(item: object, num_streams: int) -> tuple[int, tuple[float, ...]]:
    values = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else dict[str, Any]()
    given = values.get("weights")
    if set(values) != {"from_sample", "weights"} or isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigurationError("weight_schedule", cast("object", item), _EXPECTED)
    weights = cast("Sequence[Any]", given)
    if len(weights) != num_streams:
        raise ConfigurationError("weight_schedule", weights, f"a weight of each of the {num_streams} streams")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise ConfigurationError("weight_schedule", weights, "weights of at least 0")
    if not sum(weights) > 0:
        raise ConfigurationError("weight_schedule", weights, "a weight above 0 for one stream at least")
    return integer("weight_schedule", values["from_sample"], minimum=0), tuple(map(float, weights))

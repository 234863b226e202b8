"""Weights of streams that change during training."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError, StateMismatchError
from fkat_data.streaming.order.weights import StreamWeight

_EXPECTED = (
    "a list of {'from_sample': n, 'weights': [one proportion for each stream]}, with from_sample starting at 0 and "
    "increasing"
)


class WeightSchedule:
    """Proportions of the streams as a function of the samples planned for all ranks since the first epoch.

    A change of weights within an epoch divides it into phases. Each phase is planned like an epoch of its size.

    Args:
        given: A list of ``{"from_sample": 0, "weights": [3, 1]}``, where ``from_sample`` starts at 0 and increases.
        num_streams: Number of streams. Each entry needs a weight for each of them.
        epoch_size: Samples in an epoch.

    Raises:
        ConfigurationError: ``given`` has another form, or a weight is invalid.
    """

    def __init__(self, given: Sequence[Mapping[str, Any]], num_streams: int, epoch_size: int) -> None:
        if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence) or not given:
            raise ConfigurationError("weight_schedule", given, _EXPECTED)
        self._entries = [_entry(item, num_streams) for item in given]
        starts = [start for start, _ in self._entries]
        if starts[0] != 0 or starts != sorted(set(starts)):
            raise ConfigurationError("weight_schedule", starts, _EXPECTED)
        self._epoch_size = epoch_size

    @property
    def changing_epochs(self) -> list[int]:
        """The epochs in which an entry of the schedule takes effect, in ascending order."""
        return sorted({start // self._epoch_size for start, _ in self._entries})

    def phases(self, epoch: int) -> list[tuple[int, list[StreamWeight]]]:
        """Return the phases of an epoch: each one's number of samples, and the streams' weights."""
        first = epoch * self._epoch_size
        end = first + self._epoch_size
        starts = [first, *(start for start, _ in self._entries if first < start < end)]
        return [(stop - start, self._weights_at(start)) for start, stop in zip(starts, [*starts[1:], end], strict=True)]

    def plain(self) -> list[dict[str, Any]]:
        """Return the schedule as a state keeps it."""
        return [{"from_sample": start, "weights": list(values)} for start, values in self._entries]

    def check_past(self, saved: object, epoch: int, sample_in_epoch: int) -> None:
        """Check that a saved schedule had the same weights up to a resume point; later weights may change.

        The weights of an epoch that has begun may not change: each phase is planned as a whole.

        Raises:
            StateMismatchError: The saved schedule had different weights.
        """
        limit = epoch * self._epoch_size + (self._epoch_size - 1 if sample_in_epoch else 0)
        present = [entry for entry in self.plain() if entry["from_sample"] <= limit]
        entries = cast("Sequence[Any]", saved if isinstance(saved, (list, tuple)) else ())
        past: list[Any] = [entry for entry in entries if _start(entry) <= limit]
        if past != present:
            raise StateMismatchError("weight_schedule", past, present, "only the weights of later epochs may change")

    def _weights_at(self, sample: int) -> list[StreamWeight]:
        values = next(values for start, values in reversed(self._entries) if start <= sample)
        return [StreamWeight("proportion", value) for value in values]


def _start(entry: Any) -> int:
    start = cast("dict[str, Any]", entry).get("from_sample") if isinstance(entry, dict) else 0
    # An invalid start counts as 0, so the comparison includes the entry and finds the difference.
    return start if isinstance(start, int) else 0


def _entry(item: object, num_streams: int) -> tuple[int, tuple[float, ...]]:
    values = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else dict[str, Any]()
    given = values.get("weights")
    if set(values) != {"from_sample", "weights"} or isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigurationError("weight_schedule", cast("object", item), _EXPECTED)
    weights = cast("Sequence[Any]", given)
    if len(weights) != num_streams:
        raise ConfigurationError("weight_schedule", weights, f"one weight for each of the {num_streams} streams")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise ConfigurationError("weight_schedule", weights, "finite weights of at least 0")
    if not sum(weights) > 0:
        raise ConfigurationError("weight_schedule", weights, "a weight above 0 for at least one stream")
    return integer("weight_schedule", values["from_sample"], minimum=0), tuple(map(float, weights))

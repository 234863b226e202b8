"""What must not be delivered: after a spike of the loss, the batches that caused it, or samples found to be bad."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError

__all__ = ["SampleSkips"]

_EXPECTED = "a list of {'epoch': e, 'batches': [first, stop]} and {'samples': [id, ...]}"


class SampleSkips:
    """Global batches of an epoch, and samples, that are left out; every other sample keeps its place.

    Args:
        given: A list of ``{"epoch": 0, "batches": [100, 120]}``, which leaves out the global batches from 100 to 119
            of the epoch, and ``{"samples": [17, 4]}``, which leaves out samples in every epoch.

    Raises:
        ConfigurationError: It is none of these.
    """

    def __init__(self, given: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._batches: set[tuple[int, int, int]] = set()
        self._samples: set[int] = set()
        if given is not None and (isinstance(given, (str, Mapping)) or not isinstance(given, Sequence)):
            raise ConfigurationError("skip", given, _EXPECTED)
        for item in given or ():
            self._add(item)
        self._sample_ids = np.array(sorted(self._samples), np.int64)

    def _add(self, item: object) -> None:
        values = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else dict[str, Any]()
        numbers = values.get("samples", values.get("batches"))
        if isinstance(numbers, str) or not isinstance(numbers, Sequence):
            raise ConfigurationError("skip", cast("object", item), _EXPECTED)
        found = [integer("skip", number, minimum=0) for number in cast("Sequence[Any]", numbers)]
        if set(values) == {"samples"}:
            self._samples.update(found)
        elif set(values) == {"epoch", "batches"} and len(found) == 2:
            self._batches.add((integer("skip", values["epoch"], minimum=0), found[0], found[1]))
        else:
            raise ConfigurationError("skip", cast("object", item), _EXPECTED)

    def __bool__(self) -> bool:
        return bool(self._batches or self._samples)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleSkips) and self.plain() == other.plain()

    def __hash__(self) -> int:
        return hash((frozenset(self._batches), frozenset(self._samples)))

    @property
    def has_samples(self) -> bool:
        """Whether single samples are left out."""
        return bool(self._samples)

    def plain(self) -> list[dict[str, Any]]:
        """Return what a state keeps, and what a dataset takes as ``skip``."""
        found: list[dict[str, Any]] = [
            {"epoch": epoch, "batches": [first, stop]} for epoch, first, stop in sorted(self._batches)
        ]
        return [*found, {"samples": sorted(self._samples)}] if self._samples else found

    def also(self, other: "SampleSkips") -> "SampleSkips":
        """Return what leaves out whatever one of the two leaves out."""
        return SampleSkips([*self.plain(), *other.plain()])

    def check(self, num_samples: int) -> None:
        """Return if all samples exist.

        Raises:
            ConfigurationError: One does not.
        """
        if self._samples and max(self._samples) >= num_samples:
            raise ConfigurationError(
                "skip", max(self._samples), f"numbers of samples, of which there are {num_samples}"
            )

    def is_skipped(self, epoch: int, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which global batches of an epoch are left out as a whole."""
        found = np.zeros(len(batches), bool)
        for of_epoch, first, stop in self._batches:
            if of_epoch == epoch:
                found |= (first <= batches) & (batches < stop)
        return found

    def without(self, sample_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return sample ids with -1 in the place of those that are left out."""
        if not self._samples:
            return sample_ids
        return np.where(np.isin(sample_ids, self._sample_ids), -1, sample_ids)

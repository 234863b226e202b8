"""Batches and samples to skip: those that caused a spike of the loss, or that turned out to be bad."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fkat_data.arguments import integer
from fkat_data.errors import ConfigurationError

_EXPECTED = "a list of {'epoch': e, 'batches': [first, stop]} and {'samples': [id, ...]}"


class SampleSkips:
    """Global batches and samples to skip. All others stay in the batch where they would be without skips.

    Args:
        given: A list of ``{"epoch": 0, "batches": [100, 120]}``, which skips the global batches 100 to 119 of epoch 0,
            and ``{"samples": [17, 4]}``, which skips the samples with these ids in every epoch.

    Raises:
        ConfigurationError: ``given`` has another form.
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
        """Whether single samples are skipped."""
        return bool(self._samples)

    def plain(self) -> list[dict[str, Any]]:
        """Return the skips as a state keeps them and a dataset takes them as ``skip``."""
        found: list[dict[str, Any]] = [
            {"epoch": epoch, "batches": [first, stop]} for epoch, first, stop in sorted(self._batches)
        ]
        return [*found, {"samples": sorted(self._samples)}] if self._samples else found

    def also(self, other: "SampleSkips") -> "SampleSkips":
        """Return the union of both skips."""
        return SampleSkips([*self.plain(), *other.plain()])

    def check(self, num_samples: int) -> None:
        """Check that every sample to skip exists.

        Raises:
            ConfigurationError: A sample does not exist.
        """
        if self._samples and max(self._samples) >= num_samples:
            raise ConfigurationError("skip", max(self._samples), f"sample ids below {num_samples}")

    def is_skipped(self, epoch: int, batches: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which global batches of an epoch are skipped: shape (len(batches),), bool."""
        found = np.zeros(len(batches), bool)
        for of_epoch, first, stop in self._batches:
            if of_epoch == epoch:
                found |= (first <= batches) & (batches < stop)
        return found

    def without(self, sample_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sample ids with -1 for each skipped sample: same shape, int64."""
        if not self._samples:
            return sample_ids
        return np.where(np.isin(sample_ids, self._sample_ids), -1, sample_ids)

"""How many samples each stream gives to an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError

__all__ = ["StreamShares", "StreamWeight", "joined_shares", "shares_of"]


@dataclass(frozen=True)
class StreamWeight:
    """What a user said of a stream's weight.

    Attributes:
        kind: ``"proportion"`` of the epoch, times to ``"repeat"`` the stream, samples to ``"choose"``; None: nothing.
        value: The number that belongs to it.
    """

    kind: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class StreamShares:
    """What the streams give to an epoch.

    Attributes:
        epoch_size: Samples of the epoch.
        choose: Samples of each stream.
        proportion: Each stream's part of the epoch, from 0 to 1.
        repeat: How often the epoch shows each stream.
    """

    epoch_size: int
    choose: tuple[int, ...]
    proportion: tuple[float, ...]
    repeat: tuple[float, ...]


def shares_of(
    weights: Sequence[StreamWeight], samples_per_stream: Sequence[int], epoch_size: int | None, seed: int
) -> StreamShares:
    """Return what each stream gives to an epoch.

    Args:
        weights: One a stream: all of them proportions, or none.
        samples_per_stream: Samples that each stream holds.
        epoch_size: Samples of the epoch; None or 0: as the weights say.
        seed: Decides which streams round up.

    Raises:
        ConfigurationError: Proportions beside other weights, an epoch's size beside other weights, or no weight.
    """
    kinds = {weight.kind for weight in weights}
    sizes = np.asarray(samples_per_stream, np.int64)
    if "proportion" in kinds and kinds != {"proportion"}:
        raise ConfigurationError(
            "streams", sorted(map(str, kinds)), "a proportion for every stream, or for none of them"
        )
    if kinds == {"proportion"} or (kinds == {None} and epoch_size):
        values = [float(weight.value or 0) for weight in weights] if None not in kinds else list(map(float, sizes))
        return _relative(np.array(values, np.float64), sizes, epoch_size, seed)
    if epoch_size:
        raise ConfigurationError(
            "epoch_size", epoch_size, "none where streams repeat or choose: they say how large the epoch is"
        )
    choose = [_chosen(weight, size) for weight, size in zip(weights, sizes.tolist(), strict=True)]
    total = sum(choose)
    return _shares(np.array(choose, np.int64), sizes, np.array(choose, np.float64) / max(total, 1))


def joined_shares(phases: Sequence[StreamShares], samples_per_stream: Sequence[int]) -> StreamShares:
    """Return what the streams give to all phases of an epoch together.

    Args:
        phases: At least one.
        samples_per_stream: Samples that each stream holds.
    """
    if len(phases) == 1:
        return phases[0]
    choose = np.array([phase.choose for phase in phases], np.int64).sum(axis=0)
    return _shares(choose, np.asarray(samples_per_stream, np.int64), choose / max(int(choose.sum()), 1))


def _relative(
    values: npt.NDArray[np.float64], sizes: npt.NDArray[np.int64], epoch_size: int | None, seed: int
) -> StreamShares:
    if not values.sum() > 0:
        raise ConfigurationError("streams", values.tolist(), "a proportion above 0 for one stream at least")
    proportion = values / values.sum()
    total = epoch_size or int(sizes.sum())
    choose = (total * proportion).astype(np.int64)
    missing = total - int(choose.sum())
    rounded_up = np.random.default_rng(seed).choice(len(values), missing, replace=False)
    choose[rounded_up] += 1
    return _shares(choose, sizes, proportion)


def _chosen(weight: StreamWeight, size: int) -> int:
    if weight.kind == "repeat":
        return int((weight.value or 0) * size)
    return size if weight.value is None else int(weight.value)


def _shares(
    choose: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], proportion: npt.NDArray[np.float64]
) -> StreamShares:
    repeat = choose / np.maximum(sizes, 1)
    return StreamShares(int(choose.sum()), tuple(choose.tolist()), tuple(proportion.tolist()), tuple(repeat.tolist()))

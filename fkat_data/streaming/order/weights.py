"""The number of samples that an epoch takes of each stream."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError

#: Positions of an epoch are numbers below this power of 2.
POSITION_BITS = 44


@dataclass(frozen=True)
class StreamWeight:
    """A stream's weight as the user gave it.

    Attributes:
        kind: ``"proportion"`` of the epoch, times to ``"repeat"`` the stream, or samples to ``"choose"``; None if
            the user gave no weight.
        value: The proportion, the number of times or the number of samples; None without a kind.
    """

    kind: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class StreamShares:
    """Each stream's share of an epoch.

    Attributes:
        epoch_size: Samples in the epoch.
        choose: Samples that the epoch takes of each stream.
        proportion: Each stream's part of the epoch, from 0 to 1.
        repeat: ``choose`` divided by each stream's size.
    """

    epoch_size: int
    choose: tuple[int, ...]
    proportion: tuple[float, ...]
    repeat: tuple[float, ...]


def shares_of(
    weights: Sequence[StreamWeight], samples_per_stream: Sequence[int], epoch_size: int | None, seed: int
) -> StreamShares:
    """Return each stream's share of an epoch.

    Args:
        weights: One for each stream. Either all or none are proportions.
        samples_per_stream: Samples in each stream.
        epoch_size: Samples in the epoch; None or 0 to derive it from the weights.
        seed: Seed for the choice of the streams that round up.

    Raises:
        ConfigurationError: The weights mix proportions with other kinds, all proportions are 0, ``epoch_size`` is
            given although streams repeat or choose, samples of a stream are to come that has none, or an epoch has
            2**44 samples or more.
    """
    shares = _shares_of(weights, samples_per_stream, epoch_size, seed)
    for number, (count, size) in enumerate(zip(shares.choose, samples_per_stream, strict=True)):
        if count and not size:
            expected = f"no samples of stream {number} (from 0), which has none: leave it out, or give it a weight of 0"
            raise ConfigurationError("streams", f"{count} samples of stream {number}", expected)
    return shares


def _shares_of(
    weights: Sequence[StreamWeight], samples_per_stream: Sequence[int], epoch_size: int | None, seed: int
) -> StreamShares:
    kinds = {weight.kind for weight in weights}
    sizes = np.asarray(samples_per_stream, np.int64)
    if "proportion" in kinds and kinds != {"proportion"}:
        raise ConfigurationError("streams", sorted(map(str, kinds)), "a proportion for every stream or for none")
    if kinds == {"proportion"} or (kinds == {None} and epoch_size):
        if epoch_size and not sizes.any():
            raise ConfigurationError("epoch_size", epoch_size, "None: the data has no samples")
        values = [float(weight.value or 0) for weight in weights] if None not in kinds else list(map(float, sizes))
        return _relative(np.array(values, np.float64), sizes, epoch_size, seed)
    if epoch_size:
        raise ConfigurationError(
            "epoch_size", epoch_size, "None, because `repeat` and `choose` of the streams determine the epoch's size"
        )
    choose = [_chosen(weight, size) for weight, size in zip(weights, sizes.tolist(), strict=True)]
    total = _checked("streams", sum(choose))
    return _shares(np.array(choose, np.int64), sizes, np.array(choose, np.float64) / max(total, 1))


def joined_shares(phases: Sequence[StreamShares], samples_per_stream: Sequence[int]) -> StreamShares:
    """Return each stream's share of all phases of an epoch together.

    Args:
        phases: The shares of each phase, of at least one.
        samples_per_stream: Samples in each stream.
    """
    if len(phases) == 1:
        return phases[0]
    choose = np.array([phase.choose for phase in phases], np.int64).sum(axis=0)
    return _shares(choose, np.asarray(samples_per_stream, np.int64), choose / max(int(choose.sum()), 1))


def _relative(
    values: npt.NDArray[np.float64], sizes: npt.NDArray[np.int64], epoch_size: int | None, seed: int
) -> StreamShares:
    if not values.sum() > 0:
        raise ConfigurationError("streams", values.tolist(), "a proportion above 0 for at least one stream")
    proportion = values / values.sum()
    total = _checked("epoch_size", epoch_size or int(sizes.sum()))
    choose = (total * proportion).astype(np.int64)
    missing = total - int(choose.sum())
    rounded_up = np.random.default_rng(seed).choice(len(values), missing, replace=False)
    choose[rounded_up] += 1
    return _shares(choose, sizes, proportion)


def _checked(argument: str, epoch_size: int) -> int:
    if epoch_size >= 1 << POSITION_BITS:
        raise ConfigurationError(argument, epoch_size, f"fewer than 2**{POSITION_BITS} samples in an epoch")
    return epoch_size


def _chosen(weight: StreamWeight, size: int) -> int:
    if weight.kind == "repeat":
        return int((weight.value or 0) * size)
    return size if weight.value is None else int(weight.value)


def _shares(
    choose: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], proportion: npt.NDArray[np.float64]
) -> StreamShares:
    repeat = choose / np.maximum(sizes, 1)
    return StreamShares(int(choose.sum()), tuple(choose.tolist()), tuple(proportion.tolist()), tuple(repeat.tolist()))

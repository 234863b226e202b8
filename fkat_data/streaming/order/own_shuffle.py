"""Shuffles that users register by a name."""

from typing import NewType, Protocol

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.registry import Registry
from fkat_data.streaming.order.shuffle import REFERENCE_SHUFFLES

_Integers = npt.NDArray[np.int64]

#: A name that ``register_shuffle`` returned. Type checkers refuse any other text that is no shuffle of this package.
OwnShuffleName = NewType("OwnShuffleName", str)


class Shuffle(Protocol):
    """An epoch's order: a permutation of its samples, of which any positions can be asked for."""

    def samples_at(self, positions: _Integers, /) -> _Integers:
        """Return the number of the sample at each position: same shape, int64.

        Args:
            positions: Positions from 0 to the number of samples - 1, in any order, any number of times.
        """
        ...


class MakeShuffle(Protocol):
    """A class or function that makes the order of an epoch, which depends on its arguments alone."""

    def __call__(
        self, unit_sizes: _Integers, num_canonical_nodes: int, seed: int, epoch: int, block_size: int
    ) -> Shuffle:
        """Return the order.

        Args:
            unit_sizes: Samples in each unit of the shuffle: a shard, or the part of one that the epoch takes. The
                samples of unit *i* have the numbers from ``unit_sizes[:i].sum()`` on.
            num_canonical_nodes: Parts of the order; each node of the run reads whole parts.
            seed: Seed of the run.
            epoch: Index of the epoch, from 0.
            block_size: Number of positions over which a unit is spread.
        """
        ...


_registered: Registry[MakeShuffle] = Registry("shuffle", lambda name: name in ("block", *REFERENCE_SHUFFLES))


def register_shuffle(name: str, make: MakeShuffle) -> OwnShuffleName:
    """Let ``shuffle_algo`` name an order of your own, in this process and in all that it starts for its data.

    A saved state holds the name alone: give an order that has changed another name.

    Args:
        name: Its name.
        make: Makes an epoch's order: a class, or a function.

    Returns:
        The name, of the type that ``shuffle_algo`` has for type checkers.

    Raises:
        ConfigurationError: ``make`` is not callable, or the name is malformed or taken.
    """
    _registered.add(name, make)
    return OwnShuffleName(name)


def own_shuffle_names() -> tuple[OwnShuffleName, ...]:
    """Return the names of the shuffles that are registered."""
    return tuple(map(OwnShuffleName, _registered.names))


class OwnShuffle:
    """An epoch's order by a shuffle that is registered. A sample that does not exist is an error, not read.

    Args:
        name: Its name.
        unit_sizes: See ``MakeShuffle``, as for the rest.

    Raises:
        ConfigurationError: No shuffle has this name here.
    """

    def __init__(
        self, name: str, unit_sizes: _Integers, num_canonical_nodes: int, seed: int, epoch: int, block_size: int
    ) -> None:
        make = _registered.get(name)
        if make is None:
            known = ", ".join(_registered.names) or "none"
            raise ConfigurationError("shuffle_algo", name, f"a shuffle that is registered in this process ({known})")
        self._name = name
        self._made = make(unit_sizes, num_canonical_nodes, seed, epoch, block_size)
        self._size = int(unit_sizes.sum())

    def samples_at(self, positions: _Integers) -> _Integers:
        """Return the number of the sample at each position: same shape, int64.

        Raises:
            ConfigurationError: The shuffle returned something else.
        """
        found = np.asarray(self._made.samples_at(positions))
        if found.shape != positions.shape or found.dtype.kind != "i":
            shown = f"{found.dtype} of shape {found.shape}"
            raise ConfigurationError("shuffle_algo", self._name, f"integers of shape {positions.shape}, not {shown}")
        if found.size and not 0 <= int(found.min()) <= int(found.max()) < self._size:
            raise ConfigurationError("shuffle_algo", self._name, f"numbers of samples from 0 to {self._size - 1}")
        return found.astype(np.int64, copy=False)

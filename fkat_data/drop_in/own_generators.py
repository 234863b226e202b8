"""Global random generators that one caller has to itself: what it draws neither sees nor moves those of the program."""

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fkat_data.seeding import seed_global_generators


class OwnGenerators:
    """States of python's, numpy's and torch's global generators for one caller.

    Args:
        seed: What they begin with, from 0 to 2**64 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: tuple[Any, Any, Any] | None = None

    @contextmanager
    def installed(self) -> Generator[None]:
        """Use these generators in the block, from where the block before has left them; then the program's again."""
        before = _states()
        try:
            if self._states is None:
                seed_global_generators(self._seed)
            else:
                _install(self._states)
            yield
            self._states = _states()
        finally:
            _install(before)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns that draws from these generators.

        Raises:
            BaseException: Whatever the function raises.
        """
        with self.installed():
            return function(*arguments)


def next_number(generator: torch.Generator | None) -> int:
    """Return the number that an iteration draws next, without moving the generator; None: torch's global one."""
    copied = torch.Generator()
    copied.set_state((generator or torch.default_generator).get_state())
    return int(torch.empty((), dtype=torch.int64).random_(generator=copied).item())


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002 - the generator that users share


def _install(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002 - the generator that users share
    torch.default_generator.set_state(states[2])

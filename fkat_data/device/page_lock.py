"""Page-locked segments: the device's copy engine reads the very memory that the worker wrote.

A segment is locked at its first copy, and unlocked before it is unmapped. Locks belong to the process: loaders on
several devices share them.
"""

import functools
import logging
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fkat_data.runtime.interruption import suppress
from fkat_data.transport.segment import Mapping, mapping_at

logger: logging.Logger = logging.getLogger(__name__)

# Of CUDA's runtime: the memory counts as locked for every device of the process.
_PORTABLE = 1


class PageLocks:
    """Locks segments for one device.

    Args:
        device: A CUDA device.
        runtime: CUDA's runtime, as ``torch.cuda.cudart()`` gives it; None: torch's.
    """

    def __init__(self, device: torch.device, runtime: Any = None) -> None:
        self._device = device
        self._runtime: Any = torch.cuda.cudart() if runtime is None else runtime

    def hold(self, tensor: torch.Tensor) -> bool:
        """Page-lock the segment that a tensor lies in, if it can be; return whether it is locked."""
        mapping = mapping_at(tensor.data_ptr())
        if mapping is None:
            return False
        is_locked = _locked.get(mapping.address)
        return self._lock(mapping) if is_locked is None else is_locked

    def _lock(self, mapping: Mapping) -> bool:
        with self._as_current():
            code = int(self._runtime.cudaHostRegister(mapping.address, mapping.size_bytes, _PORTABLE))
        _locked[mapping.address] = code == 0
        mapping.before_unmap(functools.partial(self._unlock, mapping.address, os.getpid()))
        if code:
            self._warn(code, mapping.size_bytes)
        return code == 0

    def _unlock(self, address: int, owner_pid: int) -> None:
        # A forked child has the mapping, but must not use the device.
        if _locked.pop(address, False) and os.getpid() == owner_pid:
            with self._as_current():
                self._runtime.cudaHostUnregister(address)

    def _as_current(self) -> AbstractContextManager[Any]:
        """Return a context that selects the device: a thread that used none before would start to use the first one."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _warn(self, code: int, size_bytes: int) -> None:
        # CUDA reports an error again at the next kernel: launch one here, and not in the caller's code.
        with suppress(RuntimeError):
            torch.zeros(1, device=self._device)
        if not _warned:
            _warned.append(code)
            logger.warning(
                "CUDA does not page-lock %d bytes of shared memory (error %d; see `ulimit -l`): microbatches are "
                "copied once more on their way to %s",
                size_bytes,
                code,
                self._device,
            )


# By a mapping's address: whether CUDA locked it or refused to.
_locked: dict[int, bool] = {}
_warned: list[int] = []

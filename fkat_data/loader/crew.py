"""The workers of one loader: started together, ended together."""

import os
from typing import Any, NamedTuple

import torch

from fkat_data import arguments
from fkat_data.observe.profile import TrainerProfile, WorkerProfile
from fkat_data.transport.budget import default_limit_bytes
from fkat_data.types import Profiler
from fkat_data.worker.inline import InlineWorker
from fkat_data.worker.messages import Worker
from fkat_data.worker.produce import Producer
from fkat_data.worker.settings import WorkerSettings
from fkat_data.worker.ship import ship
from fkat_data.worker.spawn import ProcessWorker

__all__ = ["Crew", "CrewSettings"]

_GRACE_S = 1.0
_SMALLEST_LIMIT_BYTES = 1 << 20


class CrewSettings(NamedTuple):
    """What a loader's workers are made of.

    Attributes:
        factory: Makes the iterable of a shard's microbatches.
        seed: The loader's seed.
        dp_rank: The loader's data-parallel rank.
        num_workers: Worker processes.
        limit_bytes: Shared memory of all of them; None for the default.
        profiler: Told of the workers' actions.
        is_multiprocessing: False: one worker, in the caller's thread.
        is_zero_copy: Whether microbatches are views of shared memory.
    """

    factory: Any
    seed: int
    dp_rank: int
    num_workers: int
    limit_bytes: int | None
    profiler: Profiler | None
    is_multiprocessing: bool
    is_zero_copy: bool


class Crew:
    """Starts and ends a loader's workers.

    Args:
        settings: What they are made of.
        profile: The trainer's own ranges.

    Raises:
        ConfigurationError: The memory limit is too small, or the factory cannot be sent to a worker.
    """

    def __init__(self, settings: CrewSettings, profile: TrainerProfile) -> None:
        limit_bytes = settings.limit_bytes
        if limit_bytes is not None:
            smallest = _SMALLEST_LIMIT_BYTES * settings.num_workers
            limit_bytes = arguments.integer("memory_limit_bytes", limit_bytes, minimum=smallest)
        self._limit_bytes = limit_bytes if limit_bytes is not None else default_limit_bytes()
        self._settings = settings
        self._profile = profile
        self._owner_pid = os.getpid()
        self.workers: list[Worker] = []
        """The workers that run, in the order of their numbers; the same list for ever."""

    @property
    def held_bytes(self) -> int:
        """Bytes of shared memory whose microbatches are alive."""
        return sum(worker.held_bytes for worker in self.workers)

    def start(self) -> None:
        """Start the workers that do not run, those that died included; does not wait for them.

        Raises:
            ConfigurationError: The factory cannot be sent to a worker.
            RuntimeError: This process is a fork of the loader's.
        """
        if os.getpid() != self._owner_pid:
            raise RuntimeError(
                f"this loader belongs to process {self._owner_pid}; make one in process {os.getpid()}, "
                "which was forked from it"
            )
        settings = self._settings
        if settings.is_multiprocessing:
            self._spawn()
        elif not self.workers:
            mark = WorkerProfile(settings.profiler, None).mark
            self.workers.append(InlineWorker(Producer(settings.factory, settings.seed, settings.dp_rank, mark)))

    def close(self) -> None:
        """End the workers: those that do not leave by themselves within a second are killed. Any number of calls."""
        workers = list(self.workers)
        self.workers.clear()
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.close(_GRACE_S)

    def kill(self) -> None:
        """End the workers at once."""
        workers = list(self.workers)
        self.workers.clear()
        for worker in workers:
            worker.close(0.0)

    def _spawn(self) -> None:
        missing = [index for index, worker in enumerate(self.workers) if not worker.is_alive]
        missing += range(len(self.workers), self._settings.num_workers)
        if not missing:
            return
        settings = self._settings
        limit_bytes = self._limit_bytes // settings.num_workers
        shipped = WorkerSettings(
            factory=settings.factory,
            seed=settings.seed,
            dp_rank=settings.dp_rank,
            limit_bytes=limit_bytes,
            profiler=settings.profiler,
            default_dtype=torch.get_default_dtype(),
        )
        descriptor = ship(shipped, dataloader_factory=settings.factory, profiler=settings.profiler)
        try:
            for index in missing:
                worker = ProcessWorker(
                    descriptor, index, limit_bytes, self._profile, is_zero_copy=settings.is_zero_copy
                )
                if index < len(self.workers):
                    self.workers[index].close(0.0)
                    self.workers[index] = worker
                else:
                    self.workers.append(worker)
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(descriptor)

"""The entry point of a worker's process, spawned or forked."""

import contextlib
import ctypes
import functools
import mmap
import os
import signal
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from fkat_data.observe.events import MAIN_THREAD, EventRecorder
from fkat_data.observe.profile import WorkerProfile
from fkat_data.observe.stages import Page, StageClock
from fkat_data.runtime.launch import adopt_group
from fkat_data.runtime.registry import Registrations
from fkat_data.transport.buffers import load_with_buffers
from fkat_data.transport.channel import Channel
from fkat_data.transport.memory_limit import WorkerMemory
from fkat_data.transport.segment import Segment
from fkat_data.types import Shard
from fkat_data.worker.messages import PAGE_BYTES, CallerProgress
from fkat_data.worker.process.process_title import set_title, worker_name
from fkat_data.worker.process.serve import Server
from fkat_data.worker.produce import Producer
from fkat_data.worker.settings import WorkerSettings, enter_worker

# From malloc.h: memory that a dataset frees and allocates again for every microbatch stays mapped in between.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 << 20
_TRIM_THRESHOLD_BYTES = 512 << 20


# What must stay until this process's end: its program calls the functions of this module.
_kept: list[Any] = []


def main(
    settings_file: mmap.mmap, worker_index: int, channel_descriptor: int, page_descriptor: int, title: str
) -> None:
    """Serve the trainer at the other end of the channel until it is gone.

    The process is bound to its trainer by then (see ``fkat_data.worker.process.lifeline``).

    Args:
        settings_file: The ``WorkerSettings`` of a shipment, at its current position, mapped privately.
        worker_index: The worker's number among its loader's.
        channel_descriptor: The worker's end of the pipe.
        page_descriptor: Where the worker reports its stages, see ``fkat_data.observe.stages``.
        title: The process's title.
    """
    set_title(title, worker_name(worker_index))
    enter_worker(worker_index)
    prepare()
    work(open_settings(settings_file), worker_index, channel_descriptor, page_descriptor)


def prepare() -> None:
    """Make this process one that opens a shipment: it computes in one thread, and has a ``__main__`` for the script's names."""
    keep_freed_memory()
    torch.set_num_threads(1)
    # The script's names go there, and this process's own program has others.
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = types.ModuleType("__main__")


def open_settings(settings_file: mmap.mmap, before: Callable[[], object] = lambda: None) -> WorkerSettings:
    """Return what a shipment has, and let this process be as it says.

    A factory that cannot be rebuilt here is replaced by one that raises the reason: the trainer gets it with the first
    shard.

    Args:
        settings_file: The ``WorkerSettings``, at its current position, mapped privately.
        before: Called once the shipment's own files are open, before anything of the user's runs.
    """
    settings = _settings(settings_file, before)
    torch.set_default_dtype(settings.default_dtype)
    adopt_group(settings.group)
    return settings


def work(settings: WorkerSettings, worker_index: int, channel_descriptor: int, page_descriptor: int) -> None:
    """Serve the trainer at the other end of the channel until it is gone, with settings that are open.

    Args:
        settings: The loader's.
        worker_index: The worker's number among its loader's.
        channel_descriptor: The worker's end of the pipe.
        page_descriptor: Where the worker reports its stages, see ``fkat_data.observe.stages``.
    """
    enter_worker(worker_index)
    sock = socket.socket(fileno=channel_descriptor)
    os.register_at_fork(after_in_child=lambda: _leave_to_parent(sock))
    page = Segment(0, page_descriptor, PAGE_BYTES, is_written=True)
    os.close(page_descriptor)
    server, clock = _make_server(settings, worker_index, sock, page.view.cast("d"))
    with clock.installed():
        server.run()


def _make_server(
    settings: WorkerSettings, worker_index: int, sock: socket.socket, page: Page
) -> tuple[Server, StageClock]:
    profile = WorkerProfile(settings.profiler, worker_index, settings.loader_name)
    clock = StageClock(page, profile, EventRecorder(os.getpid(), MAIN_THREAD) if settings.is_traced else None)
    channel = Channel(sock, functools.partial(clock.within, "blocked"))
    producer = Producer(settings.factory, settings.seed, settings.dp_rank, clock.enter_stage)
    finish, is_digested = profile.finish, settings.is_digested
    progress = CallerProgress(page)
    server = Server(channel, producer, settings.memory, finish, clock=clock, progress=progress, is_digested=is_digested)
    return server, clock


def _settings(settings_file: mmap.mmap, before: Callable[[], object]) -> WorkerSettings:
    try:
        return load_with_buffers(settings_file, before)
    except Exception as error:  # noqa: BLE001 - the trainer gets it with the first shard
        fail = functools.partial(_fail, error)
        memory = WorkerMemory(1, 1, 1)
        return WorkerSettings(None, Registrations(), fail, 0, 0, memory, None, torch.get_default_dtype(), False, False)


def _fail(error: Exception, shard: Shard) -> Any:
    """Replace a factory that cannot be rebuilt here: each shard fails with the reason."""
    del shard
    raise error


def _leave_to_parent(sock: socket.socket) -> None:
    """In a forked child: leave the pipe to the parent, and give SIGTERM its usual meaning."""
    sock.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def keep_freed_memory() -> None:
    """Let memory that a dataset frees and allocates again for every microbatch stay mapped in between."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)

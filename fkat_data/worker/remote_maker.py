"""A worker elsewhere, from its own side: it opens tasks, and makes their microbatches when it is asked for them."""

import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from fkat_data.plan.position import ShardFingerprint, Task
from fkat_data.runtime.launch import adopt_group
from fkat_data.transport.codec import encode, lies_at, write
from fkat_data.transport.digest import digest_of
from fkat_data.worker.collate import SegmentCollate
from fkat_data.worker.messages import content_of, pack_failure, unpack_task
from fkat_data.worker.produce import OpenShard, Produced, Producer, note_microbatch
from fkat_data.worker.settings import WorkerSettings, enter_worker

_COPIED_BYTES = 1 << 14
_NOTHING: Any = np.empty(0, np.uint8)


class Made(NamedTuple):
    """A microbatch as it travels.

    Attributes:
        microbatch_index: Its number.
        is_last: Whether the shard ends with it; None if that is not known.
        envelope: What ``fkat_data.transport.codec.encode`` gave.
        layout: The parts' sizes.
        content: The parts, one after the other, uint8, shape (bytes,).
        digest: Of its content; 0 if the loader needs none.
    """

    microbatch_index: int
    is_last: bool | None
    envelope: bytes
    layout: bytes
    content: Any
    digest: int


class Over(NamedTuple):
    """There is no microbatch of this number."""

    microbatch_index: int


class Failed(NamedTuple):
    """What was raised for a microbatch, as ``pack_failure`` writes it."""

    microbatch_index: int
    error: bytes


Reply: TypeAlias = Made | Over | Failed


_IDLE: tuple[int, int, list[Reply]] = (-1, 0, [])


class Replies(NamedTuple):
    """What was made of one call.

    Attributes:
        replies: Of microbatches that follow on one another, up to an error.
        spent_s: Seconds that the worker took for them.
    """

    replies: list[Reply]
    spent_s: float


class Begun(NamedTuple):
    """A task was opened.

    Attributes:
        build_s: Seconds until it was open.
        is_for_several: Whether other workers may make microbatches of it, too.
        num_microbatches: The number behind its last microbatch; None: it is not known.
        fingerprint: What is known of its batches and files.
        leftover_rows: What it leaves for the task behind it; None: nothing, or it is not known yet.
        first: Its first microbatch, alone.
    """

    build_s: float
    is_for_several: bool
    num_microbatches: int | None
    fingerprint: ShardFingerprint
    leftover_rows: bytes | None
    first: Replies


class RemoteMaker:
    """Makes microbatches of tasks, for one loader.

    ``made``, ``give_leftover_rows`` and ``stack`` may come while another call runs.

    Args:
        paths: Where the trainer imports from.
        payload: The pickled ``WorkerSettings``.
        worker_index: The worker's number among its loader's.
    """

    def __init__(self, paths: list[str], payload: bytes, worker_index: int) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        enter_worker(worker_index)
        self._settings: WorkerSettings = pickle.loads(payload)
        torch.set_default_dtype(self._settings.default_dtype)
        adopt_group(self._settings.group)
        # The task that is open, as it came, and the number of the last microbatch that was asked for.
        self._packed = b""
        self._newest = -1
        # Of the call that runs: its task_id, its first microbatch, and what it has made so far.
        self._under_way = _IDLE
        self._shard: OpenShard | None = None
        self._generator: Generator[Produced] | None = None
        self._fingerprint = ShardFingerprint()
        self._leftover_rows: bytes | None = None
        self._leftover_queues: dict[int, SimpleQueue[bytes]] = {}
        # What the newest microbatch was collated into: it travels without another copy.
        self._collated: Any = _NOTHING
        self._producer = Producer(
            self._settings.factory,
            self._settings.seed,
            self._settings.dp_rank,
            enter_stage=_enter_nothing,
            collate=SegmentCollate(self._room_to_collate, _COPIED_BYTES),
            report=self._report,
            take_leftover_rows=self._take_leftover_rows,
            give_leftover_rows=self._give_leftover_rows,
        )

    def about(self) -> tuple[int, str]:
        """Return the process and the machine that this is."""
        return os.getpid(), socket.gethostname()

    def begin(self, packed: bytes) -> Begun:
        """Open a task, and make its first microbatch."""
        task, _ = unpack_task(packed)
        began_s = time.perf_counter()
        reply = self._opened(task, packed)
        build_s = time.perf_counter() - began_s
        if reply is None:
            is_for_several = self._shard is not None and self._shard.is_for_threads
            count = self._shard.indexed.count if is_for_several and self._shard is not None else None
            first = (self.make if is_for_several else self.follow)(packed, task.first_microbatch)
        else:
            is_for_several, count, first = False, None, Replies([reply], 0.0)
        leftover_rows, self._leftover_rows = self._leftover_rows, None
        return Begun(build_s, is_for_several, count, self._fingerprint, leftover_rows, first)

    def make(self, packed: bytes, first: int, count: int = 1) -> Replies:
        """Return microbatches by their numbers, up to an error; fast where these grow from call to call within a task."""
        task, _ = unpack_task(packed)
        # Of two calls that were made at once, the second may come first.
        is_open = packed == self._packed and first > self._newest
        error = None if is_open else self._opened(task, packed)
        return Replies([error], 0.0) if error else self._replies(task, first, count, self._made)

    def follow(self, packed: bytes, first: int, count: int = 1) -> Replies:
        """Return the next microbatches of those that follow on one another, up to the end or an error."""
        task, _ = unpack_task(packed)
        # One who has asked before may be gone, and what was made for it is made again for its successor.
        is_open = packed == self._packed and first == self._newest + 1
        error = None if is_open else self._opened(task._replace(first_microbatch=first, digest=None), packed)
        return Replies([error], 0.0) if error else self._replies(task, first, count, self._next)

    def made(self, task_id: int, first: int, num_known: int) -> list[Reply]:
        """Return what the call that runs has made so far, without the first ``num_known``; nothing of another call."""
        running, index, replies = self._under_way
        return replies[num_known:] if (running, index) == (task_id, first) else []

    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Give a task what the one before has left."""
        self._queue(task_id).put(leftover_rows)

    def stack(self) -> str:
        """Return the Python stacks of this process, but for the thread that asks."""
        own = threading.get_ident()
        # The only way to see another thread.
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        stacks = ["".join(traceback.format_stack(frame)) for ident, frame in frames.items() if ident != own]
        return f"Process {os.getpid()} on {socket.gethostname()}:\n" + "\n".join(stacks)

    def _opened(self, task: Task, packed: bytes) -> Failed | None:
        """Open a task; return the error if that fails."""
        torch.set_num_threads(1)
        self._packed, self._newest, self._fingerprint = packed, task.first_microbatch - 1, ShardFingerprint()
        self._close()
        try:
            self._shard = OpenShard(task, self._producer, is_shared=True)
            if not self._shard.is_for_threads:
                self._generator = self._shard.produce()
        except Exception as error:  # noqa: BLE001 - raised in the trainer
            note_microbatch(error, task, task.first_microbatch, is_open=False)
            return Failed(task.first_microbatch, pack_failure(error))
        return None

    def _close(self) -> None:
        generator, self._generator, self._shard = self._generator, None, None
        if generator is not None:
            generator.close()

    def _made(self, index: int) -> Produced | None:
        assert self._shard is not None  # noqa: S101 - a task is opened before its microbatches are asked for
        return self._shard.make(index)

    def _next(self, index: int) -> Produced | None:
        assert self._generator is not None  # noqa: S101 - as above
        return next(self._generator, None)

    def _replies(self, task: Task, first: int, count: int, make: Callable[[int], Produced | None]) -> Replies:
        began_s = time.perf_counter()
        replies: list[Reply] = []
        self._under_way = task.task_id, first, replies
        for index in range(first, first + count):
            self._newest = index
            replies.append(self._reply(task, index, make))
            if not isinstance(replies[-1], Made) or replies[-1].is_last:
                break
        self._under_way = _IDLE  # what was made is kept no longer than it travels
        return Replies(replies, time.perf_counter() - began_s)

    def _reply(self, task: Task, index: int, make: Callable[[int], Produced | None]) -> Reply:
        try:
            produced = make(index)
            if produced is None:
                return Over(index)
            encoded = encode(produced.microbatch)
            content, self._collated = self._collated[: encoded.size_bytes], _NOTHING
            if len(content) < encoded.size_bytes or not lies_at(encoded.parts, content.ctypes.data):
                content = np.empty(encoded.size_bytes, np.uint8)
                write(encoded.parts, memoryview(cast("Any", content)), content.ctypes.data, 0)
            digest = digest_of(content_of(produced.microbatch)) if self._settings.is_digested else 0
            return Made(produced.microbatch_index, produced.is_last, encoded.envelope, encoded.layout, content, digest)
        except Exception as error:  # noqa: BLE001 - raised in the trainer
            note = note_microbatch(error, task, index, is_open=True)
            return Failed(index, pack_failure(error, note))

    def _room_to_collate(self, size_bytes: int) -> memoryview:
        self._collated = np.empty(size_bytes, np.uint8)
        return memoryview(self._collated)

    def _report(self, task_id: int, fingerprint: ShardFingerprint) -> None:
        self._fingerprint = fingerprint

    def _queue(self, task_id: int) -> "SimpleQueue[bytes]":
        return self._leftover_queues.setdefault(task_id, SimpleQueue())

    def _take_leftover_rows(self, task: Task) -> bytes:
        leftover_rows = self._queue(task.task_id).get()
        self._leftover_queues.pop(task.task_id, None)
        return leftover_rows

    def _give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        self._leftover_rows = leftover_rows


def _enter_nothing(stage: str, index: int = -1, label: str = "") -> None:
    """Measure nothing: the trainer's thread that asks measures how long it waits."""

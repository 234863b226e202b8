"""A worker in a process of its own, as the trainer holds it.

The process is started anew (no fork: threads, locks and CUDA stay behind), without importing the trainer's
``__main__`` (so a script needs no guard, and a notebook has none), in a process group of its own (so that Ctrl-C at
the terminal is the trainer's alone).
"""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import weakref
from typing import Any, cast

from fkat_data.observe.profile import TrainerProfile
from fkat_data.plan.task import Task
from fkat_data.transport.channel import Channel, ChannelClosed, Frame
from fkat_data.transport.codec import copied_size, decode
from fkat_data.transport.segment import SegmentLeases
from fkat_data.worker.failure import unpack_failure
from fkat_data.worker.messages import (
    ALLOWANCE,
    CREDIT,
    END,
    ITEM,
    NO_SEGMENT,
    SEGMENT,
    STARVED,
    TICKET,
    End,
    Failure,
    Item,
    Kind,
    Message,
    Starved,
    WorkerGone,
    pack_task,
)

__all__ = ["ProcessWorker"]

# The settings are a pickled list of the paths to import from, then the pickled settings proper.
_BOOTSTRAP = """\
import sys, mmap, pickle
settings, worker_index, channel, lifeline = map(int, sys.argv[1:])
settings = mmap.mmap(settings, 0, access=mmap.ACCESS_READ)
sys.path[:], sys.argv = pickle.load(settings)
from fkat_data.worker.main import main
main(settings, worker_index, channel, lifeline)
"""

_LARGE_CREDIT_BYTES = 1 << 20

_workers: "weakref.WeakSet[ProcessWorker]" = weakref.WeakSet()


class ProcessWorker:
    """A spawned worker and the trainer's end of its pipe.

    Args:
        settings: A descriptor of the shipped settings (see ``fkat_data.worker.ship``); stays the caller's.
        worker_index: Its number among the loader's workers.
        limit_bytes: Shared memory that the worker may take.
        profile: Told when a microbatch is decoded.
        is_zero_copy: Whether microbatches are views of shared memory, or copies.
    """

    def __init__(
        self, settings: int, worker_index: int, limit_bytes: int, profile: TrainerProfile, *, is_zero_copy: bool
    ) -> None:
        self._profile = profile
        self._is_zero_copy = is_zero_copy
        self._owner_pid = os.getpid()
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = _start(settings, worker_index, theirs.fileno(), lifeline)
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self._pidfd = _pidfd(self._process.pid)
        self._channel = Channel(ours)
        if self._pidfd is not None:
            # The process is watched as well as the pipe, which a child of the worker may hold open.
            self._channel.watch(self._pidfd)
        self._leases = SegmentLeases(_Credits(self._channel, limit_bytes))
        self._is_closed = False
        _workers.add(self)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker can be given tasks."""
        return not self._is_closed and not self._is_dead()

    @property
    def held_bytes(self) -> int:
        """Bytes of shared memory whose microbatches are alive."""
        return self._leases.leased_bytes

    def assign(self, task: Task, allowance: int) -> None:
        """Take a task, to be produced after those taken before."""
        self._channel.post(Kind.ASSIGN, pack_task(task, allowance))

    def allow(self, ticket: int, allowance: int) -> None:
        """Let the task be produced up to ``allowance`` microbatches."""
        self._channel.post(Kind.ALLOW, ALLOWANCE.pack(ticket, allowance))

    def cancel(self, ticket: int) -> None:
        """Drop every task with a ticket below this one."""
        self._channel.post(Kind.CANCEL, TICKET.pack(ticket))

    def receive(self, *, block: bool) -> Message | None:
        """Return the next message, or None if none has arrived and ``block`` is false.

        Raises:
            WorkerGone: The process is gone, and everything that it sent was received.
        """
        while True:
            try:
                frame = self._channel.receive()
            except ChannelClosed:
                raise self._gone() from None
            if frame is not None:
                message = self._understand(frame)
                if message is not None:
                    return message
            elif not block:
                return None
            else:
                self._wait()

    def hang_up(self) -> None:
        """Close the pipe: the worker ends when it next looks at it."""
        self._channel.close()

    def close(self, timeout_s: float) -> None:
        """End the worker: by the closed pipe, or by a signal when ``timeout_s`` has passed. Any number of calls."""
        if self._is_closed:
            return
        self._is_closed = True
        if os.getpid() != self._owner_pid:  # a fork of the trainer has the object, not the worker
            return
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self._kill_group()
        self._process.wait()
        os.close(self._lifeline)
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._leases.clear()

    def abandon(self) -> None:
        """In a forked child: let go of what would keep the worker alive, and of nothing else."""
        self._is_closed = True
        self._channel.abandon()
        os.close(self._lifeline)

    def _wait(self) -> None:
        if not self._channel.wait() and self._is_dead():
            raise self._gone()

    def _is_dead(self) -> bool:
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _gone(self) -> WorkerGone:
        self._kill_group()
        try:
            exit_code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            exit_code = None
        return WorkerGone(self._process.pid, exit_code)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _understand(self, frame: Frame) -> Message | None:
        body = frame.body
        match frame.kind:
            case Kind.ITEM:
                return self._item(body)
            case Kind.SEGMENT:
                index, size_bytes = SEGMENT.unpack(body)
                self._leases.add(index, self._channel.take_descriptor(), size_bytes)
            case Kind.RETIRE:
                self._leases.remove(CREDIT.unpack(body)[0])
            case Kind.END:
                return End(*END.unpack(body))
            case Kind.FAILURE:
                return Failure(TICKET.unpack_from(body)[0], unpack_failure(body[TICKET.size :]))
            case Kind.STARVED:
                return Starved(*STARVED.unpack(body))
            case _:
                raise ValueError(f"the worker sent a message of unknown kind {frame.kind}")
        return None

    def _item(self, body: bytes) -> Message:
        ticket, index, is_last, segment, in_segment, num_parts, envelope_bytes = ITEM.unpack_from(body)
        start = ITEM.size + 8 * num_parts
        sizes: tuple[int, ...] = struct.unpack_from(f"<{num_parts}q", body, ITEM.size)
        size_bytes = copied_size([size if size >= 0 else -1 - size for size in sizes])
        base: Any
        offset = 0
        if segment == NO_SEGMENT:
            envelope = body[start : start + envelope_bytes]
            base = bytearray(memoryview(body)[start + envelope_bytes :])
        else:
            base = self._leases.lease(segment)
            envelope = body[start:]
            if in_segment:
                envelope = memoryview(base)[:envelope_bytes]
                offset = copied_size([envelope_bytes])
            if not self._is_zero_copy:
                base, offset = bytearray(memoryview(base)[offset : offset + size_bytes]), 0
        try:
            if self._profile.is_active:
                with self._profile.range("decode"):
                    microbatch = decode(envelope, sizes, base, offset)
            else:
                microbatch = decode(envelope, sizes, base, offset)
        except Exception as error:  # noqa: BLE001 - what rebuilding a user's class raises belongs in its place
            error.add_note(f"fkat_data: while rebuilding microbatch {index} in the trainer's process")
            return Failure(ticket, error)
        return Item(ticket, index, None if is_last < 0 else bool(is_last), microbatch, size_bytes)


class _Credits:
    """Gives segments back to their worker; called by finalisers, so it holds nothing but the channel.

    A credit wakes the worker: small ones wait for each other, or for the trainer to wait.
    """

    def __init__(self, channel: Channel, limit_bytes: int) -> None:
        self._channel = channel
        self._deferred_bytes = 0
        self._most_deferred_bytes = min(_LARGE_CREDIT_BYTES, limit_bytes // 8)

    def __call__(self, index: int, size_bytes: int) -> None:
        self._channel.defer(Kind.CREDIT, CREDIT.pack(index))
        self._deferred_bytes += size_bytes
        if self._deferred_bytes >= self._most_deferred_bytes:
            self._deferred_bytes = 0
            self._channel.flush()


def _start(settings: int, worker_index: int, channel: int, lifeline: int) -> "subprocess.Popen[bytes]":
    # Flags such as -X and -W hold for workers too; multiprocessing has had this function since Python 3.2.
    flags = cast("list[str]", subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]  # noqa: SLF001
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, *flags, "-c", _BOOTSTRAP, *map(str, (settings, worker_index, channel, lifeline))],
        stdin=subprocess.DEVNULL,
        pass_fds=(settings, channel, lifeline),
        process_group=0,
    )


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # another kernel: the end of the pipe alone tells
        return None


def _abandon_workers() -> None:
    for worker in list(_workers):
        worker.abandon()
    _workers.clear()


os.register_at_fork(after_in_child=_abandon_workers)

"""Workers elsewhere, from the trainer's side: threads ask each for microbatches, and decode them here.

So the trainer's own thread does what it does with threads: it hands out numbers, and takes messages in order.
"""

import ctypes
import functools
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch

from fkat_data.interruption import genuine
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock
from fkat_data.plan.place import ShardTerms, Task
from fkat_data.tracebacks import fold
from fkat_data.transport.codec import decode
from fkat_data.wording import add_note
from fkat_data.worker.messages import End, Failure, Item, Message, WorkerGone, pack_task, unpack_failure
from fkat_data.worker.produce import Producer, name_place
from fkat_data.worker.remote_maker import Begun, Failed, Made, Over, Reply
from fkat_data.worker.settings import THREADS_A_PLACE
from fkat_data.worker.threads import Threads, ThreadWorker, Work

# Microbatches that are asked for ahead, for each worker, of a shard whose end is not known: behind it are none.
_MOST_AHEAD = 8
# A call costs some 0.7 ms: microbatches that are small, and quickly made, come together.
_MOST_TOGETHER = 32
_TOGETHER_S = 0.01
_TOGETHER_BYTES = 4 << 20


class PlaceLost(Exception):  # noqa: N818 - becomes a WorkerDiedError where shard and microbatch are known
    """A worker elsewhere is gone, or its machine is, or what it has made."""


class Place(Protocol):
    """One worker elsewhere. Calls wait for it, and come one after the other."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Return what a method of its ``RemoteMaker`` returns.

        Raises:
            PlaceLost: It is gone.
        """
        ...

    def send(self, method: str, *arguments: Any) -> None:
        """Call a method beside the one that is waited for, without waiting."""
        ...

    def stack(self) -> str:
        """Return what the worker does, by its Python stacks, or why they are not known."""
        ...

    def end(self) -> None:
        """End the worker; a call that waits raises ``PlaceLost``. Any number of calls."""
        ...


class _Lost(NamedTuple):
    """A worker is gone."""

    pid: int
    host: str
    words: str


class _RemoteThreads(Threads):
    """Threads that ask workers elsewhere.

    Args:
        places: The workers.
        report: Called with a ticket and the terms of its shard.
        give_carry: Called with a ticket, and what the task leaves for the one behind it.
    """

    def __init__(
        self,
        places: Sequence[Place],
        report: Callable[[int, ShardTerms], None],
        give_carry: Callable[[int, bytes], None],
    ) -> None:
        super().__init__(THREADS_A_PLACE * len(places), is_digested=False)
        self._places = places
        self._report = report
        self._give_carry = give_carry
        self._about = [(0, "")] * len(places)
        self.num_together: int = 1
        """Microbatches to ask for in one call."""

    def begin(self, work: Work) -> None:
        """Open a task, and go on with it where one worker makes all of its microbatches."""
        self.here.clock.mark("build", work.task.shard_index)
        begun: Begun | None = self._asked(work, "begin")
        if begun is None:
            return
        ticket = work.task.ticket
        if begun.terms != ShardTerms():
            self._report(ticket, begun.terms)
        if begun.carry is not None:
            self._give_carry(ticket, begun.carry)
        index = work.task.first_microbatch
        self.news.put((ticket, index, cast("Any", begun._replace(reply=cast("Any", None)))))
        message = self._message(work.task, begun.reply)
        self.news.put((ticket, index, message))
        while not begun.is_for_several and isinstance(message, Item) and not message.is_last:
            index += 1
            while index >= work.limit:
                if not work.allowed.get():
                    return
            last = self._several(work, "follow", index, min(self.num_together, work.limit - index))
            if last is None:
                return
            index, message = last

    def ask(self, work: Work, first: int, count: int) -> None:
        """Ask for microbatches by their numbers."""
        if not work.is_cancelled:
            self._several(work, "make", first, count)

    def _several(self, work: Work, method: str, first: int, count: int) -> tuple[int, Message] | None:
        """Ask for microbatches in one call; return the last one, and its place, or None if the worker is gone."""
        self.here.clock.mark("produce", first)
        began_s = time.perf_counter()
        replies: list[Reply] | None = self._asked(work, method, first, count)
        if replies is None:
            return None
        each_s = (time.perf_counter() - began_s) / len(replies)
        each_bytes = sum(len(reply.content) for reply in replies if isinstance(reply, Made)) // len(replies)
        most = min(_TOGETHER_S / each_s, _TOGETHER_BYTES / max(1, each_bytes), _MOST_TOGETHER)
        self.num_together = max(1, int(most))
        index, message = first, None
        for index, reply in enumerate(replies, first):
            message = self._message(work.task, reply)
            self.news.put((work.task.ticket, index, message))
        return None if message is None else (index, message)

    def _asked(self, work: Work, method: str, *numbers: int) -> Any:
        number = self.here.number // THREADS_A_PLACE
        try:
            if not self._about[number][0]:
                self._about[number] = self._places[number].call("about")
            work.packed = work.packed or pack_task(work.task, 0)
            return None if work.is_cancelled else self._places[number].call(method, work.packed, *numbers)
        except PlaceLost as error:
            if not self.is_closed:
                self.news.put((work.task.ticket, -1, cast("Any", _Lost(*self._about[number], str(error)))))
            return None
        except BaseException as error:  # noqa: BLE001 - such as of a task that cannot be sent; raised in its turn
            at = numbers[0] if numbers else work.task.first_microbatch
            self.news.put((work.task.ticket, at, self.failed(work.task, at, error)))
            return None
        finally:
            self.here.clock.mark("")

    def _message(self, task: Task, reply: Reply) -> Message:
        if isinstance(reply, Over):
            return End(task.ticket, reply.microbatch_index)
        try:
            if isinstance(reply, Failed):
                error = unpack_failure(reply.error)
                pid, host = self._about[self.here.number // THREADS_A_PLACE]
                add_note(error, f"fkat_data: raised in process {pid} on {host}")
                fold(error)
                return Failure(task.ticket, error, reply.microbatch_index)
            # What comes from a store of objects cannot be written to, and microbatches can.
            memory: Any = torch.empty(len(reply.content), dtype=torch.uint8, device="cpu").numpy()
            ctypes.memmove(memory.ctypes.data, reply.content.ctypes.data, len(reply.content))
            sizes = struct.unpack(f"<{len(reply.layout) // 8}q", reply.layout)
            microbatch = decode(reply.envelope, sizes, memory, 0)
        except genuine(Exception) as error:
            name_place(error, task, reply.microbatch_index, is_open=True)
            return Failure(task.ticket, error, reply.microbatch_index)
        self.here.clock.count()
        return Item(task.ticket, reply.microbatch_index, reply.is_last, microbatch, len(reply.content), reply.digest)


class RemoteWorker(ThreadWorker):
    """Makes a group's microbatches in workers elsewhere; hands them on in order.

    Args:
        places: The workers.
        sink: Gets the time that the caller waits.
        clocks: Measure the threads that ask them, ``THREADS_A_PLACE`` each, and the caller's thread as the last.
        limit_bytes: Microbatches that may lie ready, by their bytes.
        names: What the threads are called.
    """

    def __init__(
        self, places: Sequence[Place], sink: EventSink, clocks: list[StageClock], limit_bytes: int, names: list[str]
    ) -> None:
        self._places = places
        self._lost: _Lost | None = None
        # Of tasks that were opened: whether several workers make them, and where they end.
        self._begun: dict[int, Begun] = {}
        super().__init__(Producer(_make_nothing, 0, 0, mark=print), sink, clocks, limit_bytes, names, 0)

    @property
    def is_alive(self) -> bool:
        """Whether the worker can take tasks."""
        return self._lost is None and super().is_alive

    @property
    def pid(self) -> int:
        """The process that was lost; else this one."""
        return os.getpid() if self._lost is None else self._lost.pid

    def give_carry(self, ticket: int, carry: bytes) -> None:
        """Give a task that was assigned without it what the one before has left. There is one worker then."""
        self._places[0].send("give_carry", ticket, carry)

    def stack(self) -> str:
        """Return the Python stacks of the workers."""
        return "\n".join(place.stack() for place in self._places)

    def hang_up(self) -> None:
        """End the workers; do not wait for them."""
        super().hang_up()
        for place in self._places:
            place.end()

    def close(self, timeout_s: float) -> None:
        """End the workers, and the threads that ask them within about ``timeout_s``."""
        self.hang_up()
        self._shared.stop(0, timeout_s)

    def _threads(self, num_threads: int, *, is_digested: bool) -> Threads:
        del num_threads, is_digested
        return _RemoteThreads(
            self._places, functools.partial(self._terms.__setitem__), functools.partial(self._carries.__setitem__)
        )

    def _take(self) -> Message | None:
        message = super()._take()
        if message is None and self._lost is not None:
            raise WorkerGone(self._lost.pid, None, self._lost.words, self._lost.host)
        return message

    def _sort(self, ticket: int, index: int, message: Any) -> None:
        if isinstance(message, _Lost):
            self._lost = message
        elif isinstance(message, Begun):
            self._begun[ticket] = message
        else:
            super()._sort(ticket, index, message)

    def _end(self, work: Work) -> None:
        super()._end(work)
        self._begun.pop(work.task.ticket, None)

    def _look(self) -> None:
        return None  # the workers have generators of their own

    def _open(self, work: Work) -> None:
        work.is_open = True
        work.next_job = work.task.first_microbatch + 1
        self._put(work, cast("_RemoteThreads", self._shared).begin, work)

    def _hand_out_of(self, work: Work) -> None:
        begun, limit = self._begun.get(work.task.ticket), self._limit(work)
        if begun is None or not begun.is_for_several:
            if limit > work.limit:
                work.limit = limit
                work.allowed.put(True)
            return
        if begun.num_microbatches is None:
            num_arrived = work.next_out + len(work.early)
            limit = min(limit, num_arrived + _MOST_AHEAD * len(self._places))
        else:
            limit = min(limit, begun.num_microbatches)
            work.is_exhausted = limit == begun.num_microbatches
        shared = cast("_RemoteThreads", self._shared)
        # Each thread has some of what may lie ready.
        together = max(1, min(shared.num_together, (limit - work.next_out) // self._num_threads))
        while work.next_job < limit:
            count = min(together, limit - work.next_job)
            is_waited_for = work.next_job == work.next_out + len(work.early)
            if count < together and not work.is_exhausted and not is_waited_for:
                return  # until some can be asked for together
            self._put(work, shared.ask, work, work.next_job, count)
            work.next_job += count


def _make_nothing(shard: object) -> list[Any]:
    """Stand in for a factory: shards are opened elsewhere."""
    del shard
    return []

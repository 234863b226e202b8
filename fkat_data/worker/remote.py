"""Workers elsewhere, from the trainer's side: threads ask each for microbatches, and decode them here.

So the trainer's own thread does what it does with threads: it hands out numbers, and takes messages in order.
"""

import ctypes
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch

from fkat_data.errors.tracebacks import hide_own_frames
from fkat_data.errors.wording import add_note
from fkat_data.observe.durations import added_durations
from fkat_data.observe.sink import EventSink
from fkat_data.observe.stages import StageClock, StageTimes, added_times
from fkat_data.plan.position import ShardFingerprint, Task
from fkat_data.runtime.interruption import genuine
from fkat_data.transport.codec import decode
from fkat_data.worker.messages import End, Failure, Item, Message, WorkerGone, pack_task, unpack_failure
from fkat_data.worker.produce import Producer, note_microbatch
from fkat_data.worker.remote_maker import Begun, Failed, Made, Over, Replies, Reply
from fkat_data.worker.settings import CALLS_PER_ACTOR
from fkat_data.worker.threads import Threads, ThreadTask, ThreadWorker
from fkat_data.worker.worker import WorkerReport

# Microbatches that are asked for ahead, for each worker, of a shard whose end is not known: behind it are none.
_MOST_AHEAD = 8
# What a call costs: microbatches that are small, and quickly made, come together, and of fewer workers.
_CALL_S = 0.0005
_FEWEST_CALLS = 2
_MOST_TOGETHER = 32
_TOGETHER_S = 0.01
_TOGETHER_BYTES = 4 << 20


class RemoteWorkerLost(Exception):  # noqa: N818 - becomes a WorkerDiedError where shard and microbatch are known
    """A worker elsewhere is gone, or its machine is, or what it has made."""


class RemoteHandle(Protocol):
    """One worker elsewhere. Calls wait for it, and come one after the other."""

    def about(self) -> tuple[int, str]:
        """Return its process and machine, once it has started.

        Raises:
            RemoteWorkerLost: It is gone, or does not start.
        """
        ...

    def call(
        self, method: str, *arguments: Any, sent: Callable[[], None], meanwhile: Callable[[], None] | None = None
    ) -> Any:
        """Return what a method of its ``RemoteMaker`` returns.

        Args:
            method: The method.
            *arguments: Its arguments.
            sent: Called when the call is under way.
            meanwhile: Called now and then from there on.

        Raises:
            RemoteWorkerLost: It is gone.
        """
        ...

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a method returns beside the one that is waited for; None if there is no answer soon."""
        ...

    def send(self, method: str, *arguments: Any) -> None:
        """Call a method beside the one that is waited for, without waiting."""
        ...

    def stack(self) -> str:
        """Return what the worker does, by its Python stacks, or why they are not known."""
        ...

    def end(self) -> None:
        """End the worker; a call that waits raises ``RemoteWorkerLost``. Any number of calls."""
        ...


class _Lost(NamedTuple):
    """A worker is gone."""

    pid: int
    host: str
    words: str


class _RemoteThreads(Threads):
    """Threads that ask workers elsewhere.

    Args:
        handles: Of the workers.
        report: Called with an id and the fingerprint of its shard.
        give_leftover_rows: Called with an id, and what the task leaves for the one behind it.
    """

    def __init__(
        self,
        handles: Sequence[RemoteHandle],
        report: Callable[[int, ShardFingerprint], None],
        give_leftover_rows: Callable[[int, bytes], None],
    ) -> None:
        super().__init__(CALLS_PER_ACTOR * len(handles), is_digested=False)
        self._handles = handles
        self._report = report
        self._give_leftover_rows = give_leftover_rows
        self.about: list[tuple[int, str]] = [(0, "")] * len(handles)
        """Process and machine of each worker, once it has answered."""
        self.started_s: list[float] = [math.inf] * len(handles)
        """When it has, by ``time.monotonic()``."""
        # Held from a job to its call: a worker answers its two threads in the order in which they were given jobs.
        self._turns = [threading.Lock() for _ in handles]
        self._has_turn = [False] * (CALLS_PER_ACTOR * len(handles))
        self.asked: list[tuple[int, int] | None] = [None] * (CALLS_PER_ACTOR * len(handles))
        """Task and index of what each thread waits for."""
        self.lost: set[int] = set()
        """Indices of the workers that are gone."""
        self.num_together: int = 1
        """Microbatches to ask for in one call."""
        # What a microbatch takes: on average, and where its worker does not wait.
        self._mean_s, self._quick_s = 0.0, math.inf
        self.num_calls: int = len(self.asked)
        """Calls that keep the caller busy."""

    def next_job(self) -> Callable[[], object] | None:
        """Wait for this thread's turn, and for a job."""
        thread = self.here.number
        self._end_turn()  # of a job that called nothing
        self._turns[thread // CALLS_PER_ACTOR].acquire()
        self._has_turn[thread] = True
        return super().next_job()

    def run(self, number: int, clock: StageClock) -> None:
        """Do jobs, in a thread, until it is ended."""
        try:
            super().run(number, clock)
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        thread = self.here.number
        if self._has_turn[thread]:
            self._has_turn[thread] = False
            self._turns[thread // CALLS_PER_ACTOR].release()

    def begin(self, work: ThreadTask) -> None:
        """Open a task, and go on with it where one worker makes all of its microbatches."""
        task_id, index = work.task.task_id, work.task.first_microbatch
        began_s = time.perf_counter()
        begun: Begun | None = self._asked(work, "begin")
        if begun is None:
            return
        self.here.clock.shift("build", begun.build_s)
        if begun.fingerprint != ShardFingerprint():
            self._report(task_id, begun.fingerprint)
        if begun.leftover_rows is not None:
            self._give_leftover_rows(task_id, begun.leftover_rows)
        self.results.put((task_id, index, cast("Any", begun._replace(first=cast("Any", None)))))
        message = self._sent(work, index, begun.first, began_s + begun.build_s)
        while not begun.is_for_several and isinstance(message, Item) and not message.is_last:
            index += 1
            while index >= work.generator_limit:
                self.here.clock.enter_stage("blocked")
                if not work.allowed.get():
                    return
            last = self._several(work, "follow", index, min(self.num_together, work.generator_limit - index))
            if last is None:
                return
            index, message = last

    def ask(self, work: ThreadTask, first: int, count: int) -> None:
        """Ask for microbatches by their numbers."""
        if not work.is_cancelled:
            self._several(work, "make", first, count)

    def _several(self, work: ThreadTask, method: str, first: int, count: int) -> tuple[int, Message] | None:
        """Ask for microbatches in one call; return the last one, and its index, or None if the worker is gone."""
        began_s = time.perf_counter()
        handle, task_id = self._handles[self.here.number // CALLS_PER_ACTOR], work.task.task_id
        sent: list[Message] = []

        def send_ready() -> None:
            # What is quick does not wait for what is slow behind it, or hangs.
            for reply in handle.ask("made", task_id, first, len(sent)) or ():
                message = self._message(work.task, reply)
                self.results.put((task_id, first + len(sent), message))
                sent.append(message)

        made: Replies | None = self._asked(work, method, first, count, meanwhile=send_ready if count > 1 else None)
        if made is None:
            return None
        sizes = [len(reply.content) for reply in made.replies if isinstance(reply, Made)]
        if sizes:  # behind the last microbatch, an answer takes no time
            took_s = made.spent_s / len(sizes)
            self._mean_s += (took_s - self._mean_s) / 8
            # Where workers wait for a CPU, all seem slow, and more calls would make them slower.
            self._quick_s = min(took_s, 1.1 * self._quick_s)
            each_s = max(self._quick_s, self._mean_s / 8)
            most = min(_TOGETHER_S / each_s, _TOGETHER_BYTES * len(sizes) / max(1, sum(sizes)), _MOST_TOGETHER)
            self.num_together = max(1, int(most))
            self.num_calls = _FEWEST_CALLS + int(each_s / _CALL_S)
        return first + len(made.replies) - 1, self._sent(work, first, made, began_s, sent)

    def _sent(
        self, work: ThreadTask, first: int, made: Replies, began_s: float, before: Sequence[Message] = ()
    ) -> Message:
        """Send the messages of replies to the caller, but for the first that were sent before; return the last one."""
        clock, now_s = self.here.clock, time.perf_counter()
        # A call may have waited for another one of the same worker, and what it brings has travelled.
        spent_s = min(made.spent_s, now_s - began_s)
        clock.shift("produce", spent_s)
        clock.shift("idle", now_s - began_s - spent_s)
        clock.count(sum(isinstance(reply, Made) for reply in made.replies))
        if clock.recorder is not None:
            clock.recorder.add("produce", now_s - spent_s, now_s, first)
        messages = [self._message(work.task, reply) for reply in made.replies[len(before) :]]
        for index, message in enumerate(messages, first + len(before)):
            self.results.put((work.task.task_id, index, message))
        return (messages or before)[-1]

    def _asked(self, work: ThreadTask, method: str, *numbers: int, meanwhile: Callable[[], None] | None = None) -> Any:
        thread, task = self.here.number, work.task
        worker = thread // CALLS_PER_ACTOR
        index = numbers[0] if numbers else task.first_microbatch
        self.asked[thread] = task.task_id, index
        # What its time was spent on shows with the reply.
        self.here.clock.enter_stage("", index)
        try:
            if not self.about[worker][0]:
                self.about[worker], self.started_s[worker] = self._handles[worker].about(), time.monotonic()
            work.packed = work.packed or pack_task(task, 0)
            if work.is_cancelled:
                return None
            return self._handles[worker].call(method, work.packed, *numbers, sent=self._end_turn, meanwhile=meanwhile)
        except RemoteWorkerLost as error:
            self.lost.add(worker)
            if not self.is_closed:
                self.results.put((task.task_id, -1, cast("Any", _Lost(*self.about[worker], str(error)))))
            return None
        except BaseException as error:  # noqa: BLE001 - such as of a task that cannot be sent; raised in its turn
            self.results.put((task.task_id, index, self.failed(task, index, error)))
            return None
        finally:
            self.asked[thread] = None

    def _message(self, task: Task, reply: Reply) -> Message:
        if isinstance(reply, Over):
            return End(task.task_id, reply.microbatch_index)
        try:
            if isinstance(reply, Failed):
                error = unpack_failure(reply.error)
                pid, host = self.about[self.here.number // CALLS_PER_ACTOR]
                add_note(error, f"fkat_data: raised in process {pid} on {host}")
                hide_own_frames(error)
                return Failure(task.task_id, error, reply.microbatch_index)
            # What comes from a store of objects cannot be written to, and microbatches can.
            memory: Any = torch.empty(len(reply.content), dtype=torch.uint8, device="cpu").numpy()
            ctypes.memmove(memory.ctypes.data, reply.content.ctypes.data, len(reply.content))
            sizes = struct.unpack(f"<{len(reply.layout) // 8}q", reply.layout)
            microbatch = decode(reply.envelope, sizes, memory, 0)
        except genuine(Exception) as error:
            note_microbatch(error, task, reply.microbatch_index, is_open=True)
            return Failure(task.task_id, error, reply.microbatch_index)
        return Item(task.task_id, reply.microbatch_index, reply.is_last, microbatch, len(reply.content), reply.digest)


class RemoteWorker(ThreadWorker):
    """Makes a group's microbatches in workers elsewhere; hands them on in order.

    Args:
        handles: Of the workers.
        sink: Gets the time that the caller waits.
        clocks: Measure the threads that ask them, ``CALLS_PER_ACTOR`` each, and the caller's thread as the last.
        limit_bytes: Microbatches that may lie ready, by their bytes.
        names: What the threads are called.
    """

    def __init__(
        self,
        handles: Sequence[RemoteHandle],
        sink: EventSink,
        clocks: list[StageClock],
        limit_bytes: int,
        names: list[str],
    ) -> None:
        self._handles = handles
        self._lost: _Lost | None = None
        self._idle_s = 0.0
        # Of tasks that were opened: whether several workers make them, and where they end.
        self._begun: dict[int, Begun] = {}
        # Shards are opened elsewhere: nothing calls this factory.
        super().__init__(Producer(list, 0, 0, enter_stage=print), sink, clocks, limit_bytes, names, 0)

    @property
    def is_alive(self) -> bool:
        """Whether the worker can take tasks."""
        return self._lost is None and super().is_alive

    @property
    def pid(self) -> int:
        """The process that was lost; else this one."""
        return os.getpid() if self._lost is None else self._lost.pid

    def report(self) -> WorkerReport:
        """Return what the workers have done together, and when those that the caller waits for had started."""
        several = enumerate(clock.times().making for clock in self._clocks[:-1])
        about = self._asking.about
        made_on = added_durations(
            *({about[number // CALLS_PER_ACTOR][1]: making} for number, making in several if making.num)
        )
        started_s = max(self._asking.started_s[index] for index in self._awaited())
        return super().report()._replace(started_s=started_s, made_on=made_on)

    def _times(self) -> StageTimes:
        """Return how the workers spent their time together, and the microbatch that is furthest behind."""
        several = [clock.times() for clock in self._clocks]
        times = added_times(several)
        # Of the threads that ask one worker, one waits while it works for another.
        total_s = sum(sum(each.seconds) for each in several[:-1]) / CALLS_PER_ACTOR
        *work_s, idle_s = times.seconds[1:]
        # It never falls, though a call counts as work only when it is answered.
        self._idle_s = max(self._idle_s, min(idle_s, total_s - sum(work_s)))
        asked = [each[1] for each in list(self._asking.asked) if each is not None]
        stage, index = ("produce", min(asked)) if asked else (super()._times().stage, -1)
        return times._replace(seconds=(*times.seconds[:-1], self._idle_s), stage=stage, subject=index)

    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Give a task that was assigned without it what the one before has left. There is one worker then."""
        self._handles[0].send("give_leftover_rows", task_id, leftover_rows)

    def stack(self) -> str:
        """Return the Python stacks of the workers."""
        return "\n".join(handle.stack() for handle in self._handles)

    def kill(self) -> None:
        """End the worker that the microbatch is waited for from; the others, too, if that is not known."""
        for index in self._awaited():
            self._asking.lost.add(index)
            self._handles[index].end()
        self._lost = _Lost(os.getpid(), "", "it has stalled")

    def _awaited(self) -> Collection[int]:
        """Return the workers that the next microbatch is waited for from; all, if that is not known."""
        asked = list(self._asking.asked)
        work = self._tasks[0] if self._tasks else None
        first = max(
            (each for each in asked if work is not None and each and each <= (work.task.task_id, work.next_out)),
            default=None,
        )
        found = {number // CALLS_PER_ACTOR for number, each in enumerate(asked) if each is not None and each == first}
        return found or range(len(self._handles))

    def hand_over(self) -> list[RemoteHandle | None]:
        """Return the workers that live, for a successor, in their places; they do not end with this one any more."""
        shared = self._asking
        if shared.is_closed:
            return [None] * len(self._handles)
        kept = [None if number in shared.lost else handle for number, handle in enumerate(self._handles)]
        self._handles = [handle for number, handle in enumerate(self._handles) if number in shared.lost]
        return kept

    def hang_up(self) -> None:
        """End the workers; do not wait for them."""
        super().hang_up()
        for handle in self._handles:
            handle.end()

    def close(self, timeout_s: float) -> None:
        """End the workers, and the threads that ask them within about ``timeout_s``."""
        self.hang_up()
        self._shared.stop(0, timeout_s)

    def _threads(self, num_threads: int, *, is_digested: bool) -> Threads:
        self._asking = _RemoteThreads(self._handles, self._fingerprints.__setitem__, self._leftover_rows.__setitem__)
        return self._asking

    def _take(self) -> Message | None:
        message = super()._take()
        if message is None and self._lost is not None:
            raise WorkerGone(self._lost.pid, None, self._lost.words, self._lost.host)
        return message

    def _sort(self, task_id: int, index: int, message: Any) -> None:
        if isinstance(message, _Lost):
            self._lost = message
        elif isinstance(message, Begun):
            self._begun[task_id] = message
        else:
            super()._sort(task_id, index, message)

    def _end(self, work: ThreadTask) -> None:
        super()._end(work)
        self._begun.pop(work.task.task_id, None)

    def _look(self) -> None:
        return None  # the workers have generators of their own

    def _open(self, work: ThreadTask) -> None:
        work.is_open = True
        work.next_job = work.task.first_microbatch + 1
        self._put(work, self._asking.begin, work)

    def _hand_out_of(self, work: ThreadTask) -> None:
        begun, limit = self._begun.get(work.task.task_id), self._limit(work)
        if begun is None or not begun.is_for_several:
            if limit > work.generator_limit:
                work.generator_limit = limit
                work.allowed.put(True)
            return
        if begun.num_microbatches is None:
            num_arrived = work.next_out + len(work.reorder_buffer)
            limit = min(limit, num_arrived + _MOST_AHEAD * len(self._handles))
        else:
            limit = min(limit, begun.num_microbatches)
            work.is_exhausted = limit == begun.num_microbatches
        shared = self._asking
        # Each thread has some of what may lie ready.
        num_calls = min(shared.num_calls, self._num_threads)
        together = max(1, min(shared.num_together, (limit - work.next_out) // num_calls))
        while work.next_job < limit:
            count = min(together, limit - work.next_job)
            is_waited_for = work.next_job == work.next_out + len(work.reorder_buffer)
            if count < together and not work.is_exhausted and not is_waited_for:
                return  # until some can be asked for together
            self._put(work, shared.ask, work, work.next_job, count)
            work.next_job += count

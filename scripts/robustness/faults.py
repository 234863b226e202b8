"""The faults: each is what a trainer does, in the few lines that a user would write."""

import contextlib
import functools
import itertools
import os
import random
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from robustness.source import BATCH_SIZE, NUM_SAMPLES

if TYPE_CHECKING:
    from robustness.trainer import Trainer

#: The batch after which a fault strikes.
_STRIKE = 5
_NUM_INTERRUPTS = 5
_NUM_DESCRIPTORS = 256
_NUM_ERRORS = 3
_LARGE_VALUES = (8 << 20) // 8


def _undisturbed(run: "Trainer") -> None:
    run.finish(run.loader())


def _kill_a_worker(run: "Trainer") -> None:
    for step, _ in enumerate(run.batches(run.loader())):
        if step == _STRIKE:
            workers = run.source.workers()
            if os.getpid() in workers:
                run.note("unsupported", why="no worker processes")
                return
            run.note("struck")
            os.kill(workers[0], signal.SIGKILL)


def _kill_the_trainer(run: "Trainer") -> None:
    for step, _ in enumerate(run.batches(run.loader())):
        if step == _STRIKE:
            run.note("struck")
            os.kill(os.getpid(), signal.SIGKILL)


def _interrupt(run: "Trainer") -> None:
    """Ctrl-C in a terminal or a notebook reaches the whole process group; the next cell goes on with the iterator."""
    interrupt = _Interrupt()
    delays, iterator = random.Random(0), iter(run.loader())

    def strike() -> None:
        run.note("struck")
        os.killpg(os.getpgrp(), signal.SIGINT)

    for step in itertools.count():
        if step and step % _STRIKE == 0 and step <= _STRIKE * _NUM_INTERRUPTS:
            threading.Timer(delays.uniform(0.001, 0.008), strike).start()
        try:
            interrupt.permit()
            batch = next(iterator)
            interrupt.postpone()
        except StopIteration:
            return
        except KeyboardInterrupt:
            run.note("interrupted")
            continue
        run.record(batch)


class _Interrupt:
    """Python's own handler, which waits while the trainer is outside of ``next``: what is lost is lost there."""

    def __init__(self) -> None:
        self._trainer = os.getpid()
        self._is_permitted = self._is_due = False
        signal.signal(signal.SIGINT, self._handle)

    def permit(self) -> None:
        self._is_permitted = True
        if self._is_due:
            self._raise()

    def postpone(self) -> None:
        self._is_permitted = False

    def _handle(self, *_: object) -> None:
        if self._is_permitted or os.getpid() != self._trainer:
            self._raise()
        self._is_due = True

    def _raise(self) -> None:
        self._is_permitted = self._is_due = False
        raise KeyboardInterrupt


def _flood_descriptors(run: "Trainer") -> None:
    """The program opens files until none is left, asks for batches, closes them and goes on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_NUM_DESCRIPTORS, hard))
    iterator, num_errors = iter(run.loader()), 0
    with contextlib.ExitStack() as flood:
        for step in itertools.count():
            if step == _STRIKE:
                run.note("struck")
                with contextlib.suppress(OSError):
                    while True:
                        flood.enter_context(Path(os.devnull).open())
            if step == _STRIKE + 3:
                flood.close()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                flood.close()
                run.failed(error)
                num_errors += 1
                if num_errors == _NUM_ERRORS:
                    raise
            else:
                run.record(batch)


def _break_off(run: "Trainer") -> None:
    """Two loops end early; the two after them are whole."""
    loader = run.loader()
    for last in (_STRIKE, 1):
        for step, _ in enumerate(run.batches(loader)):
            if step == last:
                run.note("struck")
                break
    for _ in range(2):
        run.finish(loader)


def _save_at_random(run: "Trainer") -> None:
    """Two epochs, in which a state is saved at three random steps."""
    loader, step, num_batches = run.loader(), 0, NUM_SAMPLES // BATCH_SIZE
    # One in the first epoch, two in the second; never at an epoch's end.
    dice = random.Random(0)
    steps = [dice.randrange(1, num_batches - 1), *(num_batches + dice.randrange(1, num_batches - 1) for _ in range(2))]
    for _ in range(2):
        iterator = iter(loader)
        for _ in run.batches(iterator):
            step += 1
            if step in steps:
                run.save(loader, iterator, f"state-{steps.index(step) + 1}")


def _resume(run: "Trainer", name: str) -> None:
    run.finish(run.resumed(run.loader(), name))


class Fault(NamedTuple):
    """One row of the table.

    Attributes:
        title: What the table says.
        lives: What each of the trainer's processes does, in turn.
        in_sample: The fault that a sample has, if any.
        says: A pattern; an error that matches it names the cause.
        num_values: Numbers of 8 bytes in a sample.
        shared_memory_bytes: The size of /dev/shm.
        is_with_setting: Whether contestants use the setting that their documentation has for it.
    """

    title: str
    lives: tuple[Callable[["Trainer"], None], ...] = (_undisturbed,)
    in_sample: str = ""
    says: str = ""
    num_values: int = 1024
    shared_memory_bytes: int = 1 << 30
    is_with_setting: bool = False


_DEATH = r"(?is)(worker|process|subprocess).*(kill|exited|died|dead|signal|terminat)"
_DAMAGE = r"record 17 of part-3 is damaged"
_HANGING = r"(?i)timed? ?out|timeout|stalled|no response|waiting for [\d.]+ s"

FAULTS = {
    "none": Fault("no fault"),
    "worker-killed": Fault("a worker is killed", (_kill_a_worker,), says=_DEATH),
    "worker-killed-setting": Fault("... with the setting for it", (_kill_a_worker,), says=_DEATH, is_with_setting=True),
    "trainer-killed": Fault("the trainer is killed, and starts again", (_kill_the_trainer, _undisturbed)),
    "interrupted": Fault("Ctrl-C five times, each time go on", (_interrupt,), says=_DEATH),
    "two-arguments": Fault("an exception with two arguments", in_sample="two arguments", says=_DAMAGE),
    "unpicklable": Fault("an exception that cannot be pickled", in_sample="unpicklable", says=_DAMAGE),
    "sample-hangs": Fault("a sample hangs", in_sample="hangs", says=_HANGING),
    "sample-hangs-setting": Fault(
        "... with the setting for it, 10 s", in_sample="hangs", says=_HANGING, is_with_setting=True
    ),
    "shared-memory-full": Fault(
        "shared memory of 64 MiB, batches of 32 MiB",
        says=r"(?i)shared memory|shm|no space left|bus error",
        num_values=_LARGE_VALUES,
        shared_memory_bytes=64 << 20,
    ),
    "descriptors": Fault(
        "no file descriptor is left for a while", (_flood_descriptors,), says=r"(?i)too many open files|descriptor"
    ),
    "broken-off": Fault("break, and iterate again", (_break_off,)),
    "resumed": Fault(
        "resume at three random steps",
        (_save_at_random, *(functools.partial(_resume, name=f"state-{number}") for number in (1, 2, 3))),
    ),
}

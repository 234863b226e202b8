"""What the trainer and the template process write to each other."""

import struct
from typing import NamedTuple

from fkat_data.worker.inheritance import Surroundings

RETIRED = b"\1"
"""What a template sends last that ends because it had nothing to do."""
IS_BORN, IS_DEAD = 1, 2
BIRTH = struct.Struct("<Bq?")
"""A worker's birth: ``IS_BORN``, its process id, whether it was forked; its pidfd comes along."""
DEATH = struct.Struct("<Bi")
"""Its end: ``IS_DEAD``, its exit code as ``subprocess`` gives it."""
MOST_DESCRIPTORS = 16


class WorkerRequest(NamedTuple):
    """A worker to start.

    Attributes:
        worker_index: The worker's number among its loader's.
        stack_signal: The signal that makes it write its stacks.
        surroundings: The trainer's.
        program: What a new interpreter runs where the template cannot fork.
    """

    worker_index: int
    stack_signal: int
    surroundings: Surroundings
    program: str


class WorkerDescriptors(NamedTuple):
    """The descriptors of a request, in their order.

    Attributes:
        birth: The template's end of the birth socket.
        settings: The shipped settings.
        channel: The worker's end of the pipe.
        page: Where the worker reports its stages.
        lifeline: The worker's lifeline.
        stacks: Where it writes its stacks.
        stderr: Its stderr.
        folder: The trainer's working directory.
        stdout: Its stdout; None if the trainer has none.
    """

    birth: int
    settings: int
    channel: int
    page: int
    lifeline: int
    stacks: int
    stderr: int
    folder: int
    stdout: int | None = None

"""Starts the worker processes of one loader, and keeps what they share."""

import errno
import fcntl
import mmap
import os
import pickle
from collections import deque
from collections.abc import Mapping
from typing import Any

from fkat_data.engine.settings import WorkerPoolSettings
from fkat_data.errors import WorkerError
from fkat_data.observe.sink import EventSink
from fkat_data.runtime.interruption import genuine
from fkat_data.transport.anonymous import anonymous_file
from fkat_data.transport.buffers import load_with_buffers, pickled_bytes
from fkat_data.transport.released import LEAST_RELEASED_BYTES
from fkat_data.transport.segment import Lease
from fkat_data.worker.process.claim_table import ClaimTable
from fkat_data.worker.process.forkserver import can_fork, find_template, uses_template
from fkat_data.worker.process.handle import ServerProcess
from fkat_data.worker.process.importer_process import find_importer
from fkat_data.worker.process.parent_process import ParentProcess, fork_parent
from fkat_data.worker.process.process_client import ProcessWorker
from fkat_data.worker.process.process_title import PARENT_ROLE, process_title
from fkat_data.worker.process.program_fork import ProgramFork
from fkat_data.worker.process.ship import Shipment
from fkat_data.worker.settings import FORK_OR_TEMPLATE, WorkerSettings


class WorkerStarter:
    """Starts worker processes, which all get the same settings until ``release``.

    Args:
        settings: The workers'.
        sink: Gets the trainer's waits for the workers.

    Raises:
        ConfigurationError: This system does not allow the start method.
    """

    def __init__(self, settings: WorkerPoolSettings, sink: EventSink) -> None:
        self._settings = settings
        self._sink = sink
        # Where workers write their stacks on request; the trainer asks one at a time.
        self._stacks: int | None = None
        self._shipment: Shipment | ProgramFork | None = None
        start_method = settings.start_method
        self._may_leave_fork = start_method == FORK_OR_TEMPLATE and can_fork()
        self._is_forked = start_method == "fork" or self._may_leave_fork
        # Opens the shipment once, and forks the workers.
        self._parent: ParentProcess | None = None
        self._uses_template = uses_template(start_method if start_method != FORK_OR_TEMPLATE else None)
        self._tables: dict[int, tuple[ClaimTable, int]] = {}
        self._ended_leases: deque[Lease] = deque()

    @property
    def is_ready(self) -> bool:
        """Whether the settings were shipped, and a worker can still get them."""
        return self._shipment is not None and not self._lost_digest()

    @property
    def opened_alone(self) -> str:
        """Why each worker has opened the dataset for itself; empty where they share what was opened once."""
        return "" if self._parent is None else self._parent.why_unfit

    @property
    def has_lost_program(self) -> bool:
        """Whether the fork of this process that the workers are forks of has ended."""
        return isinstance(self._shipment, ProgramFork) and self._shipment.is_gone

    @property
    def may_hang(self) -> bool:
        """Whether workers that have not begun by now should come from the template."""
        return self._may_leave_fork and isinstance(self._shipment, ProgramFork) and self._shipment.may_hang

    def leave_fork(self, settings: WorkerSettings, users: Mapping[str, Any], instead: str) -> None:
        """Have workers start from the template from now on; those that there are have to end.

        Args:
            settings: The settings.
            users: The user's objects in them, by the names of their arguments.
            instead: The argument of the user's, with its value, with which there are no worker processes.

        Raises:
            ConfigurationError: An object of the user's cannot be sent to a worker: the fork stays.
        """
        self._may_leave_fork = False
        shipment, before = Shipment(settings, users, instead), self._shipment
        self._is_forked, self._shipment = False, shipment
        if before is not None:
            before.close()

    def ship(self, settings: WorkerSettings, users: Mapping[str, Any], instead: str) -> None:
        """Pickle what the workers start with, or keep it in a fork of this process.

        Args:
            settings: The settings.
            users: The user's objects in them, by the names of their arguments.
            instead: The argument of the user's, with its value, with which there are no worker processes.

        Raises:
            ConfigurationError: An object of the user's cannot be sent to a worker.
            OSError: This process cannot be forked.
            WorkerError: The process that had what was shipped before has ended, and the settings have changed since.
        """
        if self._is_forked:
            self._shipment = ProgramFork(settings, self._stacks_file())
            return
        shipment, known, before = Shipment(settings, users, instead), self._lost_digest(), self._shipment
        if known and shipment.digest() != known:
            shipment.close()
            code = None if self._parent is None else self._parent.exit_code
            raise WorkerError(
                f"no worker can be started: the process that had opened the dataset has ended (exit code {code}), and the "
                "dataset has changed in this program since it was sent there. Leave it as it is while an iteration goes on, "
                "or begin another iteration"
            )
        self._shipment = shipment
        if before is not None:
            self.end_parent()
            before.close()

    def opened(self) -> WorkerSettings | None:
        """Return a copy of the settings, opened here as in a worker; None: nothing is shipped, or that takes long.

        Raises:
            Exception: What opening them raises.
        """
        if not isinstance(self._shipment, Shipment):
            return None
        with mmap.mmap(self._shipment.settings, 0, access=mmap.ACCESS_READ) as file:
            # A larger pickle may be released while it is read here; and it would be one copy more of what the program has.
            if pickled_bytes(file) >= LEAST_RELEASED_BYTES:
                return None
        # It stays mapped for as long as anything of it is used.
        file = mmap.mmap(self._shipment.settings, 0, access=mmap.ACCESS_COPY)
        pickle.load(file)  # the paths to import from
        return load_with_buffers(file)

    def server(self) -> ServerProcess | None:
        """Return the process that forks workers now; None where they are spawned.

        Raises:
            OSError: No process could be started.
            WorkerError: The fork of this process that they are forks of is gone.
        """
        if isinstance(self._shipment, ProgramFork):
            return self._shipment.server()
        parent = self._parent
        if parent is not None and not parent.why_unfit and parent.is_serving():
            return parent
        template = find_template() if self._uses_template else None
        if template is None or self._shipment is None or self._shipment.folder is None:
            return template
        if parent is not None:
            if parent.why_unfit:
                parent.dismiss()
                return template
            self.end_parent()
        try:
            server = find_importer(template, self._shipment.modules)
            title = process_title(PARENT_ROLE, self._settings.loader_name)
            self._parent = fork_parent(title, self._shipment, self._shipment.folder, self._stacks_file(), server)
        except genuine(OSError) as error:
            if error.errno == errno.EMFILE:
                raise
            return template  # which is gone: the worker is spawned
        return self._parent

    def start(self, index: int, prefetch_bytes: int, server: ServerProcess | None) -> ProcessWorker:
        """Start the worker with a number, without waiting for it.

        Args:
            index: Its number.
            prefetch_bytes: Shared memory that it takes to prefetch.
            server: What ``server`` returned.

        Raises:
            OSError: No process could be started.
        """
        if self._shipment is None:
            raise RuntimeError("the settings were not shipped")
        settings = self._settings
        worker = ProcessWorker(
            self._shipment,
            self._stacks_file(),
            index,
            process_title(f"worker {index} of {settings.num_workers}", settings.loader_name),
            prefetch_bytes,
            self._sink,
            settings.timeline,
            server,
            self._ended_leases,
            is_zero_copy=settings.is_zero_copy,
            shared=settings.shared_by_first,
        )
        if settings.group_size > 1:
            group_index, member_index = divmod(index, settings.group_size)
            self.claim_table(group_index)
            worker.join_group(self._tables[group_index][1], settings.group_size, member_index)
        return worker

    def claim_table(self, group_index: int) -> ClaimTable:
        """Return a group's table, which it keeps until ``close_tables``."""
        if group_index not in self._tables:
            self._tables[group_index] = ClaimTable.create(self._settings.group_size)
        return self._tables[group_index][0]

    def close_tables(self) -> None:
        """Close the tables of all groups, whose workers have ended."""
        while self._tables:
            os.close(self._tables.popitem()[1][1])

    def end_parent(self) -> None:
        """End the process that forks the workers, which have ended. Any number of calls."""
        if self._parent is not None:
            self._parent.end()
            self._parent = None

    def end_spare_parent(self) -> None:
        """End the process that forks the workers, which have ended, unless it alone has what was shipped."""
        if isinstance(self._shipment, Shipment) and not self._shipment.released_digest():
            self.end_parent()

    def _lost_digest(self) -> bytes:
        """Return the digest of what was shipped, where the process is gone that alone had it; empty: it is there."""
        if not isinstance(self._shipment, Shipment) or (self._parent is not None and self._parent.is_serving()):
            return b""
        return self._shipment.released_digest()

    def release(self) -> None:
        """Close what the workers shared. Any number of calls."""
        self.end_parent()
        stacks, self._stacks = self._stacks, None
        if stacks is not None:
            os.close(stacks)
        shipment, self._shipment = self._shipment, None
        if shipment is not None:
            shipment.close()
        self.close_tables()

    def _stacks_file(self) -> int:
        if self._stacks is None:
            self._stacks = anonymous_file()
            fcntl.fcntl(self._stacks, fcntl.F_SETFL, os.O_APPEND)
        return self._stacks

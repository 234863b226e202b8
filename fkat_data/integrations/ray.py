"""Actors on a Ray cluster that make microbatches: behind ``fkat_data.ray``."""

import itertools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from fkat_data.errors import ConfigurationError, arguments
from fkat_data.runtime.interruption import genuine
from fkat_data.worker.process.inherited_environment import import_paths
from fkat_data.worker.remote import RemoteWorkerLost
from fkat_data.worker.remote_maker import RemoteMaker, Reply

try:
    import ray
except ImportError as _error:
    raise ImportError("fkat_data.ray needs Ray: pip install 'fkat_data[ray]'") from _error

__all__ = ["Actors"]

_logger = logging.getLogger(__name__)
_RAY: Any = ray  # which leaves its types open
_LOOK_S = 1.0
_LONGEST_LOOK_S = 2.0
_LAST_BYTES = 4096
# Of the actors of this process: no two have one name, and a successor starts before its predecessor is gone.
_numbers = itertools.count()
_STRATEGIES = {"spread": "SPREAD", "near": "DEFAULT"}


class Actors:
    """Workers that are actors on a Ray cluster.

    A loader joins the cluster that the program, or ``RAY_ADDRESS``, has joined, or else starts a local one; the log says
    which. Actors start with the loader, which does not wait for them, and end with it: with ``close()``, with a dropped
    loader, and with the trainer. Those that are lost, together where their node is, are replaced
    ``max_worker_restarts`` times in an epoch.

    Args:
        num_cpus: CPUs of an actor.
        resources: Custom resources of an actor, by name.
        runtime_env: Ray's runtime environment of the actors.
        placement: ``"spread"`` over the nodes, or ``"near"``: on as few as Ray likes.
        start_timeout_s: Seconds that an actor may take to start, while it waits for CPUs, a node or its environment; it
            is lost then. They do not count to a loader's ``stall_timeout_s``. None: no limit.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        num_cpus: float = 1,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        placement: Literal["spread", "near"] = "spread",
        start_timeout_s: float | None = 600.0,
    ) -> None:
        if not arguments.is_number(num_cpus) or num_cpus < 0:
            raise ConfigurationError("num_cpus", num_cpus, "a number of at least 0")
        self.num_cpus: float = num_cpus
        self.resources: dict[str, float] | None = None if resources is None else dict(resources)
        self.runtime_env: dict[str, Any] = {} if runtime_env is None else dict(runtime_env)
        self.placement: str = arguments.choice("placement", placement, tuple(_STRATEGIES))
        if start_timeout_s is not None:
            start_timeout_s = arguments.positive("start_timeout_s", start_timeout_s, "seconds, more than 0; or None")
        self.start_timeout_s: float | None = start_timeout_s

    def __repr__(self) -> str:
        return f"Actors(num_cpus={self.num_cpus}, resources={self.resources}, placement={self.placement!r})"

    def ship(self, payload: bytes) -> Any:
        """Join a cluster, and put what actors start with into its store of objects, once."""
        if not _RAY.is_initialized():
            try:
                _RAY.init(address="auto", log_to_driver=True)
                _logger.info("joined the Ray cluster at %s", _RAY.get_runtime_context().gcs_address)
            except genuine(ConnectionError):
                _RAY.init(address="local")
                _logger.info("started a Ray cluster on this machine: RAY_ADDRESS names none")
        return _RAY.put(payload)

    def start(self, shipment: Any, worker_index: int, name: str) -> "_Actor":
        """Return an actor that starts, which is not waited for."""
        # Sets have one order in all workers, as in processes.
        variables = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), **self.runtime_env.get("env_vars", {})}
        kind = _RAY.remote(concurrency_groups={"beside": 1})(_Maker).options(
            num_cpus=self.num_cpus,
            resources=self.resources,
            runtime_env={**self.runtime_env, "env_vars": variables},
            scheduling_strategy=_STRATEGIES[self.placement],
            max_restarts=0,
            max_task_retries=0,
            name=f"fkat_data {name}, pid {os.getpid()}, start {next(_numbers)}",
        )
        return _Actor(kind.remote(import_paths(), shipment, worker_index), name, self)

    def shortage(self) -> str:
        """Return what an actor needs, and what of it the cluster has."""
        wanted = {"CPU": self.num_cpus, **(self.resources or {})}
        try:
            has, free = _RAY.cluster_resources(), _RAY.available_resources()
        except genuine(Exception) as error:  # such as of a cluster that has gone
            return f"the cluster does not say what it has: {type(error).__name__}: {error}"
        several = (
            f"{size:g} {name} ({free.get(name, 0):g} free of {has.get(name, 0):g})" for name, size in wanted.items()
        )
        return f"an actor needs {' and '.join(several)} on one node"

    def living(self, handles: "list[_Actor | None]") -> "list[_Actor | None]":
        """Return the actors, with None for those that are known to be gone: with a node, all that it had."""
        asked = [None if handle is None else handle.answer() for handle in handles]
        there = [each for each in asked if each is not None]
        answered: set[Any] = (
            set(_RAY.wait(there, num_returns=len(there), timeout=_LONGEST_LOOK_S)[0]) if there else set()
        )
        return [
            None if each in answered and _is_error(each) else handle
            for handle, each in zip(handles, asked, strict=True)
        ]


def _is_error(reference: Any) -> bool:
    try:
        _RAY.get(reference)
    except genuine(_RAY.exceptions.RayError):
        return True
    return False


class _Maker(RemoteMaker):
    """The class of an actor."""

    @_RAY.method(concurrency_group="beside")
    def errors(self) -> tuple[str, str]:
        """Return the node, and the file that Ray writes this process's stderr to."""
        return _RAY.get_runtime_context().get_node_id(), str(Path("/proc/self/fd/2").resolve())

    @_RAY.method(concurrency_group="beside")
    def answer(self) -> None:
        """Show that this actor is there, while another call runs."""

    @_RAY.method(concurrency_group="beside")
    def made(self, task_id: int, first: int, num_known: int) -> list[Reply]:
        """Return what the call that runs has made so far."""
        return super().made(task_id, first, num_known)

    @_RAY.method(concurrency_group="beside")
    def give_leftover_rows(self, task_id: int, leftover_rows: bytes) -> None:
        """Give a task what the one before has left, while another call waits for it."""
        super().give_leftover_rows(task_id, leftover_rows)

    @_RAY.method(concurrency_group="beside")
    def stack(self) -> str:
        """Return the Python stacks of this process, while another call runs."""
        return super().stack()


@_RAY.remote(num_cpus=0)
def _end_of(path: str) -> str:
    """Return the last lines of a file of the node that this runs on."""
    with Path(path).open("rb") as file:
        if file.seek(max(0, Path(path).stat().st_size - _LAST_BYTES)):
            file.readline()  # a part of one
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.startswith((":job_id:", ":actor_name:")))


class _Actor:
    """A worker that is an actor.

    Args:
        actor: The actor.
        name: What messages call it.
        wanted: What it was started with.
    """

    def __init__(self, actor: Any, name: str, wanted: Actors) -> None:
        self._actor = actor
        self._name = name
        self._wanted = wanted
        self._is_ended = False
        self._about: tuple[int, str] | None = None
        # Known here once it is said: the actor cannot be asked behind its end.
        self._errors = actor.errors.remote()

    def about(self) -> tuple[int, str]:
        """Return its process and machine, once it has started; at once, if it has said so before.

        Raises:
            RemoteWorkerLost: The actor is gone, or does not start.
        """
        try:
            self._about = self._about or _RAY.get(self._actor.about.remote(), timeout=self._wanted.start_timeout_s)
            return cast("tuple[int, str]", self._about)
        except genuine(TimeoutError):
            limit = f"within {self._wanted.start_timeout_s:g} s (start_timeout_s)"
            raise RemoteWorkerLost(f"it did not start {limit}: {self._wanted.shortage()}") from None
        except genuine(_RAY.exceptions.RayError) as error:
            raise self._gone(error) from error

    def call(
        self, method: str, *given: Any, sent: Callable[[], None], meanwhile: Callable[[], None] | None = None
    ) -> Any:
        """Return what a method returns; call ``sent`` when it is asked for, and ``meanwhile`` every second from there on.

        Raises:
            RemoteWorkerLost: The actor is gone, or what it has made.
        """
        reference = getattr(self._actor, method).remote(*given)
        sent()
        try:
            while meanwhile is not None and not _RAY.wait([reference], timeout=_LOOK_S)[0]:
                meanwhile()
                if not _RAY.is_initialized():  # to wait on would start another cluster
                    raise RemoteWorkerLost("Ray was shut down")
            return _RAY.get(reference)
        except genuine(_RAY.exceptions.RayError) as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> RemoteWorkerLost:
        return RemoteWorkerLost(f"{type(error).__name__}: {error}{self._last_words()}")

    def _last_words(self) -> str:
        """Return what the actor wrote to stderr in the end, if its node is there and it was not ended."""
        if self._is_ended or not _RAY.is_initialized():  # a task would start another cluster
            return ""
        try:
            node, path = _RAY.get(self._errors, timeout=0)
            on_it = _RAY.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            words = _RAY.get(_end_of.options(scheduling_strategy=on_it).remote(path), timeout=_LONGEST_LOOK_S)
        except genuine(_RAY.exceptions.RayError, TimeoutError):
            return ""
        return f"\n{words}" if words else ""

    def answer(self) -> Any:
        """Return a reference to its answer, or to the error of an actor that is gone."""
        return self._actor.answer.remote()

    def ask(self, method: str, *given: Any) -> Any:
        """Return what a method returns beside the one that is waited for; None if there is no answer soon."""
        if not _RAY.is_initialized():
            return None
        try:
            return _RAY.get(getattr(self._actor, method).remote(*given), timeout=_LONGEST_LOOK_S)
        except genuine(_RAY.exceptions.RayError, TimeoutError):
            return None

    def send(self, method: str, *given: Any) -> None:
        """Call a method beside the one that is waited for, without waiting."""
        getattr(self._actor, method).remote(*given)

    def stack(self) -> str:
        """Return the actor's Python stacks, or why they are not known."""
        try:
            return str(_RAY.get(self._actor.stack.remote(), timeout=_LONGEST_LOOK_S))
        except genuine(_RAY.exceptions.RayError, TimeoutError) as error:
            says = f"the actor of {self._name} says nothing: {type(error).__name__}"
            return says if self._about else f"{says}; it has not started: {self._wanted.shortage()}"

    def end(self) -> None:
        """End the actor."""
        self._is_ended = True
        if _RAY.is_initialized() and not sys.is_finalizing():
            _RAY.kill(self._actor, no_restart=True)

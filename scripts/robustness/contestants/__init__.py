"""The contestants, each with the plainest code that its documentation shows.

Two need classes of their libraries, and have a file: ``Samples``, and ``prepare``, which writes what they read. The others
are functions in ``plain``.
"""

import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

from robustness.source import Source

_TIMEOUT = {"sample-hangs-setting": {"timeout": 10}}


class Contestant(NamedTuple):
    """A library.

    Attributes:
        package: The distribution whose version the table shows.
        code: Module and function that make an iterable of an epoch's batches.
        settings: By fault, the arguments that its documentation has for that case.
        state: What has a state: ``loader``, ``iterator`` or ``loader of a group``; empty: nothing has.
        is_peer: Whether it needs the peers' environment.
    """

    package: str
    code: str
    settings: dict[str, dict[str, Any]]
    state: str = ""
    is_peer: bool = True

    def loader(self, source: Source, data: str, **setting: Any) -> Any:
        """Return an iterable of an epoch's batches."""
        module, _, function = self.code.partition(".")
        where = {} if module == "plain" else {"data": data}
        return getattr(import_module(f"{__name__}.{module}"), function)(source, **where, **setting)

    def save(self, loader: Any, iterator: Any) -> Any:
        """Return the state."""
        self._join()
        return iterator.get_state() if self.state == "iterator" else loader.state_dict()

    def resumed(self, loader: Any, state: Any) -> Iterator[Any]:
        """Return an iterator that goes on at a state."""
        self._join()
        if self.state == "iterator":
            iterator = iter(loader)
            iterator.set_state(state)
            return iterator
        loader.load_state_dict(state)
        return iter(loader)

    def prepare(self, data: str) -> None:
        """Write the dataset, where the contestant reads files of its own."""
        module = self.code.partition(".")[0]
        if module != "plain":
            import_module(f"{__name__}.{module}").prepare(data)

    def _join(self) -> None:
        group = import_module("torch.distributed")
        if self.state.endswith("of a group") and not group.is_initialized():
            group.init_process_group("gloo", init_method=f"file://{tempfile.mkstemp()[1]}", rank=0, world_size=1)


CONTESTANTS = {
    "ours": Contestant(
        "fkat_data",
        "plain.ours",
        {"worker-killed-setting": {"max_worker_restarts": 1}, "sample-hangs-setting": {"stall_timeout_s": 10}},
        "loader",
        is_peer=False,
    ),
    "torch": Contestant("torch", "plain.torch", _TIMEOUT, is_peer=False),
    "torchdata": Contestant("torchdata", "plain.torchdata", _TIMEOUT, "loader"),
    "fkat": Contestant("fkat", "plain.fkat", {}, "loader of a group"),
    "mosaicml-streaming": Contestant("mosaicml-streaming", "mosaicml_streaming.loader", _TIMEOUT, "loader"),
    "litdata": Contestant("litdata", "litdata_streaming.loader", _TIMEOUT, "loader"),
    "grain": Contestant("grain", "plain.grain", {}, "iterator"),
    "SPDL": Contestant("spdl-core", "plain.spdl_threads", _TIMEOUT),
    "SPDL, processes": Contestant("spdl-core", "plain.spdl_processes", _TIMEOUT),
}

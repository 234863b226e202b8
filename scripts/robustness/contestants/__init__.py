"""The contestants, each with the plainest code that its documentation shows; one file each.

A file has:

- ``PACKAGE``: the distribution whose version the table shows.
- ``loader(source, data, **setting)``: an iterable of an epoch's batches.
- ``SETTINGS``: by fault, the arguments that its documentation has for that case.
- ``save(loader, iterator)`` and ``resumed(loader, state)``, which returns an iterator; absent where there is no state.
- ``prepare(data)``: writes the dataset, where the contestant reads files of its own.
"""

from typing import NamedTuple


class Contestant(NamedTuple):
    """Where a contestant's code is.

    Attributes:
        module: Its file in this folder.
        is_peer: Whether it needs the peers' environment.
    """

    module: str
    is_peer: bool = True


CONTESTANTS = {
    "ours": Contestant("ours", is_peer=False),
    "torch": Contestant("torch_dataloader", is_peer=False),
    "torchdata": Contestant("stateful_dataloader"),
    "fkat": Contestant("original"),
    "mosaicml-streaming": Contestant("mosaicml_streaming"),
    "litdata": Contestant("litdata_streaming"),
    "grain": Contestant("grain_dataloader"),
    "SPDL": Contestant("spdl_threads"),
    "SPDL, processes": Contestant("spdl_processes"),
}

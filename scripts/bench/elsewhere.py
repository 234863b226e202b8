"""Measure where microbatches are made: the caller's thread, threads, processes, actors on one node and on two.

Beside torch's ``DataLoader``, SPDL's threads, and Ray Data where pandas is installed, which it needs.

- ``far``: 32 items that wait 10 ms each, at most 16 microbatches ahead.
- ``tar``: 32 JPEGs, as in ``scaling``.
- ``ready``: 32 items of 16 kB that are there: what bringing them costs.

Ray's nodes are processes of this machine.
"""

from importlib.util import find_spec

import scaling
from measure import Settings, Table

_CONTESTANTS = ["ours, in the caller", "ours, threads", "ours", "ours, actors", "ours, two nodes", "torch", "SPDL"]


def run(settings: Settings) -> list[Table]:
    names = [*_CONTESTANTS, "Ray Data"] if find_spec("pandas") else _CONTESTANTS
    return scaling.tables(settings, ("far", "tar", "ready"), names, ("SPDL",), (1, 2, 8))

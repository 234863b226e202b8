"""Tests for stores, formats, shuffles, movers and stateful objects of your own: subclass a contract in your pytest suite.

A contract is a plain class of tests. Give the subclass a name that begins with ``Test``, and override the methods that
raise ``NotImplementedError``. The tests of this library hold its own implementations to the same contracts.
"""

from fkat_data.testing.contracts.data_contracts import FormatContract, ShuffleContract, StateContract
from fkat_data.testing.contracts.transfer_contracts import MoverContract, StoreContract
from fkat_data.testing.contracts.worker_contracts import WorkerContract

__all__ = ["FormatContract", "MoverContract", "ShuffleContract", "StateContract", "StoreContract", "WorkerContract"]

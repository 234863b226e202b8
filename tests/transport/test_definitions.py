"""Classes and functions that the other process cannot import; tests/loader/test_classes_of_main.py has whole scripts."""

import pickle
import sys
import types

import cloudpickle

from fkat_data.transport.definitions import dump_shipment, is_importable

SCRIPT = """
class Item:
    def __init__(self, number):
        self.number = number

def doubled(item):
    return Item(item.number * 2)
"""


def test_the_script_of_a_spawned_rank_travels_by_value(monkeypatch):
    """multiprocessing calls it ``__mp_main__`` there, which no worker can import."""
    script = types.ModuleType("__mp_main__")
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    exec(SCRIPT, script.__dict__)
    assert not is_importable(script.Item)
    shipped, _ = dump_shipment((script.Item(3), script.doubled))
    cloudpickle.unregister_pickle_by_value(script)
    monkeypatch.undo()
    item, doubled = pickle.loads(shipped)
    assert doubled(item).number == 6

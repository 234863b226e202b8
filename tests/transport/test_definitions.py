"""Classes and functions that the other process cannot import; tests/engine/test_classes_of_main.py has whole scripts."""

import gc
import inspect
import linecache
import pickle
import sys
import traceback
import types

import cloudpickle
import pytest

from fkat_data.transport.definitions import digest_of_shipment, dump_shipment, is_importable

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


def travelled(value):
    """Return what a worker has of a value that this process then forgets."""
    shipped, definitions = dump_shipment(value)
    del value
    return lambda: (definitions.clear(), gc.collect(), pickle.loads(shipped))[-1]


DEFINED = """
import functools

class Numbers:
    def __getitem__(self, index):
        return 1 // index

def outer(number):
    def inner(other):
        return other // number
    return inner

half = lambda number: number // 0
cached = functools.lru_cache(lambda number: number // 0)
"""


def of_script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(DEFINED)
    namespace = {"__name__": "__main__"}
    exec(compile(DEFINED, str(path), "exec"), namespace)
    return str(path), namespace


def of_notebook(tmp_path):
    """As IPython does it: no file has the lines."""
    namespace = {"__name__": "__main__"}
    exec(compile(DEFINED, "<ipython-input-7>", "exec"), namespace)
    linecache.cache["<ipython-input-7>"] = (len(DEFINED), None, DEFINED.splitlines(keepends=True), "<ipython-input-7>")
    return "<ipython-input-7>", namespace


@pytest.mark.parametrize("define", [of_script, of_notebook])
def test_code_that_travels_keeps_where_it_came_from(define, tmp_path):
    filename, namespace = define(tmp_path)
    load = travelled([namespace["Numbers"](), namespace["outer"](0), namespace["half"], namespace["cached"]])
    namespace.clear()
    linecache.cache.pop(filename, None)
    numbers, inner, half, cached = load()
    calls = {
        "return 1 // index": lambda: numbers[0],
        "return other // number": lambda: inner(1),
        "half = lambda number: number // 0": lambda: half(1),
        "cached = functools.lru_cache(lambda number: number // 0)": lambda: cached(1),
    }
    for line, call in calls.items():
        with pytest.raises(ZeroDivisionError) as caught:
            call()
        last = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (last.filename, last.line) == (filename, line)
    assert inspect.getsource(inner) == "    def inner(other):\n        return other // number\n"
    assert "1 // index" in inspect.getsource(type(numbers).__getitem__)
    assert inspect.getsourcefile(inner) in (filename, None)
    linecache.cache.pop(filename, None)


def test_the_digest_of_a_shipment_says_nothing_of_where_code_came_from():
    def defined(filename):
        namespace = {"__name__": "__main__"}
        exec(compile("lambda number: number + 1", filename, "eval"), namespace)
        return eval(compile("lambda number: number + 1", filename, "eval"), namespace)

    first, again = defined("<cell 1>"), defined("<cell 2>")
    assert first.__code__.co_filename != again.__code__.co_filename
    assert digest_of_shipment(first.__code__) == digest_of_shipment(again.__code__)

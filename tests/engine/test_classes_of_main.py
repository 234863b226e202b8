"""Classes and functions of the user's script travel to the worker and back, and stay in the trainer as they were."""

import pytest
from test_no_main_guard import NOTEBOOK

CLASSES = """
import abc, dataclasses, enum
from typing import NamedTuple
import torch
from fkat_data import ShardedDataLoader

REGISTRY = {}
BUILT = []

class Registered:
    def __init_subclass__(cls):
        BUILT.append(cls.__name__)
        if cls.__name__ in REGISTRY:
            raise ValueError(f"{cls.__name__} is registered twice")
        REGISTRY[cls.__name__] = cls

class Meta(type):
    known = {}
    def __new__(mcs, name, bases, namespace):
        if name in mcs.known:
            raise ValueError(f"{name} is known already")
        mcs.known[name] = built = super().__new__(mcs, name, bases, namespace)
        return built

class Batch(Registered):
    total = 0
    def __init__(self, tensor):
        self.tensor = tensor
    def scale(self):
        return SCALE

class Known(metaclass=Meta):
    value = 1

class Slotted:
    __slots__ = ("tensor", "__weakref__")
    def __init__(self, tensor):
        self.tensor = tensor

@dataclasses.dataclass(slots=True)
class SlottedData:
    tensor: torch.Tensor
    name: str = "x"

@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData(SlottedData.__base__):
    name: str = "x"

@dataclasses.dataclass
class Data:
    tensor: torch.Tensor
    options: list = dataclasses.field(default_factory=list)

class Kind(enum.Enum):
    PLAIN = 1
    ROUND = 2

class Abstract(abc.ABC):
    @abc.abstractmethod
    def name(self): ...

class Concrete(Abstract):
    def name(self):
        return "concrete"

class Pair(NamedTuple):
    kind: Kind
    scale: object

SCALE = 1

def scaled():
    return SCALE

def factory(shard):
    Batch.total = 0
    for _ in range(3):
        Batch.total += 1
        known = Known()
        known.x = 1
        yield {
            "batch": Batch(torch.ones(3000)),
            "known": known,
            "slotted": Slotted(torch.ones(3)),
            "slotted data": SlottedData(torch.ones(3)),
            "frozen data": FrozenData(),
            "data": Data(torch.ones(3)),
            "pair": Pair(Kind.ROUND, scaled),
            "concrete": Concrete(),
            "class": Batch,
        }

loader = ShardedDataLoader(0, ["a", "b"], factory, num_shard_prefetches=NUM_AHEAD, num_workers_per_shard=2)

Batch.total = 100
Batch.scale = lambda self: ("patched", SCALE)
SCALE = 2
before = [(cls, dict(vars(cls))) for cls in (Batch, Known, Slotted, SlottedData, FrozenData, Data, Kind, Abstract, Concrete, Pair, Meta)]
built = list(BUILT)

batches = list(loader)

assert len(batches) == 6
for batch in batches:
    assert type(batch["batch"]) is Batch and batch["class"] is Batch
    assert batch["batch"].total == 100
    assert batch["batch"].scale() == ("patched", 2)
    assert type(batch["known"]) is Known
    assert type(batch["slotted"]) is Slotted and batch["slotted"].tensor.sum() == 3
    assert type(batch["slotted data"]) is SlottedData and batch["slotted data"].name == "x"
    assert batch["frozen data"] == FrozenData()
    assert type(batch["data"]) is Data
    assert batch["pair"].kind is Kind.ROUND and batch["pair"].scale is scaled and scaled() == 2
    assert isinstance(batch["concrete"], Abstract)
for cls, attributes in before:
    now, of_abc = dict(vars(cls)), "_abc"
    assert {name: value for name, value in now.items() if not name.startswith(of_abc)} == {
        name: value for name, value in attributes.items() if not name.startswith(of_abc)
    }, cls
assert BUILT == built == ["Batch"], BUILT
assert list(Meta.known) == ["Known"]
print("unchanged")
loader.close()
"""


@pytest.mark.parametrize("by", ["file", "stdin", "notebook"])
def test_what_the_script_defines_stays_as_it_was(run_script, tmp_path, by):
    program = CLASSES.replace("NUM_AHEAD", "1" if by == "file" else "0")
    (tmp_path / "program").write_text(program)
    done = run_script(NOTEBOOK) if by == "notebook" else run_script(program, by=by)
    assert done.stdout.strip() == "unchanged"
    assert done.stderr == "" or by == "notebook"  # jupyter's own


INDICES = """
from fkat_data import DataLoader

class Index:
    def __init__(self, number):
        self.number = number

class Numbers:
    def __len__(self):
        return 6

    def __getitem__(self, wanted):
        assert isinstance(wanted, Index)
        return wanted.number

sampler = [Index(number) for number in range(6)]
with DataLoader(Numbers(), 2, sampler=sampler, num_workers=2, timeout=600) as loader:
    print([microbatch.tolist() for microbatch in loader])
"""


def test_indices_of_a_sampler_may_be_of_the_scripts_own_classes(prepared, run_script):
    assert run_script(INDICES, by="fork").stdout.strip() == "[[0, 1], [2, 3], [4, 5]]"


MADE = """
import torch
from fkat_data import ShardedDataLoader

class Base:
    total = 0
    made = []
    def __init_subclass__(cls):
        Base.made.append(cls.__name__)

def factory(shard):
    Base.total = 5
    class Mine(Base):
        def where(self):
            return shard
    class Other:
        kind = Mine
    for _ in range(3):
        yield {"mine": Mine(), "other": Other(), "where": lambda: shard}

with ShardedDataLoader(0, ["a"], factory, num_shard_prefetches=1) as loader:
    a = list(loader)
    assert len({type(batch["mine"]) for batch in a}) == 1 and isinstance(a[0]["mine"], Base)
    assert all(batch["other"].kind is type(batch["mine"]) for batch in a)
    assert [batch["mine"].where() for batch in a] == [batch["where"]() for batch in a] == ["a"] * 3
with ShardedDataLoader(0, ["b", "c"], factory, num_shard_prefetches=2) as loader:
    b = list(loader)
    # Each shard's own class, of two workers that are forks of one process.
    assert len({type(batch["mine"]) for batch in b}) == 2
    assert [batch["mine"].where() for batch in b] == ["b"] * 3 + ["c"] * 3
assert Base.total == 0
print(Base.made)
"""


def test_a_class_that_a_worker_makes_is_made_once_and_leaves_its_base_as_it_was(prepared, run_script):
    assert run_script(MADE, by="fork").stdout == "['Mine', 'Mine', 'Mine']\n"


CACHED = """
import functools
from fkat_data import ShardedDataLoader

@functools.cache
def tokenizer(name):
    return {"name": name, "size": size("a")}

@functools.lru_cache(maxsize=3, typed=True)
def size(text):
    '''Return a size.'''
    return len(text)

@functools.lru_cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

class Dataset:
    def __init__(self):
        self.calls = 0
    @functools.cached_property
    def data(self):
        self.calls += 1
        return self.calls
    @functools.lru_cache
    def method(self, number):
        self.calls += 1
        return self.calls
    @staticmethod
    @functools.cache
    def static():
        return 7

dataset = Dataset()

def factory(shard):
    yield tokenizer(shard), fibonacci(30), dataset.data, dataset.data, dataset.method(1), dataset.method(1)
    yield size.cache_info().currsize, size.cache_parameters()["typed"], size.__doc__, size.__name__, Dataset.static()
    yield tokenizer

assert tokenizer("here") == {"name": "here", "size": 1}
with ShardedDataLoader(0, ["a"], factory) as loader:
    first, second, third = loader
    print(first)
    print(second)
    assert third is tokenizer and tokenizer.cache_info().currsize == 1
"""


@pytest.mark.parametrize("by", ["file", "stdin"])
def test_functions_with_a_cache_travel_without_what_is_in_it(run_script, by):
    assert run_script(CACHED, by=by).stdout == (
        "({'name': 'a', 'size': 1}, 832040, 1, 1, 2, 2)\n(1, True, 'Return a size.', 'size', 7)\n"
    )


MEMORY = """
import gc, os, psutil, torch
from own_workers import worker_pids
from fkat_data import ShardedDataLoader

def factory(shard):
    for index in range(300):
        content = os.urandom(1 << 20)
        yield lambda: content

loader = ShardedDataLoader(0, ["a"], factory, memory_limit_bytes=32 << 20)
iterator = iter(loader)
next(iterator)
process = psutil.Process()
worker = psutil.Process(worker_pids()[0])
before = process.memory_info().rss, worker.memory_info().rss
assert sum(len(function()) for function in iterator) == 299 << 20
grown = process.memory_info().rss - before[0], worker.memory_info().rss - before[1]
assert max(grown) < 100 << 20, grown
loader.close()
"""


def test_functions_of_microbatches_are_not_kept(prepared, run_script):
    run_script(MEMORY, by="fork")


#: What looks for the source of code needs its file, in a worker too.
SOURCE = """
import inspect
import torch
from torch.utils.data import Dataset
from fkat_data import DataLoader

class Numbers(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index == 1:
            raise ValueError("no such number")
        return index

def doubled(number: torch.Tensor) -> torch.Tensor:
    return number * 2

def collate(rows):
    return torch.jit.script(doubled)(torch.tensor(rows)), inspect.getsource(Numbers.__getitem__).splitlines()[-1].strip()

with DataLoader(Numbers(), num_workers=1, timeout=600, collate_fn=collate) as loader:
    iterator = iter(loader)
    print(next(iterator))
    try:
        next(iterator)
    except ValueError as error:
        print(*error.__notes__)
"""


def test_the_source_of_a_scripts_code_is_found_in_a_worker(prepared, run_script, tmp_path):
    found = run_script(SOURCE, by="fork").stdout
    assert "(tensor([0]), 'return index')" in found
    assert f'File "{tmp_path / "script.py"}", line 13, in __getitem__\n    raise ValueError("no such number")' in found


LOOKED_UP = """
import enum, io, pickle, sys, typing
import torch
import fkat_data

class Kind(enum.Enum):
    PLAIN = 1

class Item:
    def __init__(self, number: int, kind: "Kind") -> None:
        self.number = number
        self.kind = kind

class Typed:
    item: "Item"

def main(item):
    return item.number + 1

def leave(item):
    return main(item)

class Items:
    def __init__(self):
        self.known = [Typed, leave]
        self.pickled = [pickle.dumps(Item(number, Kind.PLAIN)) for number in range(3)]
        stream = io.BytesIO()
        torch.save(Item(7, Kind.PLAIN), stream)
        self.saved = stream.getvalue()

    def __len__(self):
        return 3

    def __getitem__(self, index):
        item = pickle.loads(self.pickled[index])
        assert type(item) is Item and item.kind is Kind.PLAIN
        assert pickle.loads(pickle.dumps(item)).number == index
        assert torch.load(io.BytesIO(self.saved), weights_only=False).number == 7
        assert typing.get_type_hints(Typed) == {"item": Item}
        assert sys.modules["__main__"].Item is Item
        return leave(item)

with fkat_data.DataLoader(Items(), None, num_workers=1, timeout=600) as loader:
    print(list(loader), sorted(set(vars(sys.modules["__main__"])) & {"Item", "main"}))
"""


@pytest.mark.parametrize("start_method", ["template", "spawn", "fork"])
def test_a_worker_finds_what_has_travelled_of_the_script_by_its_name(prepared, run_script, start_method):
    script = LOOKED_UP.replace("num_workers=1", f"num_workers=1, start_method={start_method!r}")
    assert run_script(script, by="fork").stdout == "[1, 2, 3] ['Item', 'main']\n"

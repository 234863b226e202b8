"""What travels to a worker from plain scripts, and what an error says of what cannot."""

import pickle
import textwrap

import pytest
from torch.utils.data import Dataset, Subset

from fkat_data import ConfigurationError, DataLoader
from fkat_data.transport.definitions import dump_shipment

ATTRIBUTES = """
import torch
import fkat_data

class Images:
    def __init__(self):
        self.classes, self.ops = ["cat", "dog"], [len]

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(index), len(self.classes), len(self.ops)

def factory(shard):
    return torch.utils.data.DataLoader(Images(), batch_size=2)

for loader in (
    fkat_data.DataLoader(Images(), batch_size=2, num_workers=1),
    fkat_data.ShardedDataLoader(0, ["a"], factory),
):
    print([[part.tolist() for part in batch] for batch in loader])
"""


def test_attributes_may_have_the_names_of_odd_modules(prepared, run_script):
    assert run_script(ATTRIBUTES, by="fork").stdout == "[[[0, 1], [2, 2], [1, 1]], [[2, 3], [2, 2], [1, 1]]]\n" * 2


MODULES = """
import importlib.util
import sys
import types

import torch
import transformers

import fkat_data
import by_function, by_class, by_swap, in_its_place, spaces.inside

spec = importlib.util.find_spec("late")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["late"] = late = importlib.util.module_from_spec(spec)
spec.loader.exec_module(late)

aten = torch.ops.aten

def of_globals():
    return by_function.answer + by_class.answer + by_swap.answer + in_its_place.answer + spaces.inside.answer

class Modules:
    def __init__(self, modules):
        self.modules = modules

    def __len__(self):
        return 1

    def __getitem__(self, index):
        lost = [name for name, module in self.modules.items() if module is not sys.modules.get(name)]
        assert aten is torch.ops.aten
        return lost, of_globals(), late.answer

odd = {
    name: module
    for name, module in sys.modules.items()
    if isinstance(module, types.ModuleType) and type(module) is not types.ModuleType
}
assert {"torch.ops", "torch.classes", "transformers", "by_class", "by_swap", "late"} <= set(odd), odd
assert type(sys.modules["late"]) is not types.ModuleType, "it was loaded on the way"
odd.update(by_function=by_function, spaces=spaces, in_its_place=in_its_place)
with fkat_data.DataLoader(Modules(odd), batch_size=None, num_workers=1) as loader:
    print(list(loader))
"""

LAZY = {
    "by_function/__init__.py": "def __getattr__(name):\n    if name == 'answer': return 1\n    raise AttributeError(name)",
    "by_class/__init__.py": """
        import sys, types
        class Lazy(types.ModuleType):
            def __getattr__(self, name):
                if name == "answer": return 10
                raise AttributeError(name)
        lazy = Lazy(__name__)
        lazy.__path__, lazy.__spec__, lazy.__package__ = __path__, __spec__, __package__
        sys.modules[__name__] = lazy
    """,
    "by_swap.py": """
        import sys, types
        class Swapped(types.ModuleType):
            @property
            def answer(self): return 100
            def __reduce__(self): raise TypeError("it is found by its name")
        sys.modules[__name__].__class__ = Swapped
    """,
    "in_its_place.py": """
        import sys, threading
        class Place:
            answer = 1000
            def __init__(self): self.lock = threading.Lock()
        sys.modules[__name__] = Place()
    """,
    "spaces/inside.py": "answer = 10000",
    "late.py": "answer = 'late'",
}


def test_modules_of_every_class_travel_by_name(run_script, tmp_path):
    for name, text in LAZY.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    assert run_script(MODULES, timeout=240).stdout == "[[[], 11111, 'late']]\n"


UNSHIPPABLE = """
import threading
import torch
import fkat_data

handle = threading.Lock()

def load(index):
    with handle:
        return index

class Locked:
    def __init__(self):
        self.lock = threading.Lock()

class Numbers:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

class Loading(Numbers):
    def __getitem__(self, index):
        return load(index)

class Shared(Numbers):
    lock = threading.Lock()

class Dropping(Numbers):
    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "dropped"}

deep = []
for _ in range(100_000):
    deep = [deep]

def closed(lock):
    return lambda samples: (samples, lock)

CASES = {
    "dataset.transform.lock": Numbers(transform=Locked()),
    "dataset, global 'load' of function 'Loading.__getitem__', global 'handle' of function 'load'": Loading(),
    "dataset, attribute 'lock' of class 'Shared'": Shared(),
    "dataset.parts[1]['a'].lock": Dropping(dropped=Locked(), parts=[0, {"a": Locked()}]),
    "dataset.deep[0][0][0][0]": Numbers(deep=deep),
    "dataset.lock": Numbers(load=lambda index: index, lock=handle),
    "dataset.load, default 'lock' of function '<lambda>'": Numbers(load=lambda index, lock=handle: index),
    "collate_fn, closure variable 'lock' of function '<lambda>'": closed(handle),
}

def refusal(loader):
    try:
        list(loader)
    except fkat_data.ConfigurationError as error:
        return str(error)

for way, case in CASES.items():
    collate = case if way.startswith("collate_fn") else None
    dataset = Numbers() if collate else case
    found = refusal(fkat_data.DataLoader(dataset, num_workers=1, collate_fn=collate, start_method="template"))
    reason = "excessively deep recursion" if "deep" in way else "cannot pickle '_thread.lock' object"
    assert found.startswith(way) and reason in found and "num_workers=0" in found, found

def factory(shard):
    return torch.utils.data.DataLoader(dataset)

dataset = CASES["dataset.transform.lock"]
try:
    fkat_data.ShardedDataLoader(0, ["a"], factory)
except fkat_data.ConfigurationError as error:
    print(error.argument)
"""


def test_an_error_names_the_attributes_and_globals_that_lead_to_what_cannot_be_sent(prepared, run_script):
    assert run_script(UNSHIPPABLE, by="fork").stdout == (
        "dataloader_factory, global 'dataset.transform.lock' of function 'factory'\n"
    )


ARRIVING = """
import torch
import fkat_data

def deep(levels):
    innermost = []
    for _ in range(levels):
        innermost = [innermost]
    return innermost

class Samples:
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return {"number": 1, "content": self.make()}

def same(sample):
    return sample

def storage():
    return torch.arange(8, dtype=torch.int16).untyped_storage()

def loaders(make):
    for num_workers in (0, 1):
        yield fkat_data.DataLoader(Samples(make), batch_size=None, collate_fn=same, num_workers=num_workers)
        factory = lambda shard: torch.utils.data.DataLoader(Samples(make), batch_size=None, collate_fn=same)
        yield fkat_data.ShardedDataLoader(0, ["a"], factory, multiprocessing=num_workers > 0)

for loader in loaders(storage):
    [sample] = loader
    assert type(sample["content"]) is torch.UntypedStorage
    assert sample["content"].tolist() == storage().tolist()
for loader in loaders(lambda: deep(300)):
    assert len(list(loader)) == 1
for loader in loaders(lambda: deep(100_000)):
    try:
        list(loader)
    except RecursionError as error:
        assert "at microbatch 0 of " in error.__notes__[0], error.__notes__
    else:
        raise AssertionError("it arrived")

class Node:
    def __init__(self, following):
        self.following = following

def linked():
    node = None
    for _ in range(5_000):
        node = Node(node)
    return node

for loader in list(loaders(linked))[:2]:  # in this process: what cannot be pickled is handed over as it is
    [sample] = loader
    node, num_nodes = sample["content"], 0
    while node is not None:
        node, num_nodes = node.following, num_nodes + 1
    assert num_nodes == 5_000
print("done")
"""


def test_storages_arrive_and_what_is_nested_too_deep_is_refused_with_and_without_workers(prepared, run_script):
    assert run_script(ARRIVING, by="fork").stdout == "done\n"


class Forwarding(Dataset):
    """As people write it, and torch's workers take it where they are forked."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]


class ByKey(Forwarding):
    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)


class Careful(Forwarding):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


class WithState(Forwarding):
    def __setstate__(self, state):
        self.__dict__.update(state)


@pytest.mark.parametrize(
    "make", [Forwarding, lambda inner: Subset(Forwarding(inner), [0, 1]), lambda inner: [Forwarding(inner)]]
)
def test_a_getattr_that_recurses_before_attributes_are_set_is_named(make):
    with pytest.raises(
        ConfigurationError,
        match=r"Forwarding\.__getattr__ then asks for 'inner'.*begin with `if name.startswith\('__'\): raise AttributeError",
    ) as caught:
        iter(DataLoader(make(["a", "b"]), num_workers=1, start_method="spawn"))
    assert str(caught.value).startswith("dataset")


def test_a_getattr_that_raises_another_error_before_attributes_are_set_is_named():
    with pytest.raises(ConfigurationError, match=r"ByKey\.__getattr__ then raises KeyError: 'inner'"):
        iter(DataLoader(ByKey(["a", "b"]), num_workers=1, start_method="spawn"))


def test_a_getattr_that_recurses_does_no_harm_where_nothing_is_unpickled():
    assert list(DataLoader(Forwarding(["a", "b"]))) == [["a"], ["b"]]
    assert list(DataLoader(Forwarding(["a", "b"]), num_workers=1, workers="threads")) == [["a"], ["b"]]


@pytest.mark.parametrize("kind", [Careful, WithState])
def test_a_getattr_that_knows_of_new_objects_travels(kind):
    shipped, _ = dump_shipment(kind(["a", "b"]))
    assert pickle.loads(shipped)[1] == "b"

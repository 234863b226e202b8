"""The shape of the package, held by its syntax trees. One test a rule; each lists every offender."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from torch.utils import data as torch_data

import fkat_data

ROOT = Path(fkat_data.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: The layer of each package, or module that has one of its own. It may import from packages of a lower layer, and from itself.
LAYERS = {
    "configs": 0,
    "permutation": 0,
    "runtime.interruption": 0,
    "seeding": 0,
    "types": 0,
    "errors": 1,
    "runtime": 2,
    "storage": 3,
    "integrations.hooks": 4,
    "integrations.huggingface": 4,
    "integrations.hydra": 4,
    "observe": 4,
    "samplers": 4,
    "streaming.order": 4,
    "transport": 4,
    "device": 5,
    "files": 5,
    "plan": 5,
    "mixing": 6,
    "worker": 6,
    "datasets": 7,
    "streaming.cache": 7,
    "streaming.formats": 7,
    "streaming.store": 7,
    "worker.process": 7,
    "engine": 8,
    "extensions": 8,
    "streaming.epoch": 8,
    "streaming.reading": 8,
    "streaming.writing": 8,
    "loaders": 9,
    "integrations": 10,
    "streaming": 10,
    "configuration": 11,
    "export": 11,
    "huggingface": 11,
    "lightning": 11,
    "ray": 11,
    "torchtitan": 11,
    "__init__": 12,
    "testing": 13,
    "tools": 14,
    "__main__": 15,
}
#: Packages that do not import one another: they meet in the user's code only.
INDEPENDENT = {"datasets", "mixing", "streaming", "engine", "integrations.hydra", "integrations.huggingface"}


def package_of(parts):
    """Return the package of a module, by its parts below the package: the longest of those that have a layer."""
    if parts[0] == "streaming":
        return f"streaming.{parts[1]}" if len(parts) > 1 and (ROOT / "streaming" / parts[1]).is_dir() else "streaming"
    return next((name for end in (2, 1) if (name := ".".join(parts[:end])) in LAYERS), parts[0])


def parts_of(path):
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return parts if parts == ["__init__"] else [part for part in parts if part != "__init__"]


@cache
def tree_of(path):
    return ast.parse(path.read_text())


@pytest.fixture(autouse=True, scope="module")
def _forget_the_trees():
    """What is kept here makes each collection of garbage in the tests after these slower."""
    yield
    tree_of.cache_clear()
    package_imports.cache_clear()


def imported(path):
    """Yield the modules of the package that a file imports, those inside functions included, as parts."""
    for node in ast.walk(tree_of(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            folder = ROOT.parent.joinpath(*module.split("."))
            deeper = {f"{module}.{alias.name}" for alias in node.names if (folder / f"{alias.name}.py").exists()}
            names = [f"fkat_data.{alias.name}" for alias in node.names] if module == "fkat_data" else [module, *deeper]
        for name in names:
            if name.split(".")[0] == "fkat_data":
                parts = name.split(".")[1:] or ["__init__"]
                yield parts if (ROOT / parts[0]).exists() or (ROOT / f"{parts[0]}.py").exists() else ["__init__"]


@cache
def package_imports():
    """Return which packages each package imports, and one file of it that does."""
    found = defaultdict(dict)
    for path in FILES:
        own = package_of(parts_of(path))
        for parts in imported(path):
            other = package_of(parts)
            if other != own:
                found[own].setdefault(other, str(path.relative_to(ROOT)))
    return found


def test_every_package_has_a_layer():
    packages = {package_of(parts_of(path)) for path in FILES}
    assert packages == set(LAYERS), packages ^ set(LAYERS)


def test_few_modules_stand_right_under_the_package():
    loose = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "__main__"}
    assert len(loose) <= 8, loose


def goes_up(own, other):
    return LAYERS[other] >= LAYERS[own] and not (own == "__init__" and other == "testing") and LAYERS[own] > 0


def joins_independent(own, other):
    tops = {package if package in INDEPENDENT else package.split(".")[0] for package in (own, other)}
    return len(tops) > 1 and tops <= INDEPENDENT


@pytest.mark.long
@pytest.mark.parametrize("is_wrong", [goes_up, joins_independent])
def test_imports_go_down_and_independent_packages_do_not_import_one_another(is_wrong):
    offenders = [
        f"{path}: {own} (layer {LAYERS[own]}) imports {other} (layer {LAYERS[other]})"
        for own, others in package_imports().items()
        for other, path in others.items()
        if is_wrong(own, other)
    ]
    assert not offenders, "\n".join(offenders)


def test_the_state_is_read_without_unpickling_or_evaluating():
    for name in ("plan/state.py", "plan/iteration.py", "plan/position.py"):
        names = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(tree_of(ROOT / name))}
        assert not names & {"pickle", "eval", "exec", "loads"}


def circles(imports):
    """Yield the groups of modules that import one another, directly or by others."""
    reached = {}

    def reach(module, start):
        if module not in reached[start]:
            reached[start].add(module)
            for other in imports[module]:
                reach(other, start)

    for module in imports:
        reached[module] = set()
        for other in imports[module]:
            reach(other, module)
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imports
        if module in reached[module]
    }


def test_circles_are_found():
    assert circles({"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": [], "e": ["e"]}) == {
        frozenset("bc"),
        frozenset("e"),
    }


@pytest.mark.long
def test_no_modules_import_one_another_in_a_circle():
    modules = {tuple(parts_of(path)): path for path in FILES}
    imports = {
        module: sorted({found for parts in imported(path) if (found := tuple(parts)) in modules})
        for module, path in modules.items()
    }
    assert not circles(imports)


def test_a_data_loader_has_its_arguments_and_one_session():
    ours = [kind for kind in fkat_data.DataLoader.__mro__ if kind.__module__.startswith("fkat_data")]
    members = {
        name
        for kind in ours
        for name in vars(kind)
        if callable(vars(kind)[name]) or isinstance(vars(kind)[name], (property, staticmethod))
    }
    assert [kind.__name__ for kind in ours] == ["DataLoader", "Described", "Closing"]
    assert len(members) <= 45
    own = vars(fkat_data.DataLoader([1, 2])).keys() - vars(torch_data.DataLoader([1, 2])).keys()
    assert {name for name in own if name.startswith("_")} == {"_session", "_pin_memory_device"}


def test_only_the_choice_of_a_source_looks_at_what_kind_of_loader_it_is():
    """A kind is a type: where one asked again, cases of it would be spread over the package."""
    kinds = {"IndexSource", "IndexWindowSource", "IterableSource", "CountedIterableSource", "StreamBatchSource"}
    asked = set()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            is_question = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
            )
            if is_question and {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)} & kinds:
                asked.add(path.stem)
    assert asked <= {"sources"}

"""The shape of the package, held by its syntax trees."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import fkat_data

ROOT = Path(fkat_data.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: A module may import from its own layer and from those below it: the lower the number, the further down.
LAYERS = {
    "errors": 0,
    "types": 0,
    "arguments": 1,
    "position": 1,
    "requirement": 1,
    "seeding": 1,
    "tree": 1,
    "distributed": 1,
    "faults": 1,
    "permutation": 1,
    "samplers": 2,
    "observe": 2,
    "datasets": 3,
    "plan": 3,
    "streaming": 3,
    "transport": 3,
    "worker": 4,
    "device": 4,
    "loader": 5,
    "configuration": 5,
    "testing": 6,
    "__init__": 6,
    "cli": 7,
}
#: They meet in the user's code only.
STRANGERS = {"datasets", "streaming", "loader", "configuration"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
LONGEST_FILE = 400
#: How many comments that silence a checker there are: this may only fall.
NUM_SILENCED = 29


def layer(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path):
    """Yield the parts of the package that a file imports, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [node.module] if node.module != "fkat_data" else [f"fkat_data.{name.name}" for name in node.names]
        for name in names:
            if name.split(".")[0] == "fkat_data":
                yield name.split(".")[1] if "." in name else "__init__"


def relative(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_go_down(path):
    if layer(path) == "streaming":
        pytest.skip("its layers are its own tests' matter")
    for other in imported(path):
        assert LAYERS[other] <= LAYERS[layer(path)], f"{layer(path)} imports {other}"
        if other != layer(path):
            assert not {other, layer(path)} <= STRANGERS, f"{layer(path)} imports {other}"
            # Neighbours on one layer do not know one another, but for types and errors.
            assert LAYERS[other] < LAYERS[layer(path)] or LAYERS[other] == 0 or layer(path) == "__init__"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_are_short_shallow_and_well_named(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
    assert len(path.relative_to(ROOT).parts) <= 3, "at most two levels of packages"
    assert path.stem not in FORBIDDEN_NAMES
    assert not FORBIDDEN_NAMES & set(path.relative_to(ROOT).parts)


def modules():
    for path in FILES:
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("name", list(modules()))
def test_every_public_module_says_what_it_is_and_what_it_gives(name):
    path = ROOT.parent.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "no docstring"
    exported = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets)
    ]
    if len(tree.body) == 1:
        return  # a docstring alone: a package whose modules are imported by name
    assert len(exported) == 1, "no __all__"
    module = importlib.import_module(name)
    assert all(hasattr(module, item) for item in exported[0])
    assert exported[0] == sorted(exported[0], key=rank_of_name)
    defined = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert {item for item in defined if not item.startswith("_")} <= set(exported[0]), "public, but not exported"


def rank_of_name(name):
    """As ruff sorts: constants, then classes, then functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name)


def test_comments_that_silence_a_checker_only_become_fewer():
    pattern = re.compile(r"#.*(noqa|type: ignore|pyright: ignore)")
    found = sum(bool(pattern.search(line)) for path in FILES for line in path.read_text().splitlines())
    assert found <= NUM_SILENCED, "find a way without it, or argue for the new number here"


def test_every_comment_that_silences_a_checker_says_which_rule():
    for path in FILES:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            for word in ("noqa", "type: ignore", "pyright: ignore"):
                if f"# {word}" in line:
                    assert re.search(rf"# {word}(: [A-Z]+\d+|\[\w)", line), f"{path}:{number}"


def test_the_state_is_read_without_unpickling_or_evaluating():
    for name in ("plan/state.py", "plan/cursor.py", "position.py"):
        names = {
            getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(ast.parse((ROOT / name).read_text()))
        }
        assert not names & {"pickle", "eval", "exec", "load", "loads"}

"""The shape of the package, held by its syntax trees. One test a rule; each lists every offender."""

import ast
import importlib
import re
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import fkat_data

ROOT = Path(fkat_data.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: A room is a package, or a file of the package's root. It may import from rooms of a lower floor, and from itself.
FLOORS = {
    "closing": 0,
    "dropped": 0,
    "description": 0,
    "errors": 0,
    "modes": 0,
    "needs_posix": 0,
    "types": 0,
    "error_text": 0,
    "interruption": 0,
    "job_store": 0,
    "position": 0,
    "requirement": 0,
    "quantities": 0,
    "roll_call": 0,
    "shard_name": 0,
    "accelerated": 1,
    "configs": 0,
    "arguments": 1,
    "sample_place": 1,
    "background": 1,
    "counted_file": 2,
    "dataset_files": 1,
    "notes": 0,
    "seeding": 1,
    "tracebacks": 1,
    "tree": 1,
    "distributed": 1,
    "executor": 0,
    "iteration": 2,
    "location": 1,
    "machine": 1,
    "misfit": 1,
    "record_locks": 1,
    "registry": 1,
    "permutation": 1,
    "sizes": 2,
    "samplers": 2,
    "torchtitan": 2,
    "launch": 2,
    "observe": 2,
    "files": 3,
    "streaming.formats": 7,
    "streaming.order": 2,
    "datasets": 4,
    "mixing": 3,
    "export": 3,
    "plan": 3,
    "transport": 3,
    "streaming.cache": 4,
    "streaming.store": 4,
    "worker": 4,
    "device": 4,
    "streaming.reading": 5,
    "streaming.writing": 5,
    "streaming.epoch": 5,
    "loader": 5,
    "configuration": 5,
    "streaming": 7,
    "extensions": 8,
    "lightning": 6,
    "drop_in": 6,
    "huggingface": 6,
    "testing": 8,
    "__init__": 7,
    "tools": 9,
    "__main__": 10,
}
#: They meet in the user's code only.
STRANGERS = {"datasets", "mixing", "streaming", "loader", "configuration", "huggingface"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
LONGEST_FILE_LINES = 600


def room(parts):
    """Return the room of a module, by its parts below the package."""
    if parts[0] == "streaming":
        return f"streaming.{parts[1]}" if len(parts) > 1 and (ROOT / "streaming" / parts[1]).is_dir() else "streaming"
    return parts[0]


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
    arrows.cache_clear()


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
def arrows():
    """Return which rooms each room imports, and one file of it that does."""
    found = defaultdict(dict)
    for path in FILES:
        own = room(parts_of(path))
        for parts in imported(path):
            other = room(parts)
            if other != own:
                found[own].setdefault(other, str(path.relative_to(ROOT)))
    return found


def test_every_room_stands_on_a_floor():
    rooms = {room(parts_of(path)) for path in FILES}
    assert rooms == set(FLOORS), rooms ^ set(FLOORS)


def test_the_picture_shows_each_package_on_its_floor():
    picture = (Path(__file__).parents[1] / "docs" / "images" / "architecture.svg").read_text()
    drawn = {
        name: int(floor)
        for floor, group in re.findall(r'<g data-floor="(\d)">(.*?)</g>', picture, re.DOTALL)
        for name in re.findall(r'<text class="m on"[^>]*>([\w.]+)<', group)
    }
    packages = {name: floor for name, floor in FLOORS.items() if floor and ROOT.joinpath(*name.split(".")).is_dir()}
    assert drawn == packages


def test_imports_go_down():
    offenders = [
        f"{path}: {own} (floor {FLOORS[own]}) imports {other} (floor {FLOORS[other]})"
        for own, others in arrows().items()
        for other, path in others.items()
        if FLOORS[other] >= FLOORS[own] and not (own == "__init__" and other == "testing") and FLOORS[own] > 0
    ]
    assert not offenders, "\n".join(offenders)


def test_strangers_do_not_know_one_another():
    offenders = [
        f"{path}: {own} imports {other}"
        for own, others in arrows().items()
        for other, path in others.items()
        if own.split(".")[0] != other.split(".")[0] and {own.split(".")[0], other.split(".")[0]} <= STRANGERS
    ]
    assert not offenders, "\n".join(offenders)


def test_nothing_but_the_program_imports_the_tools():
    offenders = [
        path
        for own, others in arrows().items()
        if own not in ("tools", "__main__")
        for other, path in others.items()
        if other == "tools"
    ]
    assert not offenders, offenders


def test_no_import_is_relative():
    offenders = [
        str(path)
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not offenders, offenders


def test_files_are_short_shallow_and_well_named():
    offenders = []
    for path in FILES:
        relative = path.relative_to(ROOT)
        num_lines = len(path.read_text().splitlines())
        if num_lines > LONGEST_FILE_LINES:
            offenders.append(f"{relative}: {num_lines} lines")
        if len(relative.parts) > 3:
            offenders.append(f"{relative}: more than two levels of packages")
        if FORBIDDEN_NAMES & {*relative.parts, path.stem}:
            offenders.append(f"{relative}: a name that says nothing")
    assert not offenders, "\n".join(offenders)


def test_a_protocol_holds_no_code():
    """Its members say what is there; a class that brings code along is a base class."""
    offenders = []
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Protocol" for base in node.bases):
                offenders += [
                    f"{path.relative_to(ROOT)}: {node.name}.{member.name}"
                    for member in node.body
                    if isinstance(member, ast.FunctionDef) and not is_stub(member)
                ]
    assert not offenders, "\n".join(offenders)


#: Rooms whose objects are complete when their constructors return.
WIRED_ROOMS = ("loader", "worker", "transport", "device")
#: What has no other way: weakref.finalize takes its ``atexit`` after it was made, and a DataLoader refuses to be copied
#: with another sampler unless its own guard is passed by. A weak reference takes nothing but its target and its callback.
UNAVOIDABLE = {
    "weakref.finalize(...).atexit",
    "object.__setattr__(loader, ...)",
    "lease.leases",
    "lease.segment_index",
    "self._end.mapping",
    # A call for each microbatch would cost more.
    "work.delivered",
    "work.last_digest",
}


def test_nobody_assigns_attributes_of_another_object():
    """What an object needs, its constructor takes; what others want to know goes to the sink that it was given."""
    offenders = []
    for path in (path for path in FILES if parts_of(path)[0] in WIRED_ROOMS):
        for node in ast.walk(tree_of(path)):
            target = foreign_target(node)
            if target and target not in UNAVOIDABLE:
                offenders.append(f"{path.relative_to(ROOT)}:{node.lineno}: {target}")
    assert not offenders, "\n".join(offenders)


def foreign_target(node):
    """Return which attribute of another object a node sets or deletes, in any form of assignment; or None."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        if getattr(node.value, "id", "") in ("self", "cls"):
            return None
        if isinstance(node.value, ast.Call):
            return f"{ast.unparse(node.value.func)}(...).{node.attr}"
        return ast.unparse(node)
    if isinstance(node, ast.Call) and node.args:
        function = ast.unparse(node.func)
        is_own = getattr(node.args[0], "id", "") in ("self", "cls")
        if function.split(".")[-1] in ("setattr", "delattr", "__setattr__", "__delattr__") and not is_own:
            return f"{function}({ast.unparse(node.args[0])}, ...)"
    return None


def is_stub(function):
    body = [
        node
        for node in function.body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))  # a docstring, or ...
    ]
    return not body


def modules():
    for path in FILES:
        yield path, ".".join(["fkat_data", *(part for part in parts_of(path) if part != "__init__")])


def exported(path):
    """Return a module's ``__all__``, or None."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return ast.literal_eval(node.value)
    return None


def test_every_module_says_what_it_is_and_every_face_what_it_gives():
    offenders = []
    for path, name in modules():
        if not ast.get_docstring(tree_of(path)):
            offenders.append(f"{name}: no docstring")
        names = exported(path)
        if path.name != "__init__.py":
            offenders += [] if names is None else [f"{name}: __all__, which faces alone have"]
            continue
        if len(tree_of(path).body) == 1:
            continue  # a docstring alone: a package whose modules are imported by name
        if names is None:
            offenders.append(f"{name}: no __all__")
            continue
        module = importlib.import_module(name)
        offenders += [
            f"{name}: __all__ names {item}, which is not there" for item in names if not hasattr(module, item)
        ]
        if names != sorted(names, key=rank_of_name):
            offenders.append(f"{name}: __all__ is not sorted")
    assert not offenders, "\n".join(offenders)


def rank_of_name(name):
    """As ruff sorts: constants, then classes, then functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name)


def test_every_silenced_rule_is_named_and_has_its_reason():
    """A reason stands behind the rule, on the same line or alone on the line above."""
    named = re.compile(r"# (noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*|type: ignore\[[\w, -]+\]|pyright: ignore\[[\w, ]+\])")
    offenders = []
    for path in FILES:
        lines = ["", *path.read_text().splitlines()]
        for above, line in pairwise(lines):
            if not re.search(r"# (noqa|type: ignore|pyright: ignore)", line):
                continue
            comment = named.sub("", line[line.index("# ") :])
            if not named.search(line):
                offenders.append(f"{path.relative_to(ROOT)}: {line.strip()}: which rule?")
            elif not re.search(r"[a-z]{2}", comment) and not above.strip().startswith("#"):
                offenders.append(f"{path.relative_to(ROOT)}: {line.strip()}: why?")
    assert not offenders, "\n".join(offenders)


def test_the_state_is_read_without_unpickling_or_evaluating():
    for name in ("plan/state.py", "iteration.py", "position.py"):
        names = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(tree_of(ROOT / name))}
        assert not names & {"pickle", "eval", "exec", "loads"}

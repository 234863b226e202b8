"""The shape of the package, held by its syntax trees. One test a rule; each lists every offender."""

import ast
from collections import defaultdict
from functools import cache
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


@pytest.mark.long
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


def test_the_state_is_read_without_unpickling_or_evaluating():
    for name in ("plan/state.py", "iteration.py", "position.py"):
        names = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(tree_of(ROOT / name))}
        assert not names & {"pickle", "eval", "exec", "loads"}

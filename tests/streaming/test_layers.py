"""The shape of the streaming package, held by its syntax trees: formats below writing, order beside formats."""

import ast
from pathlib import Path

import pytest

import fkat_data.streaming

ROOT = Path(fkat_data.streaming.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: What streaming may use of the rest of the package; besides it, nothing above layer 1 of the whole.
FROM_OUTSIDE = {
    "arguments",
    "distributed",
    "errors",
    "faults",
    "observe",
    "permutation",
    "position",
    "requirement",
    "seeding",
    "streaming",
    "tree",
    "types",
}
#: A part may import from parts with a lower number; parts with the same number do not know one another.
LAYERS = {"sizes": 0, "formats": 1, "order": 1, "cache": 2, "store": 2, "writing": 2, "converting": 3}
#: Files that stand in the package itself are above its parts.
TOP = 4


def part_of(names):
    """Return which part of the package a dotted name under ``fkat_data.streaming`` belongs to."""
    return names[2] if len(names) > 2 else "__init__"


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module != "fkat_data" else [f"fkat_data.{name.name}" for name in node.names]
        yield from (name.split(".") for name in names if name.split(".")[0] == "fkat_data")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for names in imported(path):
        assert names[1] in FROM_OUTSIDE, f"{own} imports {'.'.join(names)}"
        if names[1] != "streaming" or part_of(names) == own:
            continue
        assert LAYERS.get(part_of(names), TOP) < LAYERS.get(own, TOP) or own not in LAYERS, f"{own} imports {names}"

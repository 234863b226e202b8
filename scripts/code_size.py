#!/usr/bin/env python3
"""Print how large the code is: code lines, files, packages and their imports; tests, scripts and words of docs.

A code line is one that is not blank, a comment or a docstring. A package is a folder, or a module right under
``fkat_data``; ``scripts`` counts as one. An import is counted once for each pair of packages. The layers are the longest
chain of packages of which each imports the next.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fkat_data"
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts]


def num_code_lines(path: Path) -> int:
    described: set[int] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            described |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - described)


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fkat_data":
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield whole if _path_of(whole).exists() else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "fkat_data")


def _path_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    # A folder that is left of a package that is gone has no module.
    return path if (path / "__init__.py").exists() else path.with_suffix(".py")


def package_of(module: str) -> str:
    """Return the folder of a module, or the module itself where it is right under ``fkat_data``."""
    parts = module.split(".")[1:]
    path = _path_of(module)
    if path.is_dir():
        return "/".join(parts)
    return "/".join(parts[:-1]) or "/".join(parts)


def package_imports() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for path in files(PACKAGE):
        parts = path.relative_to(ROOT).with_suffix("").parts
        own = package_of(".".join(part for part in parts if part != "__init__"))
        found |= {(own, package_of(module)) for module in imported(path)}
    found |= {("scripts", package_of(module)) for path in files(ROOT / "scripts") for module in imported(path)}
    return {(own, other) for own, other in found if own != other and other}


def num_layers(found: set[tuple[str, str]]) -> int:
    below: dict[str, set[str]] = {}
    for own, other in found:
        below.setdefault(own, set()).add(other)

    # Modules are in layers, which the tests hold; two folders may have modules of several, and import one another.
    heights: dict[str, int] = {}

    def height(package: str) -> int:
        if package not in heights:
            heights[package] = 0
            heights[package] = 1 + max((height(other) for other in below.get(package, ())), default=0)
        return heights[package]

    return max(height(package) for package in below if package)


def is_below_a_face(module: str) -> bool:
    """Return whether an import reaches past ``fkat_data.<package>``, or past a package of streaming, testing or tools.

    A module right under ``fkat_data`` is a package of one module, and so its own face.
    """
    parts = module.split(".")
    if len(parts) <= 2:
        return False
    depth = 3 if parts[1] in ("streaming", "testing", "tools") else 2
    return len(parts) > depth or not _path_of(module).is_dir()


def main() -> None:
    modules, tests = files(PACKAGE), files(ROOT / "tests")
    found = package_imports()
    packages = {package for pair in found for package in pair}
    print(f"code: {sum(map(num_code_lines, modules)):,} code lines in {len(modules)} files")
    print(f"packages: {len(packages)}, imports: {len(found)}, layers: {num_layers(found)}")
    print(f"tests: {sum(map(num_code_lines, tests)):,} code lines")
    print(f"scripts: {sum(len(path.read_text().splitlines()) for path in files(ROOT / 'scripts')):,} lines")
    print(f"docs: {sum(len(path.read_text().split()) for path in (ROOT / 'docs').rglob('*.md')):,} words")
    by_file = {
        path: sum(
            isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(tree_of(path))
        )
        for path in tests
    }
    below = sum(count for path, count in by_file.items() if any(map(is_below_a_face, imported(path))))
    print(f"test functions in files that import below a face: {below / sum(by_file.values()):.0%}")
    # Names of Python and of torch that begin so are not ours.
    private = re.compile(
        r"(?<![\w.])(?!self\b|cls\b|sys\b|torch\b|resource_tracker\b)\w+"
        r"\._(?!exit\b|replace\b|asdict\b|fields\b)[a-z]\w*"
        r"|import _[a-z]|[gs]etattr\([^)]*, \"_[a-z]\w*\""
    )
    print(f"test files with private names: {sum(bool(private.search(path.read_text())) for path in tests)}")


if __name__ == "__main__":
    main()

"""Users import from faces alone: ``fkat_data``, ``fkat_data.<package>`` and ``fkat_data.streaming.<package>``."""

import importlib
import re
from functools import cache
from pathlib import Path

import fkat_data

ROOT = Path(__file__).parents[1]
PACKAGE = Path(fkat_data.__file__).parent
#: What users read, copy and run.
MATERIAL = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
        *(PACKAGE / "configs").rglob("*.yaml"),
        *(ROOT / "scripts").glob("*.py"),
        *(ROOT / "scripts" / "demo_gpt").rglob("*.py"),
    ]
)
#: Packages without public names, though others may use what they export; what users need of them is in ``fkat_data``, ``fkat_data.tools`` and ``.streaming``.
INTERNAL = {
    *("fkat_data.files", "fkat_data.configs", "fkat_data.errors", "fkat_data.runtime", "fkat_data.storage"),
    *("fkat_data.device", "fkat_data.engine", "fkat_data.loaders", "fkat_data.plan", "fkat_data.transport"),
    *("fkat_data.worker", "fkat_data.worker.process"),
    *(f"fkat_data.integrations{name}" for name in ("", ".hooks", ".huggingface", ".lightning")),
}
IMPORT = re.compile(r"^[ ]*from (fkat_data[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)
DOTTED = re.compile(r"(?<![\w/.-])fkat_data(?:\.[A-Za-z_]\w*)+")


def packages():
    for path in sorted(PACKAGE.rglob("__init__.py")):
        yield ".".join(("fkat_data", *path.parent.relative_to(PACKAGE).parts))
    for path in sorted(PACKAGE.glob("[!_]*.py")):  # one module is a face as well
        if "\n__all__ = " in path.read_text():
            yield f"fkat_data.{path.stem}"


@cache
def public_names():
    """Return the names of each face of users. What is deeper than a face, or has no ``__all__``, is internal."""
    found = {}
    for name in packages():
        depth = name.count(".")
        if depth < 2 or (depth == 2 and name.startswith(("fkat_data.streaming.", "fkat_data.testing."))):
            names = getattr(importlib.import_module(name), "__all__", None)
            if names is not None and name not in INTERNAL:
                found[name] = set(names)
    return found


def is_public(dotted):
    """Return whether a dotted path is a face, or begins with a name that a face exports."""
    faces = public_names()
    if dotted in faces:
        return True
    parts = dotted.split(".")
    face = next(".".join(parts[:end]) for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in faces)
    return parts[face.count(".") + 1] in faces[face]


def mentioned_in(path):
    """Return the dotted paths in a file, and in the code and prose of a page; the output that it shows does not count."""
    text = path.read_text()
    if path.suffix == ".md":
        text = re.sub(r"^```(?!python|yaml|bash).*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    imported = [
        f"{module}.{name.split(' as ')[0].strip()}"
        for module, names in IMPORT.findall(text)
        for name in names.strip(" ()\n").rstrip(",").split(",")
    ]
    return imported + DOTTED.findall(IMPORT.sub("", text))


def test_users_material_imports_from_faces_alone():
    offenders = sorted(
        {f"{path.relative_to(ROOT)}: {name}" for path in MATERIAL for name in mentioned_in(path) if not is_public(name)}
    )
    assert not offenders, "\n".join(offenders)


def test_every_package_exports_names_that_are_there_or_is_internal():
    exported = {name: getattr(importlib.import_module(name), "__all__", None) for name in packages()}
    assert {name for name, names in exported.items() if names is None} <= INTERNAL <= set(exported)
    offenders = [
        f"{package}.{name}"
        for package, names in exported.items()
        for name in names or ()
        if not hasattr(importlib.import_module(package), name)
    ]
    assert not offenders, offenders


def test_every_public_name_of_the_glossary_is_exported():
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \| `(fkat_data[\w.]*)` \|", glossary, re.MULTILINE)
    names = [(name, face) for cell, face in rows for name in re.findall(r"\w+", cell)]
    assert len(names) > 150
    assert not [f"{face}.{name}" for name, face in names if name not in public_names().get(face, ())]


def test_the_judgement_itself():
    assert is_public("fkat_data.streaming.store")
    assert is_public("fkat_data.streaming.store.open_store")
    assert is_public("fkat_data.datasets.DictDataset.over")
    for internal in ("fkat_data.engine", "fkat_data.streaming.store.store.Store", "fkat_data.errors.arguments"):
        assert not is_public(internal)

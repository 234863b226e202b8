"""Check what a wheel and a source distribution contain: scripts/wheel_check calls it with what it has built.

python scripts/wheel/contents.py WHEEL WHEEL_OF_THE_SOURCE_DISTRIBUTION SOURCE_DISTRIBUTION
"""

import re
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What of the checkout's package belongs into a wheel.
SUFFIXES = {".py", ".yaml", ".typed", ".css", ".js", ".html", ".json"}
#: What work on the library needs, and a user does not.
GROUPS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"])


def contents(wheel):
    """Return the content of each file of a wheel but its record, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def main(wheel, from_source, source):
    found = contents(wheel)
    assert found == contents(from_source), "the source distribution builds another wheel"
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "fkat_data").rglob("*")
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts
    }
    shipped = {name for name in found if ".dist-info/" not in name}
    assert shipped == package, f"missing: {package - shipped}; in excess: {shipped - package}"
    metadata = message_from_bytes(next(content for name, content in found.items() if name.endswith("/METADATA")))
    extras = set(metadata.get_all("Provides-Extra", []))
    assert not extras & GROUPS, f"extras that no user needs: {extras & GROUPS}"
    relative = re.findall(r"\]\((?!https:)[^)]*\)", metadata.get_payload())
    assert not relative, f"links that lead nowhere on a package index: {relative}"
    assert metadata["Author"] or metadata["Author-email"] or "contributors" in str(metadata), "no authors"
    assert len(metadata.get_all("Project-URL")) >= 4
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "tests/conftest.py",
        "scripts/test",
        "mkdocs.yml",
    }
    assert needed <= names, f"not in the source distribution: {needed - names}"
    print(f"{Path(wheel).name}: {len(shipped)} files, extras {', '.join(sorted(extras))}")


if __name__ == "__main__":
    main(*sys.argv[1:])

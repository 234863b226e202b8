"""Compare a tag such as ``v0.1.0`` with the version that the package, the changelog and the citation state.

python scripts/version_check.py TAG
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: file -> where it states the version of the newest release
PLACES = {
    "fkat_data/__init__.py": r'^__version__ = "([^"]+)"$',
    "CHANGELOG.md": r"^## (\d[^\s]*)",
    "CITATION.cff": r"^version: (\S+)$",
}


def versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, pattern in PLACES.items():
        match = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
        found[name] = match[1] if match else "<none>"
    return found


def main(tag: str) -> None:
    wrong = {name: found for name, found in versions().items() if f"v{found}" != tag}
    if wrong:
        raise SystemExit(f"the tag is {tag}, but " + ", ".join(f"{name} has {found}" for name, found in wrong.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])

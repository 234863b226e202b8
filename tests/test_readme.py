"""The README stays short, and its links lead somewhere, also from a package index; tests/documents runs it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]


def test_the_example_has_eight_lines():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in example.splitlines() if line]) == 8


def test_every_link_is_absolute_and_leads_to_a_file_of_the_repository():
    links = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(links) > 15
    for link in links:
        assert link.startswith((f"{SOURCE}/blob/main/", f"{SOURCE}/raw/main/")), f"leads nowhere on an index: {link}"
        file, _, anchor = link.partition("/main/")[2].partition("#")
        assert (ROOT / file).exists(), link
        headings = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, link

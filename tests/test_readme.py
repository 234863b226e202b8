"""The README stays short, and its links lead somewhere, in a clone and on a package index; tests/documents runs it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def links_of(text):
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_the_example_has_eight_lines():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in example.splitlines() if line]) == 8


def test_every_link_is_relative_and_leads_to_a_file_of_the_repository():
    links = links_of(README)
    assert len(links) > 15
    for link in links:
        file, _, anchor = link.partition("#")
        assert (ROOT / file).exists(), link
        headings = re.findall(r"^#+ (.*)$", (ROOT / file).read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, link


def test_what_builds_the_package_makes_every_link_absolute():
    text = README
    for each in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    source = PROJECT["project"]["urls"]["Source"]
    images = links_of("".join(re.findall(r"!\[[^\]]*\]\([^)]*\)", README)))
    assert links_of(text) == [
        f"{source}/{'raw' if link in images else 'blob'}/main/{link}" for link in links_of(README)
    ]

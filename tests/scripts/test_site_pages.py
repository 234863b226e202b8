"""The site has a page for each document, its links lead to pages, and its reference has every public name."""

import importlib
import importlib.util
import re
from pathlib import Path

import pytest
import site_pages
import yaml

import fkat_data

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "file", "source", "expected"),
    [
        ("[a](docs/howto/resume.md#one)", "README.md", "index.md", "[a](howto/resume.md#one)"),
        ("![a](docs/images/b.svg)", "README.md", "index.md", "![a](images/b.svg)"),
        ("[`b`](../../configs/data)", "docs/howto/files.md", "howto/files.md", "`b`"),
        ("[a](https://example.org/x.md) [b](#c)", "README.md", "index.md", "[a](https://example.org/x.md) [b](#c)"),
    ],
)
def test_links_lead_to_pages_of_the_site(text, file, source, expected):
    assert site_pages.linked(text, file, source) == expected


def test_every_document_is_in_the_menu():
    text = re.sub(r"^hooks:.*$", "", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"[\w/.-]+\.md", str(yaml.safe_load(text)["nav"])))
    docs = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert named == docs | set(site_pages._PAGES.values())


def test_the_reference_has_every_public_name():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    shown = {name for page in pages for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE)}
    modules = [importlib.import_module(name) for name in shown if importlib.util.find_spec(name)]
    covered = {name.removeprefix("fkat_data.") for name in shown}.union(*(module.__all__ for module in modules))
    assert not set(fkat_data.__all__) - covered

"""The glossary gives each word one meaning, and knows every public name."""

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text()
FACES = (
    "fkat_data",
    "fkat_data.configuration",
    "fkat_data.datasets",
    "fkat_data.export",
    "fkat_data.extensions",
    "fkat_data.huggingface",
    "fkat_data.lightning",
    "fkat_data.mixing",
    "fkat_data.observe",
    "fkat_data.samplers",
    "fkat_data.streaming",
    "fkat_data.streaming.cache",
    "fkat_data.streaming.formats",
    "fkat_data.streaming.order",
    "fkat_data.streaming.store",
    "fkat_data.testing",
    "fkat_data.testing.contracts",
    "fkat_data.tools",
    "fkat_data.torchtitan",
)


def rows(title):
    """Return the cells of a section's table, without its head."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_no_word_has_two_meanings():
    words = Counter(word.strip() for word, _ in rows("Words") for word in word.split(","))
    assert [word for word, count in words.items() if count > 1] == []
    assert [word for word, meaning in rows("Words") if re.search(r"\balso\b|; in `", meaning)] == []


@pytest.mark.parametrize("title", ["Words", "Public names"])
def test_the_rows_are_sorted(title):
    names = [row[0].strip("`") for row in rows(title)]
    assert names == sorted(names)


def test_every_public_name_has_one_row_that_says_where_to_import_it_from():
    faces = {name: importlib.import_module(name).__all__ for name in FACES}
    public = {name for names in faces.values() for name in names}
    listed = [name.strip("`") for name, _, _ in rows("Public names")]
    assert sorted(listed) == sorted(set(listed)), "a name with two rows"
    assert set(listed) == public, f"missing: {public - set(listed)}; not public: {set(listed) - public}"
    offenders = [name for name, face, _ in rows("Public names") if name.strip("`") not in faces[face.strip("`")]]
    assert offenders == []

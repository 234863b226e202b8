"""The reference shows every public name."""

import importlib
import importlib.util
import re
from pathlib import Path

import fkat_data

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_reference_has_every_public_name():
    shown = {
        name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE)
    }
    modules = [importlib.import_module(name) for name in shown if importlib.util.find_spec(name)]
    covered = {name.removeprefix("fkat_data.") for name in shown}.union(*(module.__all__ for module in modules))
    assert not set(fkat_data.__all__) - covered

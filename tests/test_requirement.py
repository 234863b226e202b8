import json
import sys

import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.machine import required


def test_a_module_that_is_there_is_returned():
    assert required("json", "json") is json


def test_a_module_that_is_not_installed_is_named_with_what_brings_it():
    with pytest.raises(ConfigurationError, match=r"no_such_package.*pip install 'fkat_data\[extra\]'"):
        required("no_such_package.part", "extra")


def test_a_package_that_lacks_something_itself_is_not_said_to_be_missing(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        required("half_installed", "extra")
    assert "half_installed" not in sys.modules

"""The table of promises, and the tests that hold each."""

import tomllib
from pathlib import Path

__all__ = ["CLAIMS", "FILES_ALONE", "PROMISES"]

_TABLES = tomllib.loads(Path(__file__).with_name("promises.toml").read_text())
PROMISES: dict[str, list[str]] = _TABLES["promises"]
CLAIMS: dict[str, list[str]] = _TABLES["claims"]
#: Promises of what is read from files, which no process or socket can break: fast tests hold them with real files.
FILES_ALONE = {"G", "H1"}

#!/usr/bin/env python3
"""Run torch's and torchdata's own tests of their loaders on fkat_data.DataLoader: `scripts/torch_suites.py FILE...`.

A FILE is a copy of `test/stateful_dataloader/test_state_dict.py` or `test_dataloader.py` of github.com/meta-pytorch/data,
or of `test/test_dataloader.py` of github.com/pytorch/pytorch. Nothing of them is in this repository. The names that they
import, `torchdata.stateful_dataloader.StatefulDataLoader` and `torch.utils.data.DataLoader`, are those of fkat_data.

Prints each test that fails, and the counts. `torch_suites.toml` names the tests that differ by decision, and those of
internals, with the reason: they do not run. The exit code is 1 if any other test fails. TESTS=pattern chooses tests.
"""

import importlib
import os
import shutil
import signal
import sys
import tempfile
import tomllib
import unittest
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle
import torch.utils.data

import fkat_data

LIMIT_S = 60
SHIMS = {
    "torchdata/__init__.py": "",
    "torchdata/stateful_dataloader/__init__.py": """
from fkat_data import DataLoader as StatefulDataLoader

class Stateful:
    pass
""",
    # Of two packages that these tests import, what they need.
    "expecttest.py": "from unittest import TestCase as TestCase",
    "parameterized.py": """
import sys

class parameterized:
    @staticmethod
    def expand(rows):
        def decorate(function):
            names = sys._getframe(1).f_locals
            for number, row in enumerate(rows):
                names[f"{function.__name__}_{number}"] = lambda self, row=tuple(row): function(self, *row)
        return decorate
""",
}


class TimedOutError(Exception):
    pass


class Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.outcome = ""

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self.outcome = "passed"
        signal.alarm(LIMIT_S)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        signal.alarm(0)
        super().stopTest(test)
        self.counts[self.outcome] += 1

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - unittest's name
        del test, reason
        self.outcome = "skipped"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - unittest's name
        self.outcome = "failed"
        print(f"failed: {name_of(test)}: {err[1]!r:.500}", flush=True)

    addError = addFailure  # noqa: N815 - unittest's name


def name_of(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def on_alarm(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TimedOutError(f"more than {LIMIT_S} s")


def main(paths: list[str]) -> int:
    torch.utils.data.DataLoader = fkat_data.DataLoader
    signal.signal(signal.SIGALRM, on_alarm)
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    known = {name: kind for kind, tests in table.items() for name in tests}
    pattern = os.environ.get("TESTS", "*")
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SHIMS.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        for number, path in enumerate(paths):
            module_name = f"suite_{number}"
            shutil.copy(path, Path(folder, f"{module_name}.py"))
            module = importlib.import_module(module_name)
            vars(module).pop("load_tests", None)  # picks tests for one of several machines
            # Workers need not import the tests, and what those import.
            cloudpickle.register_pickle_by_value(module)
            for case in unittest.defaultTestLoader.loadTestsFromModule(module):
                for test in case:
                    name = name_of(test)
                    if not fnmatchcase(name, f"*{pattern}*"):
                        continue
                    kind = next((kind for listed, kind in known.items() if fnmatchcase(name, listed)), None)
                    if kind is None:
                        test.run(outcomes)
                    else:
                        outcomes.counts[kind] += 1
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.counts.items())))
    return int(outcomes.counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

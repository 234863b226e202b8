#!/usr/bin/env python3
"""Run the tests of torch, torchdata and accelerate on fkat_data.DataLoader: `scripts/torch_suites.py FILE...`.

A FILE is a copy of `test/stateful_dataloader/test_state_dict.py` or `test_dataloader.py` of github.com/meta-pytorch/data,
of `test/test_dataloader.py` of github.com/pytorch/pytorch, or of `tests/test_data_loader.py` of
github.com/huggingface/accelerate, which needs accelerate. Nothing of them is in this repository. The names that they
import, `torchdata.stateful_dataloader.StatefulDataLoader` and `torch.utils.data.DataLoader`, are those of fkat_data: so
accelerate's own loaders are made of them, too.

Prints each test that fails, and the counts. `torch_suites.toml` names the tests that differ by decision, and those of
internals, each with the reason and the error that follows from it. They run too: one that passes, or that fails for
another reason, counts as failed. The exit code is 1 if any test has failed. TESTS=pattern chooses tests,
and LIMIT_S is the time of one in seconds.
"""

import importlib
import os
import re
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
from typing import Any, NamedTuple

import cloudpickle
import torch.utils.data

import fkat_data

LIMIT_S = int(os.environ.get("LIMIT_S", "60"))
SHIMS = {
    "torchdata/__init__.py": "",
    "torchdata/stateful_dataloader/__init__.py": """
from fkat_data import DataLoader as StatefulDataLoader

class Stateful:
    pass
""",
    # accelerate asks which version there is.
    "torchdata-0.11.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torchdata\nVersion: 0.11.0\n",
    # Of two packages that these tests import, what they need.
    "expecttest.py": "from unittest import TestCase as TestCase",
    "parameterized.py": """
import sys
from types import SimpleNamespace

class parameterized:
    @staticmethod
    def expand(rows, name_func=lambda function, number, row: f"{function.__name__}_{number}"):
        def decorate(function):
            names = sys._getframe(1).f_locals
            for number, row in enumerate(rows):
                row = tuple(row) if isinstance(row, (list, tuple)) else (row,)
                name = name_func(function, number, SimpleNamespace(args=row, kwargs={}))
                names[name] = lambda self, row=row: function(self, *row)
        return decorate
""",
}


class TimedOutError(Exception):
    pass


class Known(NamedTuple):
    """A test that fails for a known reason.

    Attributes:
        pattern: Its name, in which ``*`` stands for any text.
        kind: What the counts call it.
        error: A regular expression that the type and text of its error match.
        limit_s: Its time in seconds: one that waits for what does not come need not wait for long.
        may_pass: Whether it passes at times.
    """

    pattern: str
    kind: str
    error: str
    limit_s: int
    may_pass: bool


class Outcomes(unittest.TestResult):
    def __init__(self, known: list[Known]) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.outcome = ""
        self.known = known

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self.outcome = "passed"
        known = self.known_of(test)
        signal.alarm(LIMIT_S if known is None else known.limit_s)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        signal.alarm(0)
        super().stopTest(test)
        known = self.known_of(test)
        if self.outcome == "passed" and known is not None:
            self.outcome = known.kind if known.may_pass else "failed"
            if not known.may_pass:
                says = f"passes, but torch_suites.toml says that it fails: {known.error}"
                print(f"failed: {name_of(test)}: {says}", flush=True)
        self.counts[self.outcome] += 1

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - unittest's name
        del test, reason
        self.outcome = "skipped"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - unittest's name
        text = f"{type(err[1]).__name__}: {err[1]}"
        known = self.known_of(test)
        if known is not None and re.search(known.error, text, re.DOTALL):
            self.outcome = known.kind
            return
        self.outcome = "failed"
        expected = "" if known is None else f", not as torch_suites.toml says: {known.error}"
        print(f"failed: {name_of(test)}: {text!r:.500}{expected}", flush=True)

    addError = addFailure  # noqa: N815 - unittest's name

    def addSubTest(  # noqa: N802 - unittest's name
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any
    ) -> None:
        del subtest
        if err is not None:
            self.addFailure(test, err)

    def known_of(self, test: unittest.TestCase) -> Known | None:
        return next((known for known in self.known if fnmatchcase(name_of(test), known.pattern)), None)


def name_of(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def on_alarm(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TimedOutError("more time than it has")


def main(paths: list[str]) -> int:
    torch.utils.data.DataLoader = fkat_data.DataLoader
    signal.signal(signal.SIGALRM, on_alarm)
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    known = [
        Known(name, kind, test["error"], test.get("limit_s", LIMIT_S), test.get("may_pass", False))
        for kind, tests in table.items()
        for name, test in tests.items()
    ]
    pattern, outcomes = os.environ.get("TESTS", "*"), Outcomes(known)
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
            cloudpickle.register_pickle_by_value(module)  # workers need not import the tests
            for case in unittest.defaultTestLoader.loadTestsFromModule(module):
                for test in (test for test in case if fnmatchcase(name_of(test), f"*{pattern}*")):
                    test.run(outcomes)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.counts.items())))
    return int(outcomes.counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

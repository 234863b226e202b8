"""Which lane a test belongs to, by the fixtures it uses and by the table of promises."""

import os
from pathlib import Path

import leavings
import pytest
from guard import Guard
from hypothesis import settings
from kept_template import KeptTemplate
from promises import CLAIMS, FILES_ALONE, PROMISES

__all__ = ["EXAMPLES", "LANES", "STARTS", "LaneSelection", "starts"]

#: Fixtures that permit a test to start something.
STARTS = frozenset({"processes", "shared_processes"})
LANES = {
    "fast": "no test that starts a process or a server, and none that takes long",
    "default": "the fast lane, and the tests that hold the promises",
    "all": "everything that is not marked slow",
    "whole": "the lane all, with every example of a property and every case of a sweep",
}
#: The share of its examples that a property is tested with, and of its cases a sweep: every run draws others.
EXAMPLES = {"fast": 0.04, "default": 0.1, "all": 0.25, "whole": 1.0}
_FEWEST_EXAMPLES = 5
#: Folders of tests whose imports alone take seconds: the fast lane enters one only where it is named.
_FRAMEWORKS = frozenset({"huggingface", "lightning"})


class LaneSelection:
    """The plugin: chooses the tests of a lane and guards each test.

    Attributes:
        guard: What the running test may start.
        problems: What is wrong with the table of promises, as far as the tests were collected.
    """

    def __init__(self, lane):
        self._lane = lane
        self.guard = Guard()
        self.problems = []
        self._kept_template = KeptTemplate(self.guard)

    def pytest_report_header(self):
        return f"lane: {self._lane} ({LANES[self._lane]})"

    def pytest_ignore_collect(self, collection_path, config):
        """Return True for a folder that the lane leaves out; None leaves it to others."""
        if self._lane != "fast" or collection_path.name not in _FRAMEWORKS:
            return None
        return not any(collection_path.name in Path(argument).parts for argument in config.args) or None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        for item in items:
            _add_what_its_parameters_need(item)
            _reduce_examples(item, EXAMPLES[self._lane])
        holding = self._find_promised(items)
        if self._lane in ("all", "whole"):
            return
        chosen = {item for item in items if not starts(item)}
        if self._lane == "default":
            chosen |= holding
        else:
            chosen = {item for item in chosen if not item.get_closest_marker("long")}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]

    def _find_promised(self, items):
        by_function, files = {}, set()
        for item in items:
            path, _, name = item.nodeid.removeprefix("tests/").partition("::")
            files.add(path)
            for key in {f"{path}::{name}", f"{path}::{name.partition('[')[0]}"}:
                by_function.setdefault(key, []).append(item)
        holding = set()
        for promise, names in (PROMISES | CLAIMS).items():
            found = {name: by_function.get(name, []) for name in names}
            absent = [name for name in names if name.partition("::")[0] not in files]
            tests = [item for items_of_name in found.values() for item in items_of_name]
            holding.update(tests)
            self.problems += [
                f"{promise}: no test {name} was collected" for name in names if not found[name] and name not in absent
            ]
            if not (absent or promise in FILES_ALONE or any(starts(item) for item in tests)):
                self.problems.append(f"{promise}: none of its tests starts a process or a server")
        return holding

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        if starts(item) and "own_template" not in item.fixturenames:
            self._kept_template.renew()
        self.guard.offences.clear()
        self.guard.servers = starts(item)
        self.guard.processes = "processes" in item.fixturenames
        try:
            return (yield)
        finally:
            self.guard.servers = self.guard.processes = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        # What is shared starts here; the test itself needs a permission of its own.
        self.guard.processes = starts(item)
        try:
            return (yield)
        finally:
            self.guard.processes = "processes" in item.fixturenames

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self):
        _hide_name_of_test()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        _hide_name_of_test()
        if "shared_processes" not in fixturedef.argnames:
            return (yield)
        before = leavings.processes()
        try:
            return (yield)
        finally:
            leavings.SHARED.update(leavings.processes() - before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        result = yield
        if self.guard.offences:
            pytest.fail("\n".join(self.guard.offences), pytrace=False)
        return result

    def pytest_sessionfinish(self):
        self._kept_template.end_others(set())


def starts(item):
    """Return whether a test may start a process or a server."""
    return not STARTS.isdisjoint(item.fixturenames)


def _add_what_its_parameters_need(item):
    """Let the value of one parameter ask for a fixture: a loader with workers needs processes, one without does not."""
    if not hasattr(item, "callspec"):
        return
    needed = item.callspec.params.get("multiprocessing") is True or item.get_closest_marker("with_processes")
    if needed and "processes" not in item.fixturenames:
        item.fixturenames = ["processes", *item.fixturenames]


def _hide_name_of_test():
    """Let the environment be that of the test before: a template process serves loaders of its own environment alone."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


def _reduce_examples(item, share):
    """Have Hypothesis test a property with fewer examples; it keeps a test's settings where its own plugin finds them."""
    holder, name = item.obj, "_hypothesis_internal_use_settings"
    if getattr(item.obj, "_hypothesis_state_machine_class", None) is not None:
        holder, name = item.cls, "settings"
    given = getattr(holder, name, None)
    if share < 1 and isinstance(given, settings) and not hasattr(holder, "has_fewer_examples"):
        number = max(_FEWEST_EXAMPLES, round(given.max_examples * share))
        setattr(holder, name, settings(given, max_examples=min(number, given.max_examples)))
        holder.has_fewer_examples = True

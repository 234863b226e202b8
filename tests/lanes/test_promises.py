"""No promise is without a test that the default lane runs."""

import re
from pathlib import Path

import pytest
from promises import CLAIMS, FILES_ALONE, PROMISES

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()
OVERVIEW = (REPOSITORY / "docs" / "overview.md").read_text()


def test_every_promise_of_the_table_has_its_tests():
    text = (REPOSITORY / "docs" / "reliability.md").read_text()
    table = text.partition("## How each promise is tested")[2].partition("\n## ")[0]
    promised = re.findall(r"^\| ([A-Z]\d*(?:\u2013[A-Z]\d+)?) \|", table, re.MULTILINE)
    assert len(promised) > 15
    assert set(promised) == set(PROMISES), set(promised) ^ set(PROMISES)


def test_every_claim_of_the_overview_has_its_tests():
    missing = [claim for claim in CLAIMS if claim not in README + OVERVIEW]
    assert not missing, f"README.md and docs/overview.md say this no longer, or in other words: {missing}"
    points = re.findall(r"^- .*$", OVERVIEW, re.MULTILINE)
    rows = re.findall(r"^\| `.*$", OVERVIEW, re.MULTILINE)
    assert len(points) > 4
    assert len(rows) > 10
    bare = [line for line in points + rows if not any(claim in line for claim in CLAIMS)]
    assert not bare, f"promises.toml names no test for these: {bare}"


def test_the_tests_exist():
    missing = []
    for promise, names in (PROMISES | CLAIMS).items():
        for name in names:
            path, _, function = name.partition("::")
            text = (REPOSITORY / "tests" / path).read_text()
            if not re.search(rf"^ *(async )?(def|class) {function.partition('[')[0]}\b", text, re.MULTILINE):
                missing.append(f"{promise}: {name}")
    assert not missing, "\n".join(missing)


def test_they_are_collected_and_start_real_processes(request):
    problems = request.config.pluginmanager.get_plugin("lanes").problems
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("promise", sorted(FILES_ALONE))
def test_what_needs_no_process_is_a_promise(promise):
    assert promise in PROMISES
